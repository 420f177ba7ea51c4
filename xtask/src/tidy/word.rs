//! Finds words that have a preferred synonym in this project, in code and prose. Test data and
//! recorded terminals are not checked.

use super::Fault;
use super::line::lines;
use crate::tree::File;

/// The words, in lower case, and their replacements.
const BANNED: &[(&str, &str)] = &[
    ("added up", "use `hashed`, or `total`"),
    ("adds up", "use `checksum`, `digest`, or `total`"),
    ("all the same", "use `continues anyway`"),
    ("by hand", "use `manually`"),
    ("became of", "use `the outcome of`"),
    ("carries out", "use `executes`, or `runs`"),
    ("constellation", "use `manifest` or `topology`"),
    ("controller", "use `driver`"),
    ("heard", "use `received`, or `is notified`"),
    ("hear", "use `receives`, or `is notified`"),
    ("hierarchical", "use `tiered`"),
    ("in the making", "use `being created`"),
    ("inner host", "use `child`, or `guest`"),
    ("inner pve", "use `child`, or `guest`"),
    ("is told", "use `is notified`, `is asked`, or `receives`"),
    ("left alone", "use `unchanged`"),
    ("made anew", "use `recreated`"),
    ("mend", "use `fix`, `repair`, or `correct`"),
    ("mended", "use `fixed`, `repaired`, or `corrected`"),
    ("mending", "use `fixing`, `repairing`, or `correcting`"),
    ("outer host", "use `parent`, or `host`"),
    ("outer pve", "use `parent`, or `host`"),
    ("put right", "use `fixed`, `repaired`, or `corrected`"),
    ("puts right", "use `fixes`, `repairs`, or `corrects`"),
    ("recursive", "use `nested`, or `tiered`"),
    ("says", "use `reports`, `prints`, `shows`, or `is`"),
    ("taken back", "use `reverted`, or `rolled back`"),
    ("tells", "use `reports`, `prints`, or `returns`"),
    ("where was looked", "use `search path`"),
];

/// Names that contain such a word and are allowed, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("\"mended\"", "a key of JSON that is printed and stored"),
    ("\"mended_at\"", "a key of JSON that is printed and stored"),
    ("\"mending\"", "a file of the agent's state"),
    ("\"says\"", "a key of JSON that is printed"),
    (
        "Keep this machine as its spec says",
        "a unit on nodes; a change would be applied to every node",
    ),
    (
        "Tells this journal",
        "a released migration, which is not changed",
    ),
    ("cgroup.controllers", "a file of the kernel"),
    (
        "kustomize-controller",
        "a third-party repository that fixtures come from",
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

/// Files that list the words.
const ABOUT_WORDS: &[&str] = &["xtask/src/tidy/word.rs"];

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    if file.is_test_data()
        || ABOUT_WORDS.contains(&file.path.as_str())
        || file.name() == "Cargo.lock"
        || file.ends_in(&["svg"])
    {
        return;
    }
    for line in lines(file) {
        if line.excused {
            continue;
        }
        // Strings in tests are test data.
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

/// Returns the words of a line in lower case with single spaces: `OuterHost` and `outer_host`
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

/// Returns whether plain text contains a word or its plural.
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
        assert_eq!(
            faults("docs/a.md", "Drift is mended, or put right by hand."),
            3
        );
        assert_eq!(faults("crates/agent/src/a.rs", "fn mends_drift() {}"), 1);
        assert_eq!(faults("docs/a.md", "The plan says what became of it."), 2);
    }

    #[test]
    fn other_words_are_allowed() {
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
            faults("crates/agent/src/a.rs", "#[serde(rename = \"mended\")]"),
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
