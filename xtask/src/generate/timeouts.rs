//! `docs/reference/timeouts.md`, from the one table of time limits.

use homestak_core::doc::timeouts::{LONGEST, Limit};

use super::markdown::Page;

/// Makes the page.
pub(super) fn page() -> String {
    let mut page = Page::new("Time limits");
    page.paragraph(
        "Each is a number of seconds. \
         A flag (`--timeout boot=600`, repeated for more) wins over the environment \
         (`HOMESTAK_TIMEOUTS=boot=600,lock=60`), the environment over the manifest \
         (`settings: {timeouts: {boot: 600}}`), the manifest over the default.",
    );
    page.paragraph(&format!(
        "A name that is not in the table, and a value that is not a whole number from 1 to \
         {LONGEST}, is an error. A run that is resumed keeps the limits of its plan; flag and \
         environment of the command that resumes it come before them.",
    ));
    let rows: Vec<_> = Limit::ALL
        .iter()
        .map(|limit| {
            let seconds = limit.default_seconds().to_string();
            vec![
                format!("`{}`", limit.word()),
                seconds,
                limit.description().to_owned(),
            ]
        })
        .collect();
    page.table(&["name", "default", "how long is waited"], &rows);
    page.paragraph(
        "Not in the table are pauses between two tries, and how long Proxmox VE is given to show \
         the effect of what it reported as done (30 s). QEMU on this machine has 2 minutes to save \
         or restore a machine.",
    );
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_on_the_page_with_its_default() {
        let page = page();
        for limit in Limit::ALL {
            let row = format!("| `{}` | {} |", limit.word(), limit.default_seconds());
            assert!(page.contains(&row), "{row}");
        }
    }
}
