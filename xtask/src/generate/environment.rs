//! Generates `docs/reference/environment.md` from [`VARIABLES`].

use homestak_cli::settings::VARIABLES;

use super::markdown::Page;

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = Page::new("Environment variables");
    page.paragraph(
        "These are the variables that change what `homestak` and `homestak-agent` do. \
         A flag takes precedence over a variable, a variable over a file, a file over a default. \
         An empty variable counts as not set. \
         Programs that they start, such as apt, ssh and git, also receive variables for proxies, \
         languages and the SSH agent.",
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
