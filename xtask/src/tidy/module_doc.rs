//! Checks module documentation: every module starts with a few lines that state its purpose.

use super::Fault;
use crate::tree::File;

/// Most lines of the first paragraph; longer ones are not read.
const MOST_LINES: usize = 5;

/// File names that do not describe the content.
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
                "`{}` does not describe the content, name the file after its main item",
                file.name()
            ),
        );
    }
    let intro = first_paragraph(&file.text);
    if intro.is_empty() {
        fault(
            1,
            "no module documentation: start with one to five `//!` lines that say what the module is for".into(),
        );
        return;
    }
    if intro.len() > MOST_LINES {
        fault(
            1,
            format!(
                "the module documentation begins with {} lines: use at most {MOST_LINES}, and put the rest behind an empty `//!` line",
                intro.len()
            ),
        );
    }
    if let Some(line) = pattern_line(&file.text) {
        fault(
            line,
            "replace the fixed `In: ... Out: ... Never: ...` pattern with plain sentences".into(),
        );
    }
}

/// Returns the first line of the module documentation with the fixed pattern.
fn pattern_line(text: &str) -> Option<usize> {
    let mut lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let found = lines.position(|line| {
        ["In: ", "Out: ", "Never: "]
            .iter()
            .any(|label| line.trim_start().starts_with(label))
    });
    found.map(|index| index + 1)
}

/// Returns the first paragraph of the module documentation.
fn first_paragraph(text: &str) -> Vec<&str> {
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
    fn a_module_needs_documentation() {
        assert_eq!(faults("crates/core/src/plan.rs", GOOD), [""; 0]);
        assert!(
            faults("crates/core/src/plan.rs", "use x;\n")[0].contains("no module documentation")
        );
        assert_eq!(faults("crates/core/tests/plan.rs", "use x;\n"), [""; 0]);
    }

    #[test]
    fn the_first_paragraph_is_short() {
        let long = "//! a\n//! b\n//! c\n//! d\n//! e\n//! f\n";
        assert!(faults("xtask/src/plan.rs", long)[0].contains("begins with 6 lines"));
    }

    #[test]
    fn the_fixed_pattern_is_found() {
        assert_eq!(
            pattern_line("//! Makes plans.\n//!\n//! In: a. Out: b.\n"),
            Some(3)
        );
        assert_eq!(pattern_line(GOOD), None);
    }

    #[test]
    fn a_file_name_describes_the_content() {
        assert!(faults("xtask/src/utils.rs", GOOD)[0].contains("does not describe"));
    }
}
