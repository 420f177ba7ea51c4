//! Generates `docs/reference/timeouts.md` from [`Limit::ALL`].

use homestak_core::doc::timeouts::{LONGEST, Limit};

use super::markdown::Page;

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = Page::new("Time limits");
    page.paragraph(
        "Each is a number of seconds. \
         They are set, in order of precedence, with a flag (`--timeout boot=600`, which can be \
         repeated), in the environment (`HOMESTAK_TIMEOUTS=boot=600,lock=60`), and in the manifest \
         (`settings: {timeouts: {boot: 600}}`).",
    );
    page.paragraph(&format!(
        "Names that are not in the table, and values that are not whole numbers from 1 to \
         {LONGEST}, are errors. A resumed run uses the limits of its plan, unless the flag or \
         the variable sets others.",
    ));
    let rows: Vec<_> = Limit::ALL
        .iter()
        .map(|limit| {
            let seconds = limit.default_seconds().to_string();
            vec![
                format!("`{}`", limit.name()),
                seconds,
                limit.description().to_owned(),
            ]
        })
        .collect();
    page.table(&["name", "default", "how long homestak waits"], &rows);
    page.paragraph(
        "These limits cannot be set: pauses between attempts; 30 seconds until Proxmox VE shows the \
         effect of a task that it reported as done; 2 minutes for QEMU on this machine to save or \
         restore a virtual machine.",
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
            let row = format!("| `{}` | {} |", limit.name(), limit.default_seconds());
            assert!(page.contains(&row), "{row}");
        }
    }
}
