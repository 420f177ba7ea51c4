//! Words that are not used, because another word of the project means the same.
//!
//! In: a file. Out: a fault for each such word in code or prose.
//! Never: judging test data; cases may hold whatever people write.

use super::Fault;
use super::line::lines;
use crate::tree::File;

/// The words, in small letters, and what to say instead.
const BANNED: &[(&str, &str)] = &[
    ("constellation", "say `manifest` or `topology`"),
    ("controller", "say `driver`"),
    ("hierarchical", "say `tiered`"),
    ("inner host", "say `child`, or `guest`"),
    ("inner pve", "say `child`, or `guest`"),
    ("outer host", "say `parent`, or `host`"),
    ("outer pve", "say `parent`, or `host`"),
    ("recursive", "say `nested`, or `tiered`"),
];

/// Names that hold such a word and must be written, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("cgroup.controllers", "a file of the kernel"),
    (
        "kustomize-controller",
        "somebody else's repository, where fixtures come from",
    ),
    ("prop_recursive", "a method of proptest"),
    ("--recursive", "an option of umount"),
    (
        "recursive-pve-constructor",
        "retired scenario, printed with what replaces it",
    ),
    (
        "recursive-pve-destructor",
        "retired scenario, printed with what replaces it",
    ),
    (
        "recursive-pve-roundtrip",
        "retired scenario, printed with what replaces it",
    ),
];

/// Files that are about the words.
const ABOUT_WORDS: &[&str] = &["xtask/src/tidy/word.rs"];

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    if file.is_test_data()
        || ABOUT_WORDS.contains(&file.path.as_str())
        || file.name() == "Cargo.lock"
    {
        return;
    }
    for line in lines(file) {
        if line.excused {
            continue;
        }
        // Strings of tests are data, like the cases beside them.
        let text = if line.test {
            plain(&format!("{} {}", line.code, line.comment))
        } else {
            plain(line.text)
        };
        for (word, instead) in BANNED {
            if holds(&text, word) {
                let message = format!("`{word}` is not used here, {instead}");
                faults.push(Fault::new(&file.path, line.number, message));
            }
        }
    }
}

/// Returns the words of a line in small letters with single spaces: `OuterHost` and `outer_host`
/// become `outer host`. Allowed names are left out.
fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for (name, _) in ALLOWED {
        text = text.replace(name, "");
    }
    let mut plain = String::from(" ");
    let mut small = false;
    for letter in text.chars() {
        let joins = letter.is_alphanumeric();
        if (!joins || letter.is_uppercase() && small) && !plain.ends_with(' ') {
            plain.push(' ');
        }
        if joins {
            plain.extend(letter.to_lowercase());
        }
        small = letter.is_lowercase();
    }
    plain.push(' ');
    plain
}

/// Returns whether plain text holds a word, or several of it.
fn holds(plain: &str, word: &str) -> bool {
    plain.contains(&format!(" {word} ")) || plain.contains(&format!(" {word}s "))
}

#[cfg(test)]
mod tests {
    use super::super::faults_of;
    use super::*;

    fn faults(path: &str, text: &str) -> usize {
        faults_of(check, path, text).len()
    }

    #[test]
    fn banned_words_are_found_in_code_and_prose() {
        assert_eq!(faults("crates/core/src/a.rs", "struct NodeController;"), 1);
        assert_eq!(faults("crates/core/src/a.rs", "let outer_host = 1;"), 1);
        assert_eq!(
            faults("docs/a.md", "The controllers and the inner host."),
            2
        );
        assert_eq!(faults("stock-site/manifests/a.yaml", "# Recursive."), 1);
    }

    #[test]
    fn other_words_are_left_alone() {
        assert_eq!(
            faults("crates/core/src/a.rs", "let inner = outer; // recursively"),
            0
        );
        assert_eq!(
            faults(
                "crates/cli/src/words.rs",
                "(\"recursive-pve-roundtrip\", 1)"
            ),
            0
        );
        assert_eq!(
            faults(
                "crates/core/tests/cases/a.yaml",
                "name: inner-pve # recursive"
            ),
            0
        );
        assert_eq!(
            faults(
                "docs/a.md",
                "git --recursive <!-- tidy: an option of git -->"
            ),
            0
        );
    }
}
