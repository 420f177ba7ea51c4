//! Module docs: every module starts with a few lines that say what it is for.

use super::Fault;
use crate::tree::File;

/// How many lines the first paragraph may have; longer ones are not read.
const MOST_LINES: usize = 5;

/// Names that say nothing about what is in the file.
const EMPTY_NAMES: &[&str] = &[
    "common.rs",
    "helper.rs",
    "helpers.rs",
    "misc.rs",
    "util.rs",
    "utils.rs",
];

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    if !file.is_source() {
        return;
    }
    let mut fault = |line, message: String| faults.push(Fault::new(&file.path, line, message));
    if EMPTY_NAMES.contains(&file.name()) {
        fault(
            1,
            format!(
                "`{}` says nothing, name the file after its main item",
                file.name()
            ),
        );
    }
    let sign = sign(&file.text);
    if sign.is_empty() {
        fault(
            1,
            "no module doc, start with one to five `//!` lines: what it is for".into(),
        );
        return;
    }
    if sign.len() > MOST_LINES {
        fault(
            1,
            format!(
                "the module doc begins with {} lines, say it in {MOST_LINES} and put the rest behind an empty `//!` line",
                sign.len()
            ),
        );
    }
}

/// Returns the first paragraph of the module's doc.
fn sign(text: &str) -> Vec<&str> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::faults_of;
    use super::*;

    const GOOD: &str =
        "//! Makes plans.\n//!\n//! More.\n//! And.\n//! More.\n//! And.\n//! More.\n//! And.\n";

    fn faults(path: &str, text: &str) -> Vec<String> {
        faults_of(check, path, text)
    }

    #[test]
    fn a_module_needs_a_doc() {
        assert_eq!(faults("crates/core/src/plan.rs", GOOD), [""; 0]);
        assert!(faults("crates/core/src/plan.rs", "use x;\n")[0].contains("no module doc"));
        assert_eq!(faults("crates/core/tests/plan.rs", "use x;\n"), [""; 0]);
    }

    #[test]
    fn the_first_paragraph_is_short() {
        let long = "//! a\n//! b\n//! c\n//! d\n//! e\n//! f\n";
        assert!(faults("xtask/src/plan.rs", long)[0].contains("begins with 6 lines"));
    }

    #[test]
    fn a_file_is_named_after_something() {
        assert!(faults("xtask/src/utils.rs", GOOD)[0].contains("says nothing"));
    }
}
