//! Terminal escape sequences in text from nodes and hypervisors.

use std::os::unix::fs::PermissionsExt as _;

use homestak_sim::Kind;

use crate::nodes::SshNodes;
use crate::support::mode;
use crate::terminal::run_on_terminal;
use crate::test_pve::TestPve;

/// Writes to the clipboard and clears the screen, with the 7-bit and the 8-bit CSI.
const HOSTILE: &str = "a\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2J\u{9b}2Jz";
/// [`HOSTILE`] as an argument of `printf`.
const PRINTED: &str = r"a\033]52;c;cm0gLXJmIC8=\007\033[2J\302\2332Jz";
/// [`HOSTILE`] as it is shown on a terminal.
const ESCAPED: &str = r"a\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2J\u{9b}2Jz";

/// Whether a text has no control codes but colours and the cursor movements of the live tree.
fn is_harmless(text: &str) -> bool {
    let codes = text.split('\x1b').skip(1);
    let known = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && !matches!(c, '[' | ';'));
        end.is_some_and(|end| rest.starts_with('[') && "mAKJ".contains(&rest[end..=end]))
    };
    let plain = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x1b');
    codes.into_iter().all(known) && !text.contains("[2J") && text.chars().all(plain)
}

/// Installs a program that precedes those of the node in `PATH`.
fn program(nodes: &SshNodes, name: &str, script: &str) {
    let bin = nodes.env.work().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let path = bin.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A node whose commands and journal print hostile text.
fn nodes() -> SshNodes {
    let mut nodes = SshNodes::new();
    program(&nodes, "sudo", "shift; exec \"$@\"");
    program(
        &nodes,
        "journalctl",
        &format!("printf '{PRINTED}\\n'; printf '{PRINTED}\\n' >&2"),
    );
    nodes.serve(1);
    nodes.record("m", "father", &[("web", 1)]);
    nodes
}

const EXEC: [&str; 5] = ["exec", "web", "--", "sh", "-c"];

#[test]
fn output_of_commands_and_logs_is_escaped_on_a_terminal() {
    let nodes = nodes();
    let line = format!("printf '{PRINTED}\\n'; printf '{PRINTED}\\n' >&2");
    let exec: Vec<&str> = EXEC.into_iter().chain([line.as_str()]).collect();
    for arguments in [&exec[..], &["logs", "web"]] {
        let (text, success) = run_on_terminal(&nodes.command(arguments), 24, 200);
        assert!(success, "{text:?}");
        assert_eq!(text.matches(ESCAPED).count(), 2, "{text:?}");
        let bare = text.replace(ESCAPED, "");
        assert!(is_harmless(&bare), "{text:?}");
    }
    let json: Vec<&str> = ["--json-output"].into_iter().chain(exec).collect();
    let (text, _) = run_on_terminal(&nodes.command(&json), 24, 200);
    assert!(text.contains(r"\u001b[2J\u009b2Jz"), "{text:?}");
    assert!(is_harmless(&text.replace("[2J", "")), "{text:?}");
}

#[test]
fn output_of_commands_and_logs_is_unchanged_in_a_pipe() {
    let nodes = nodes();
    let line = format!("printf '{PRINTED}\\n'; printf '{PRINTED}\\n' >&2");
    let exec: Vec<&str> = EXEC.into_iter().chain([line.as_str()]).collect();
    let run = nodes.run(&exec);
    assert_eq!(run.out, format!("web | {HOSTILE}\n"));
    assert_eq!(run.err, format!("web | {HOSTILE}\n"));
    // JSON has the same values, and no control characters.
    let json: Vec<&str> = ["--json-output"].into_iter().chain(exec).collect();
    let run = nodes.run(&json);
    assert!(run.out.contains(r"\u001b[2J\u009b2Jz"), "{}", run.out);
    assert!(is_harmless(&run.out.replace("[2J", "")), "{}", run.out);
    let run = nodes.run(&["logs", "web"]);
    assert_eq!(run.out, format!("{HOSTILE}\n"));
    assert_eq!(run.err, format!("{HOSTILE}\n"));
}

#[test]
fn hostile_names_of_foreign_guests_are_escaped() {
    let host = TestPve::quick();
    host.workers(1, "");
    let config = vec![("name".to_owned(), HOSTILE.to_owned())];
    host.pve.put_guest("pve1", Kind::Qemu, 900, config);
    let plan = ["manifest", "plan", "-M", "workers", "-H", "father", "-v"];
    let run = host.run(&plan);
    assert!(
        run.out.contains(&format!("900 {ESCAPED} on")),
        "{}",
        run.out
    );
    assert!(
        !run.out.contains('\x1b') && !run.err.contains('\x1b'),
        "{}",
        run.err
    );
    let (text, _) = run_on_terminal(&host.command(&plan), 24, 200);
    assert!(is_harmless(&text.replace(ESCAPED, "")), "{text:?}");
    // In the plan file it is escaped too, and the file is private.
    let file = host.env.work().join("plan.json");
    let out = file.to_str().unwrap();
    let run = host.run(&[&plan[..], &["--out", out]].concat());
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(mode(&file), 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains(r"a\\x1b]52;") && !text.contains(r"\u001b"),
        "{text}"
    );
}
