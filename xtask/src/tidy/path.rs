//! Paths of somebody's machine.
//!
//! In: a file. Out: a fault for each path that exists on one machine only.
//! Never: judging tests and cases; those make paths up.

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
    let judged = prose || file.is_source() || file.ends_in(&["toml", "yaml", "yml", "sh"]);
    // This file is about such paths.
    if !judged || file.is_test() || file.path == "xtask/src/tidy/path.rs" {
        return;
    }
    for line in lines(file) {
        for (path, instead, in_prose) in PATHS {
            let judged = !line.test && !line.excused && (*in_prose || file.is_source());
            if judged && starts(line.text, path) {
                let message = format!("`{path}` is a path of one machine, {instead}");
                faults.push(Fault::new(&file.path, line.number, message));
            }
        }
    }
}

/// Returns whether a path starts so: `/srv/home/` is another path, `https://x/home/` none.
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
    fn paths_of_a_machine_are_found() {
        assert_eq!(faults("crates/core/src/a.rs", "let x = \"/home/me/x\";"), 1);
        assert_eq!(
            faults("crates/core/src/a.rs", "// See /root/x and /tmp/y."),
            2
        );
        assert_eq!(faults("docs/a.md", "Run `/home/me/run`."), 1);
    }

    #[test]
    fn other_paths_are_left_alone() {
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
