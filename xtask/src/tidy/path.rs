//! Finds paths that exist on one machine only. Tests are not checked, because they invent paths.

use super::Fault;
use super::line::lines;
use crate::tree::File;

/// The start of a path, what is wrong with it, and whether it is wrong in prose too.
const PATHS: &[(&str, &str, bool)] = &[
    ("/home/", "take the home directory from the settings", true),
    ("/Users/", "take the home directory from the settings", true),
    ("/root/", "take the home directory from the settings", false),
    ("/tmp/", "use `tempfile`", false),
];

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    let prose = file.ends_in(&["md"]);
    let checked = prose || file.is_source() || file.ends_in(&["toml", "yaml", "yml", "sh"]);
    // This file lists such paths.
    if !checked || file.is_test() || file.path == "xtask/src/tidy/path.rs" {
        return;
    }
    for line in lines(file) {
        for (path, instead, in_prose) in PATHS {
            let checked = !line.test && !line.excused && (*in_prose || file.is_source());
            if checked && starts(line.text, path) {
                let message = format!("`{path}` exists on one machine only, {instead}");
                faults.push(Fault::new(&file.path, line.number, message));
            }
        }
    }
}

/// Returns whether text contains an absolute path with this start, unlike `/srv/home/` and
/// `https://x/home/`.
fn starts(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        !text[..at].ends_with(|before: char| before.is_alphanumeric() || "._-~}".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::super::faults_of;
    use super::*;

    fn faults(path: &str, text: &str) -> usize {
        faults_of(check, path, text).len()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        assert_eq!(faults("crates/core/src/a.rs", "let x = \"/home/me/x\";"), 1);
        assert_eq!(
            faults("crates/core/src/a.rs", "// See /root/x and /tmp/y."),
            2
        );
        assert_eq!(faults("docs/a.md", "Run `/home/me/run`."), 1);
    }

    #[test]
    fn other_paths_are_allowed() {
        assert_eq!(
            faults("crates/core/src/a.rs", "\"/var/tmp/x\" \"~/home/x\""),
            0
        );
        assert_eq!(faults("crates/core/tests/a.rs", "\"/tmp/x\""), 0);
        assert_eq!(
            faults(
                "crates/core/src/a.rs",
                "#[cfg(test)]\nconst X: &str = \"/tmp/x\";"
            ),
            0
        );
        assert_eq!(
            faults("docs/a.md", "Keys are in `/root/.ssh` of the node."),
            0
        );
    }
}
