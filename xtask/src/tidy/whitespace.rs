//! Finds tabs and trailing spaces in Markdown and YAML files, except in test data.

use super::Fault;
use crate::tree::File;

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    if !file.ends_in(&["md", "yaml", "yml"]) || file.is_test_data() {
        return;
    }
    let mut fault = |line, message: &str| faults.push(Fault::new(&file.path, line, message));
    for (index, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            fault(index + 1, "whitespace at the end of the line, remove it");
        }
        if line.trim_end().contains('\t') {
            fault(index + 1, "tab, use spaces");
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        fault(
            file.text.lines().count(),
            "no newline at the end of the file, add one",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::faults_of;
    use super::*;

    fn faults(path: &str, text: &str) -> usize {
        faults_of(check, path, text).len()
    }

    #[test]
    fn tabs_and_trailing_spaces_are_found() {
        assert_eq!(faults("docs/a.md", "a \nb\tc\n"), 2);
        assert_eq!(faults("docs/a.md", "a"), 1);
    }

    #[test]
    fn other_whitespace_and_test_data_are_ignored() {
        assert_eq!(faults("docs/a.md", "a b\n\n  - c\n"), 0);
        assert_eq!(faults("crates/core/tests/cases/a.yaml", "a:\tb \n"), 0);
        assert_eq!(faults("Makefile", "all:\n\techo\n"), 0);
    }
}
