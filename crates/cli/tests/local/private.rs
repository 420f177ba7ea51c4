//! What is in files that not everyone may read stays on the node: nothing of it is printed or stored.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::bed::{Bed, Run};

fn write(bed: &Bed, private: &str, public: &str) {
    bed.write(
        "postures/free.yaml",
        "ssh: {permit_root_login: \"yes\"}\nsudo: {nopasswd: true}\n",
    );
    bed.write(
        "specs/web.yaml",
        &format!(
            "schema_version: 1\naccess:\n  posture: free\n  users: [{{name: ops, sudo: true}}]\nconfig:\n  files:\n    \
             - {{path: /etc/app.conf, mode: \"0640\", content: \"password = {private}\\n\"}}\n    \
             - {{path: /etc/motd, content: \"{public}\\n\"}}\n"
        ),
    );
    bed.manifest("lab", "  - {name: web, spec: web}\n");
}

/// Everything that was printed, and a check of it.
#[derive(Default)]
struct Printed(String);

impl Printed {
    fn add(&mut self, run: &Run) -> String {
        self.0 += &run.out;
        self.0 += &run.err;
        format!("{}{}", run.out, run.err)
    }
}

/// Returns the files under a directory, with their modes.
fn files(directory: &Path) -> Vec<(std::path::PathBuf, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            found.extend(files(&path));
        }
        if metadata.is_file() || metadata.is_dir() {
            found.push((path, metadata.permissions().mode() & 0o777));
        }
    }
    found
}

fn holds(bytes: &[u8], part: &str) -> bool {
    bytes
        .windows(part.len())
        .any(|window| window == part.as_bytes())
}

#[test]
fn content_that_not_everyone_may_read_is_neither_printed_nor_stored() {
    let Some(bed) = crate::new_bed() else { return };
    let mut printed = Printed::default();
    let out = bed.state().with_file_name("plan.json");
    let file = out.to_str().unwrap();
    write(&bed, "first-7f3a", "public-first");
    let more = ["--yes", "-v", "--events"];
    printed.add(&bed.manifest_run("apply", "lab", &more));
    // Another spec, and someone on the node.
    write(&bed, "second-7f3a", "public-second");
    for change in ["true", "echo theirs-7f3a | sudo tee /etc/app.conf"] {
        bed.inside("web", change).good();
        let shown = printed.add(&bed.manifest_run("plan", "lab", &["-v", "--out", file]));
        for part in [
            "content differs (not shown: mode 0640",
            "- public-first",
            "+ public-second",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        printed.add(&bed.manifest_run("plan", "lab", &["--json-output"]));
        printed.add(&bed.run(&["spec", "diff", "web", "-v"]));
        let json = bed.run(&["spec", "diff", "web", "--json-output"]);
        assert!(printed.add(&json).contains("not shown: mode 0640"));
        printed.0 += &std::fs::read_to_string(&out).unwrap();
        let mode = std::fs::metadata(&out).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    printed.add(&bed.manifest_run("apply", "lab", &more));
    let on_node = bed.inside("web", "sudo cat /etc/app.conf").good();
    assert_eq!(on_node, "password = second-7f3a\n");
    // What the node itself says of a change, and of one that it only reports.
    let said = bed.inside(
        "web",
        "sudo homestak status; sudo journalctl -u 'homestak*'",
    );
    printed.0 += &said.good();
    // Not even a digest: short secrets can be guessed from it.
    let digest = bed.inside("web", "sudo sha256sum /etc/app.conf").good();
    bed.destroy("lab");
    let tested = bed.manifest_run("test", "lab", &["--yes", "-v"]);
    assert_eq!(tested.code, 0, "{}", tested.err);
    printed.add(&tested);
    for part in ["7f3a", &digest[..64]] {
        assert!(!printed.0.contains(part), "{part}: {}", printed.0);
    }
    let mode = std::fs::metadata(bed.state()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    for (path, mode) in files(&bed.state()) {
        let is_public = path.extension().is_some_and(|end| end == "pub");
        assert!(
            is_public || mode & 0o077 == 0,
            "{mode:o}: {}",
            path.display()
        );
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            for part in ["7f3a", "public-first", "public-second"] {
                assert!(!holds(&bytes, part), "{part} in {}", path.display());
            }
        }
    }
    bed.is_as_before();
}

#[test]
fn what_a_node_says_of_itself_is_escaped_wherever_it_is_shown() {
    let Some(bed) = crate::new_bed() else { return };
    write(&bed, "x", "motd");
    bed.apply("lab");
    // A key comment that writes the clipboard, and a name that clears the screen.
    let hostile = "line=$(printf 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEve eve\\033]52;c;eA==\\007\\033[2J')\n\
                   echo \"$line\" | sudo tee -a /root/.ssh/authorized_keys ~/.ssh/authorized_keys >/dev/null\n\
                   name=$(printf '/etc/sudoers.d/x\\033[2J')\n\
                   echo 'ops ALL=(ALL) NOPASSWD: ALL' | sudo tee \"$name\" >/dev/null";
    bed.inside("web", hostile).good();
    write(&bed, "x", "another motd");
    let escaped = r"eve\x1b]52;c;eA==\x07\x1b[2J";
    let check =
        "sudo homestak-agent config check --spec /usr/local/etc/homestak/state/spec.yaml 2>&1";
    let on_node = bed.inside("web", check);
    let plan = bed.manifest_run("plan", "lab", &["-v"]);
    let diff = bed.run(&["spec", "diff", "web"]);
    for run in [&on_node, &plan, &diff] {
        let said = format!("{}{}", run.out, run.err);
        assert!(said.contains(escaped), "{said:?}");
        assert!(!said.contains('\x1b') && !said.contains('\x07'), "{said:?}");
    }
    let applied = bed.manifest_run("apply", "lab", &["--yes", "-v"]);
    let said = format!("{}{}", applied.out, applied.err);
    assert!(said.contains(escaped), "{said:?}");
    assert!(!said.contains('\x1b') && !said.contains('\x07'), "{said:?}");
    for (path, _) in files(&bed.state()) {
        let is_text = path.is_file() && !path.ends_with("journal.db");
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(!is_text || !holds(&bytes, "\x1b]52"), "{}", path.display());
    }
    bed.destroy("lab");
    bed.is_as_before();
}
