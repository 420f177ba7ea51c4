//! The content of private files stays on the node: it is neither printed nor stored.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::test_host::{Run, TestHost};

fn write(host: &TestHost, private: &str, public: &str) {
    host.write(
        "postures/free.yaml",
        "ssh: {permit_root_login: \"yes\"}\nsudo: {nopasswd: true}\n",
    );
    host.write(
        "specs/web.yaml",
        &format!(
            "schema_version: 1\naccess:\n  posture: free\n  users: [{{name: ops, sudo: true}}]\nconfig:\n  files:\n    \
             - {{path: /etc/app.conf, mode: \"0640\", content: \"password = {private}\\n\"}}\n    \
             - {{path: /etc/motd, content: \"{public}\\n\"}}\n"
        ),
    );
    host.manifest("lab", "  - {name: web, spec: web}\n");
}

/// Everything that was printed.
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

fn contains_bytes(bytes: &[u8], part: &str) -> bool {
    bytes
        .windows(part.len())
        .any(|window| window == part.as_bytes())
}

#[test]
fn content_of_private_files_is_neither_printed_nor_stored() {
    let Some(host) = crate::host() else { return };
    let mut printed = Printed::default();
    let out = host.state().with_file_name("plan.json");
    let file = out.to_str().unwrap();
    write(&host, "first-7f3a", "public-first");
    let more = ["--yes", "-vvv", "--events"];
    printed.add(&host.manifest_run("apply", "lab", &more));
    // Changed by the spec, then on the node.
    write(&host, "second-7f3a", "public-second");
    for change in ["true", "echo theirs-7f3a | sudo tee /etc/app.conf"] {
        host.inside("web", change).good();
        let shown = printed.add(&host.manifest_run("plan", "lab", &["-v", "--out", file]));
        for part in [
            "content differs (not shown: mode 0640",
            "- public-first",
            "+ public-second",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        printed.add(&host.manifest_run("plan", "lab", &["--json-output"]));
        printed.add(&host.run(&["spec", "diff", "web", "-v"]));
        let json = host.run(&["spec", "diff", "web", "--json-output"]);
        assert!(printed.add(&json).contains("not shown: mode 0640"));
        printed.0 += &std::fs::read_to_string(&out).unwrap();
        let mode = std::fs::metadata(&out).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let applied = printed.add(&host.manifest_run("apply", "lab", &more));
    for part in ["locked", "program=\"ssh\"", "check{node=\"web\"}"] {
        assert!(applied.contains(part), "{part}: {applied}");
    }
    let on_node = host.inside("web", "sudo cat /etc/app.conf").good();
    assert_eq!(on_node, "password = second-7f3a\n");
    // What the node itself reports and logs.
    let output = host.inside(
        "web",
        "echo theirs-7f3a | sudo tee /etc/app.conf >/dev/null
         sudo homestak config apply --spec /usr/local/etc/homestak/state/spec.yaml -vvv 2>&1
         sudo homestak status; sudo journalctl -u 'homestak*'",
    );
    let output = output.good();
    assert!(output.contains("DEBUG apply{"), "{output}");
    printed.0 += &output;
    // Not even a digest: short secrets can be guessed from it.
    let digest = host.inside("web", "sudo sha256sum /etc/app.conf").good();
    host.destroy("lab");
    let tested = host.manifest_run("test", "lab", &["--yes", "-vvv"]);
    assert_eq!(tested.code, 0, "{}", tested.err);
    printed.add(&tested);
    for part in ["7f3a", &digest[..64]] {
        assert!(!printed.0.contains(part), "{part}: {}", printed.0);
    }
    let mode = std::fs::metadata(host.state())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    for (path, mode) in files(&host.state()) {
        let is_public = path.extension().is_some_and(|end| end == "pub");
        assert!(
            is_public || mode & 0o077 == 0,
            "{mode:o}: {}",
            path.display()
        );
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            for part in ["7f3a", "public-first", "public-second"] {
                assert!(
                    !contains_bytes(&bytes, part),
                    "{part} in {}",
                    path.display()
                );
            }
        }
    }
    host.assert_unchanged();
}

#[test]
fn text_from_a_node_is_escaped_wherever_it_is_shown() {
    let Some(host) = crate::host() else { return };
    write(&host, "x", "motd");
    host.apply("lab");
    // A key comment that writes the clipboard, and a name that clears the screen.
    let hostile = "line=$(printf 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEve eve\\033]52;c;eA==\\007\\033[2J')\n\
                   echo \"$line\" | sudo tee -a /root/.ssh/authorized_keys ~/.ssh/authorized_keys >/dev/null\n\
                   name=$(printf '/etc/sudoers.d/x\\033[2J')\n\
                   echo 'ops ALL=(ALL) NOPASSWD: ALL' | sudo tee \"$name\" >/dev/null";
    host.inside("web", hostile).good();
    write(&host, "x", "another motd");
    let escaped = r"eve\x1b]52;c;eA==\x07\x1b[2J";
    let check =
        "sudo homestak-agent config check --spec /usr/local/etc/homestak/state/spec.yaml 2>&1";
    let on_node = host.inside("web", check);
    let plan = host.manifest_run("plan", "lab", &["-v"]);
    let diff = host.run(&["spec", "diff", "web"]);
    for run in [&on_node, &plan, &diff] {
        let output = format!("{}{}", run.out, run.err);
        assert!(output.contains(escaped), "{output:?}");
        assert!(
            !output.contains('\x1b') && !output.contains('\x07'),
            "{output:?}"
        );
    }
    let applied = host.manifest_run("apply", "lab", &["--yes", "-v"]);
    let output = format!("{}{}", applied.out, applied.err);
    assert!(output.contains(escaped), "{output:?}");
    assert!(
        !output.contains('\x1b') && !output.contains('\x07'),
        "{output:?}"
    );
    for (path, _) in files(&host.state()) {
        let is_text = path.is_file() && !path.ends_with("journal.db");
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(
            !is_text || !contains_bytes(&bytes, "\x1b]52"),
            "{}",
            path.display()
        );
    }
    host.destroy("lab");
    host.assert_unchanged();
}
