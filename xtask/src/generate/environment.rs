//! `docs/reference/environment.md`, from the table of variables.
//!
//! In: [`VARIABLES`]. Out: a page with every environment variable that is read.
//! Never: a variable that the table lacks; the program reads none of those.

use homestak_cli::settings::VARIABLES;

use super::markdown::Page;

/// Makes the page.
pub(super) fn page() -> String {
    let mut page = Page::new("Environment variables");
    page.paragraph(
        "These are all the variables that `homestak` reads. \
         A flag wins over a variable, a variable over a file, a file over a default. \
         An empty variable counts as not set.",
    );
    let rows: Vec<_> = VARIABLES
        .iter()
        .map(|(name, meaning)| vec![format!("`{name}`"), (*meaning).to_owned()])
        .collect();
    page.table(&["variable", "meaning"], &rows);
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_on_the_page() {
        let page = page();
        for (name, _) in VARIABLES {
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
