//! Limits the length of source files. Tests are not counted.

use super::Fault;
use crate::tree::File;

/// Files with more lines must give a reason.
const LONG: usize = 600;

/// Files with more lines are never allowed.
const TOO_LONG: usize = 1000;

/// How a long file gives its reason.
const REASON: &str = "//! Long because: ";

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    if !file.is_rust() || file.is_test() {
        return;
    }
    let lines = file.text.lines().count();
    let message = if lines > TOO_LONG {
        format!("{lines} lines, split it: the limit is {TOO_LONG}")
    } else if lines > LONG && !file.text.lines().any(|line| line.starts_with(REASON)) {
        format!("{lines} lines, split it, or give a reason: `{REASON}...`")
    } else {
        return;
    };
    faults.push(Fault::new(&file.path, lines, message));
}

#[cfg(test)]
mod tests {
    use super::super::faults_of;
    use super::*;

    fn faults(path: &str, lines: usize, first: &str) -> Vec<String> {
        faults_of(
            check,
            path,
            &format!("{first}\n{}", "x\n".repeat(lines - 1)),
        )
    }

    #[test]
    fn a_long_file_needs_a_reason() {
        assert_eq!(faults("crates/core/src/a.rs", 600, "//! A."), [""; 0]);
        assert!(faults("crates/core/src/a.rs", 601, "//! A.")[0].contains("Long because"));
        assert_eq!(
            faults(
                "crates/core/src/a.rs",
                1000,
                "//! Long because: it is a table."
            ),
            [""; 0]
        );
    }

    #[test]
    fn a_very_long_file_is_a_fault_with_any_reason() {
        assert!(
            faults("crates/core/src/a.rs", 1001, "//! Long because: x.")[0].contains("split it")
        );
        assert_eq!(faults("crates/core/tests/a.rs", 1001, ""), [""; 0]);
    }
}
