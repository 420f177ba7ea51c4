//! Looking around in nodes: shells, commands, consoles, logs.

use std::io::Write as _;
use std::process::Stdio;

use crate::bed::{Bed, Run};

/// Runs with something on stdin.
fn typed(bed: &Bed, arguments: &[&str], input: &str) -> Run {
    let mut child = bed
        .command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().map(Run::from).unwrap()
}

#[test]
fn nodes_are_looked_into_with_and_without_ssh() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("two", 2);
    bed.apply("two");
    let said = bed.run(&["ssh", "peer-1", "--", "hostname; id -un; exit 6"]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (6, "peer-1\nops\n"),
        "{}",
        said.err
    );
    let said = bed
        .run(&["exec", "peer-*", "--", "sudo", "-n", "hostname"])
        .good();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["peer-1 | peer-1", "peer-2 | peer-2"]);
    let logged = "logger --tag marked --id=1 a line of the journal && sync";
    bed.run(&["ssh", "peer-1", "--", logged]).good();
    let logs = bed.run(&["logs", "peer-1", "-n", "500"]).good();
    assert!(logs.contains("a line of the journal"), "{logs}");
    assert!(logs.contains("Reached target"), "the console: {logs}");
    let logs = bed
        .run(&["logs", "peer-1", "-n", "1", "--json-output"])
        .json();
    for part in ["console", "journal"] {
        assert_eq!(logs[part].as_array().unwrap().len(), 1, "{logs}");
    }
    // Without SSH, also none that was kept.
    let said = typed(
        &bed,
        &["console", "peer-2"],
        "systemctl stop ssh; pkill -x sshd; hostname; id -un; exit 5\n",
    );
    assert_eq!(
        (said.code, said.out.as_str()),
        (5, "peer-2\nroot\n"),
        "{}",
        said.err
    );
    let refused = bed.run(&["ssh", "peer-2", "--", "true"]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(
        refused.err.contains("`peer-2` is not reachable"),
        "{}",
        refused.err
    );
    assert!(
        refused.err.contains("homestak console peer-2"),
        "{}",
        refused.err
    );
    let said = typed(&bed, &["console", "peer-2"], "systemctl start ssh\n");
    assert_eq!(said.code, 0, "{}", said.err);
    bed.run(&["ssh", "peer-2", "--", "true"]).good();
    bed.destroy("two");
    bed.is_as_before();
}

#[test]
fn a_console_at_a_terminal_has_a_terminal_of_the_node() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    let program = env!("CARGO_BIN_EXE_homestak");
    let line = format!("stty rows 33 cols 99; exec {program} console peer-1");
    let mut command = std::process::Command::new("script");
    command
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .envs(
            bed.command(&[])
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(b"echo at $(tty) in $(hostname) of $(stty size); exit 9\n")
        .unwrap();
    let said = Run::from(child.wait_with_output().unwrap());
    assert!(said.out.contains("at /dev/pts/"), "{}", said.out);
    assert!(said.out.contains("in peer-1 of 33 99"), "{}", said.out);
    assert_eq!(said.code, 9, "{}", said.out);
    drop(stdin);
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn one_who_follows_logs_and_is_killed_leaves_nothing_in_the_node() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    let mut following = bed
        .command(&["logs", "peer-1", "--follow", "-n", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let count = || {
        let counted = bed.run(&["ssh", "peer-1", "--", "pgrep -c journalctl"]);
        counted.out.trim().to_owned()
    };
    let wait_for = |number: &str| {
        for _ in 0..200 {
            if count() == number {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{} processes read the journal", count());
    };
    wait_for("1");
    following.kill().unwrap();
    following.wait().unwrap();
    wait_for("0");
    bed.destroy("one");
    bed.is_as_before();
}
