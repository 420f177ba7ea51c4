//! Text of nodes and hypervisors that a terminal would obey: clipboard, screen, title.

use std::os::unix::fs::PermissionsExt as _;

use homestak_sim::Kind;

use crate::father::Father;
use crate::nodes::Lab;
use crate::support::mode;
use crate::terminal::shown;

/// Writes to the clipboard, clears the screen, in one character and in two.
const HOSTILE: &str = "a\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2J\u{9b}2Jz";
/// The same for `printf`.
const PRINTED: &str = r"a\033]52;c;cm0gLXJmIC8=\007\033[2J\302\2332Jz";
/// What is shown instead.
const ESCAPED: &str = r"a\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2J\u{9b}2Jz";

/// Nothing but colours, and what the live tree moves with.
fn is_harmless(text: &str) -> bool {
    let codes = text.split('\x1b').skip(1);
    let known = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && !matches!(c, '[' | ';'));
        end.is_some_and(|end| rest.starts_with('[') && "mAKJ".contains(&rest[end..=end]))
    };
    let plain = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x1b');
    codes.into_iter().all(known) && !text.contains("[2J") && text.chars().all(plain)
}

/// Puts a program in front of those of the node.
fn program(lab: &Lab, name: &str, script: &str) {
    let bin = lab.world.work().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let path = bin.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A node whose commands and journal are hostile.
fn lab() -> Lab {
    let mut lab = Lab::new();
    program(&lab, "sudo", "shift; exec \"$@\"");
    program(
        &lab,
        "journalctl",
        &format!("printf '{PRINTED}\\n'; printf '{PRINTED}\\n' >&2"),
    );
    lab.serve(1);
    lab.remember("m", "father", &[("web", 1)]);
    lab
}

const EXEC: [&str; 5] = ["exec", "web", "--", "sh", "-c"];

#[test]
fn commands_and_logs_are_escaped_on_a_terminal() {
    let lab = lab();
    let line = format!("printf '{PRINTED}\\n'; printf '{PRINTED}\\n' >&2");
    let exec: Vec<&str> = EXEC.into_iter().chain([line.as_str()]).collect();
    for arguments in [&exec[..], &["logs", "web"]] {
        let (text, success) = shown(&lab.command(arguments), 24, 200);
        assert!(success, "{text:?}");
        assert_eq!(text.matches(ESCAPED).count(), 2, "{text:?}");
        let bare = text.replace(ESCAPED, "");
        assert!(is_harmless(&bare), "{text:?}");
    }
    let json: Vec<&str> = ["--json-output"].into_iter().chain(exec).collect();
    let (text, _) = shown(&lab.command(&json), 24, 200);
    assert!(text.contains(r"\u001b[2J\u009b2Jz"), "{text:?}");
    assert!(is_harmless(&text.replace("[2J", "")), "{text:?}");
}

#[test]
fn commands_and_logs_are_as_they_came_in_a_pipe() {
    let lab = lab();
    let line = format!("printf '{PRINTED}\\n'; printf '{PRINTED}\\n' >&2");
    let exec: Vec<&str> = EXEC.into_iter().chain([line.as_str()]).collect();
    let run = lab.run(&exec);
    assert_eq!(run.out, format!("web | {HOSTILE}\n"));
    assert_eq!(run.err, format!("web | {HOSTILE}\n"));
    let run = lab.run(&["logs", "web"]);
    assert_eq!(run.out, format!("{HOSTILE}\n"));
    assert_eq!(run.err, format!("{HOSTILE}\n"));
}

#[test]
fn a_guest_of_others_with_a_hostile_name_is_shown_escaped() {
    let father = Father::quick();
    father.workers(1, "");
    let config = vec![("name".to_owned(), HOSTILE.to_owned())];
    father.pve.put_guest("pve1", Kind::Qemu, 900, config);
    let plan = ["manifest", "plan", "-M", "workers", "-H", "father", "-v"];
    let run = father.run(&plan);
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
    let (text, _) = shown(&father.command(&plan), 24, 200);
    assert!(is_harmless(&text.replace(ESCAPED, "")), "{text:?}");
    // Stored, it is escaped as well, and only its owner reads it.
    let file = father.site.work().join("plan.json");
    let out = file.to_str().unwrap();
    let run = father.run(&[&plan[..], &["--out", out]].concat());
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(mode(&file), 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains(r"a\\x1b]52;") && !text.contains(r"\u001b"),
        "{text}"
    );
}
