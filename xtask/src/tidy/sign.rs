//! Door signs: every module starts with what it is for.
//!
//! In: a file. Out: a fault when its sign is missing, too long, or silent on what never happens.
//! Never: judging the words.

use super::Fault;
use crate::tree::File;

/// How many lines a sign may have; longer ones are not read at the door.
const MOST_LINES: usize = 5;

/// What a sign says.
const PARTS: &[&str] = &["In:", "Out:", "Never:"];

/// Names that say nothing about what is behind the door.
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
            "no door sign, start with `//!` lines: what it is for, In, Out, Never".into(),
        );
        return;
    }
    if sign.len() > MOST_LINES {
        fault(
            1,
            format!(
                "the door sign has {} lines, say it in {MOST_LINES} and put the rest behind a `//!` line",
                sign.len()
            ),
        );
    }
    // Commands are named after what they do; programs and tests are their own explanation.
    let short = file.path.contains("/commands/") || file.name() == "main.rs" || file.is_test();
    for part in PARTS {
        if !short && !sign.iter().any(|line| line.contains(part)) {
            fault(1, format!("the door sign has no `{part}`, say it"));
        }
    }
}

/// Returns the lines of the sign: the first paragraph, and the second one when it says what
/// comes in.
fn sign(text: &str) -> Vec<&str> {
    let mut paragraphs: Vec<Vec<&str>> = vec![Vec::new()];
    for line in text.lines().map_while(|line| line.strip_prefix("//!")) {
        match line.trim() {
            "" => paragraphs.push(Vec::new()),
            words => paragraphs
                .last_mut()
                .expect("the list starts with one paragraph")
                .push(words),
        }
    }
    let mut paragraphs = paragraphs.into_iter();
    let mut sign = paragraphs.next().unwrap_or_default();
    if let Some(second) = paragraphs.next()
        && second
            .first()
            .is_some_and(|line| line.starts_with(PARTS[0]))
    {
        sign.extend(second);
    }
    sign
}

#[cfg(test)]
mod tests {
    use super::super::faults_of;
    use super::*;

    const GOOD: &str = "//! Makes plans.\n//!\n//! In: a. Out: b.\n//! Never: c.\n//!\n//! More.\n//! And.\n//! More.\n";

    fn faults(path: &str, text: &str) -> Vec<String> {
        faults_of(check, path, text)
    }

    #[test]
    fn a_module_needs_a_sign() {
        assert_eq!(faults("crates/core/src/plan.rs", GOOD), [""; 0]);
        assert!(faults("crates/core/src/plan.rs", "use x;\n")[0].contains("no door sign"));
        assert_eq!(faults("crates/core/tests/plan.rs", "use x;\n"), [""; 0]);
    }

    #[test]
    fn a_sign_says_in_out_and_never() {
        let found = faults(
            "crates/core/src/plan.rs",
            "//! Makes plans.\n//!\n//! In: a. Out: b.\n",
        );
        assert_eq!(
            found,
            ["crates/core/src/plan.rs:1: the door sign has no `Never:`, say it"]
        );
        assert_eq!(
            faults("crates/cli/src/commands/plan.rs", "//! Plans.\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_sign_is_short() {
        let long = GOOD.replace("//! Never: c.\n", "//! Never: c.\n//! d\n//! e\n//! f\n");
        assert!(faults("xtask/src/plan.rs", &long)[0].contains("has 6 lines"));
    }

    #[test]
    fn a_file_is_named_after_something() {
        assert!(faults("xtask/src/utils.rs", GOOD)[0].contains("says nothing"));
    }
}
