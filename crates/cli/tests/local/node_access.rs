//! Access to nodes: shells, commands, consoles and logs.

use std::io::Write as _;
use std::process::Stdio;

use crate::test_host::{Run, TestHost};

/// Runs with input on stdin.
fn run_with_input(host: &TestHost, arguments: &[&str], input: &str) -> Run {
    let mut child = host
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
fn ssh_exec_logs_and_console_work_on_nodes() {
    let Some(host) = crate::host() else { return };
    host.peers("two", 2);
    host.apply("two");
    let result = host.run(&["ssh", "peer-1", "--", "hostname; id -un; exit 6"]);
    assert_eq!(
        (result.code, result.out.as_str()),
        (6, "peer-1\nops\n"),
        "{}",
        result.err
    );
    let result = host
        .run(&["exec", "peer-*", "--", "sudo", "-n", "hostname"])
        .good();
    let mut lines: Vec<&str> = result.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["peer-1 | peer-1", "peer-2 | peer-2"]);
    let logged = "logger --tag marked --id=1 a line of the journal && sync";
    host.run(&["ssh", "peer-1", "--", logged]).good();
    let logs = host.run(&["logs", "peer-1", "-n", "500"]).good();
    assert!(logs.contains("a line of the journal"), "{logs}");
    assert!(logs.contains("Reached target"), "the console: {logs}");
    let logs = host
        .run(&["logs", "peer-1", "-n", "1", "--json-output"])
        .json();
    for part in ["console", "journal"] {
        assert_eq!(logs[part].as_array().unwrap().len(), 1, "{logs}");
    }
    // Without SSH, not even a shared connection.
    let result = run_with_input(
        &host,
        &["console", "peer-2"],
        "systemctl stop ssh; pkill -x sshd; hostname; id -un; exit 5\n",
    );
    assert_eq!(
        (result.code, result.out.as_str()),
        (5, "peer-2\nroot\n"),
        "{}",
        result.err
    );
    let refused = host.run(&["ssh", "peer-2", "--", "true"]);
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
    let result = run_with_input(&host, &["console", "peer-2"], "systemctl start ssh\n");
    assert_eq!(result.code, 0, "{}", result.err);
    host.run(&["ssh", "peer-2", "--", "true"]).good();
    host.destroy("two");
    host.assert_unchanged();
}

#[test]
fn a_console_on_a_terminal_gets_a_terminal_of_the_node() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    let program = env!("CARGO_BIN_EXE_homestak");
    let line = format!("stty rows 33 cols 99; exec {program} console peer-1");
    let mut command = std::process::Command::new("script");
    command
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .envs(
            host.command(&[])
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
    let result = Run::from(child.wait_with_output().unwrap());
    assert!(result.out.contains("at /dev/pts/"), "{}", result.out);
    assert!(result.out.contains("in peer-1 of 33 99"), "{}", result.out);
    assert_eq!(result.code, 9, "{}", result.out);
    drop(stdin);
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn killing_logs_follow_leaves_no_process_in_the_node() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    let mut following = host
        .command(&["logs", "peer-1", "--follow", "-n", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let count = || {
        let counted = host.run(&["ssh", "peer-1", "--", "pgrep -c journalctl"]);
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
    host.destroy("one");
    host.assert_unchanged();
}
