//! Generates `docs/reference/diagnostics.md` from [`Code::ALL`], grouped by number.

use anyhow::{Result, bail};
use homestak_core::doc::Code;

use super::markdown::Page;

/// First digits of a code, and what such codes are about.
const GROUPS: &[(&str, &str)] = &[
    ("SK01", "Reading: files and YAML"),
    ("SK02", "Structure: keys, types, values"),
    ("SK03", "References between documents"),
    ("SK04", "The graph"),
    ("SK05", "Numbers and addresses"),
    ("SK06", "Secrets"),
    ("SK07", "Safety"),
    ("SK09", "Notices"),
];

/// Returns the page.
pub(super) fn page() -> Result<String> {
    let mut codes: Vec<Code> = Code::ALL.to_vec();
    codes.sort_by_key(|code| code.id());
    for code in &codes {
        if !GROUPS
            .iter()
            .any(|(digits, _)| code.id().starts_with(digits))
        {
            bail!(
                "{} has no group: add one in xtask/src/generate/diagnostics.rs",
                code.id()
            );
        }
    }
    let mut page = Page::new("Diagnostics");
    page.paragraph(
        "Every error and every notice about a document has a code. \
         A code never changes its meaning, and a retired one is not used again. \
         `homestak explain CODE` prints the same text. \
         Notices do not make a document invalid; errors do. \
         Codes SK09xx are notices; SK0305 is a notice if a file in `nodes/` has no `api_token`.",
    );
    for (digits, title) in GROUPS {
        page.heading(2, &format!("{title} ({digits}xx)"));
        for code in codes.iter().filter(|code| code.id().starts_with(digits)) {
            page.heading(3, &format!("{}: {}", code.id(), code.title()));
            page.paragraph(code.explanation());
        }
    }
    Ok(page.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_on_the_page() {
        let page = page().unwrap();
        for code in Code::ALL {
            assert!(page.contains(&format!("### {}: {}\n", code.id(), code.title())));
        }
    }
}
