//! Drift: changes on a node are detected at once, and corrected, reported or ignored according to its
//! spec.

use std::time::Duration;

use serde_json::{Value, json};

use crate::test_host::text;
use crate::test_node::{AGENT, STATE, TestNode};

/// How each kind of resource is changed, and the field that must be corrected.
const CHANGES: &[(&str, &str, &str)] = &[
    ("file", "echo other >/etc/motd", "file:/etc/motd/content"),
    (
        "file replaced",
        "echo other >/etc/new; mv /etc/new /etc/motd",
        "file:/etc/motd/content",
    ),
    ("file removed", "rm /etc/motd", "file:/etc/motd/content"),
    ("mode", "chmod 600 /etc/motd", "file:/etc/motd/mode"),
    (
        "file in a new directory",
        "rm -r /etc/deep",
        "file:/etc/deep/er/own/content",
    ),
    (
        "keys",
        "rm -r /home/alice/.ssh",
        "keys:alice//home/alice/.ssh",
    ),
    (
        "foreign key",
        "echo 'ssh-ed25519 AAAAforeign eve' >>/home/alice/.ssh/authorized_keys",
        "keys:alice/ssh-ed25519 ...5519 AAAAforeign",
    ),
    (
        "sshd",
        "echo PermitRootLogin no >/etc/ssh/sshd_config.d/00-homestak.conf",
        "sshd/PermitRootLogin",
    ),
    (
        "sudo rule",
        "rm /etc/sudoers.d/homestak-alice",
        "sudo:alice/rule",
    ),
    (
        "another sudo rule",
        "echo 'bob ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/zz",
        "sudo:bob/rule",
    ),
    ("group", "gpasswd -a bob sudo", "sudo:bob/rule"),
    (
        "sudo rule for a number",
        "echo \"#$(id -u bob) ALL=(ALL) NOPASSWD: ALL\" >/etc/sudoers.d/zz",
        "sudo:bob/rule",
    ),
    (
        "sudo rule for an alias",
        "printf 'User_Alias CREW = bob, %%nobody\\nCREW ALL=(ALL) ALL\\n' >/etc/sudoers.d/zz",
        "sudo:bob/rule",
    ),
    (
        "sudo rule for the own group",
        "echo '%bob ALL=(ALL) ALL' >/etc/sudoers.d/zz",
        "sudo:bob/rule",
    ),
    (
        "foreign key in the second file",
        "echo 'ssh-ed25519 AAAAsecond eve' >/home/alice/.ssh/authorized_keys2",
        "keys:alice/ssh-ed25519 ...25519 AAAAsecond",
    ),
    (
        "account",
        "usermod --expiredate 1 alice",
        "user:alice/login",
    ),
    (
        "unit stopped",
        "systemctl stop own",
        "service:own.service/active",
    ),
    (
        "unit disabled",
        "systemctl disable own",
        "service:own.service/enabled",
    ),
    ("host name", "hostname stolen", "hostname/kernel"),
    (
        "address",
        "ip address add 10.9.9.9/24 dev eth0",
        "network/address",
    ),
];

/// A file that is not changed often enough to be put on hold.
const DEEP: &str = "file:/etc/deep/er/own/content";

/// A unit that needs no package.
const OWN: &str =
    "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n";

fn spec(node: &TestNode) -> Value {
    let mut spec = node.spec("dev");
    spec["access"]["_posture"]["packages"] = json!([]);
    spec["platform"] = json!({ "services": { "enable": ["own"], "disable": ["nftables"] } });
    spec["config"]["files"] = json!([
        { "path": "/etc/motd", "content": "managed\n" },
        { "path": "/etc/systemd/system/own.service", "content": OWN },
        { "path": "/etc/deep/er/own", "content": "managed\n" },
        { "path": "/etc/told", "content": "managed\n" },
        { "path": "/etc/fight", "content": "managed\n" },
    ]);
    spec["config"]["converge"]["fields"] = json!({
        "file:/etc/told/*": "report",
        "file:/etc/told/mode": "enforce",
        "service:nftables.service/*": "ignore",
    });
    // The periodic check is too rare to detect anything.
    spec["run"] = json!({ "trigger": "schedule", "interval": "1d" });
    spec
}

/// Waits until the status of the node meets a condition.
pub fn until(node: &TestNode, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut status = Value::Null;
    // A minute and more: other tests may occupy the processors.
    for _ in 0..1_200 {
        status = node.status();
        if holds(&status) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let journal = node.root("journalctl -u homestak-agent -n 40 --no-pager");
    panic!("{what}: {status:#}\n{}", journal.out);
}

fn nanoseconds(value: &Value) -> i128 {
    let at: jiff::Timestamp = text(value).parse().unwrap();
    at.as_nanosecond()
}

/// Changes something, and returns the time.
pub fn change(node: &TestNode, command: &str) -> i128 {
    let message = node.root(&format!("date +%s%N; {command}")).good();
    message.lines().next().unwrap().parse().unwrap()
}

/// Returns the correction of a field after a time.
fn correction(status: &Value, id: &str, after: i128) -> Option<Value> {
    let mut recent = status["drift"]["recent"].as_array().unwrap().iter();
    let is_it = |one: &&Value| one["id"] == id && nanoseconds(&one["seen"]) > after;
    recent.find(is_it).cloned()
}

pub fn is_corrected(node: &TestNode, what: &str, id: &str, after: i128) -> Value {
    let status = until(node, what, |status| correction(status, id, after).is_some());
    correction(&status, id, after).unwrap()
}

fn seconds(from: i128, to: &Value) -> f64 {
    let nanos = nanoseconds(to) - from;
    Duration::from_nanos(u64::try_from(nanos).unwrap()).as_secs_f64()
}

/// Waits until the watch is idle.
fn is_quiet(node: &TestNode) -> u64 {
    let n_checks = |status: &Value| status["drift"]["looks"].as_u64().unwrap();
    let mut before = n_checks(&node.status());
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(1500));
        let now = n_checks(&node.status());
        if now == before {
            return now;
        }
        before = now;
    }
    panic!("checks do not end: {before}");
}

#[test]
fn changes_on_a_node_are_detected_and_corrected_reported_or_ignored() {
    let Some(node) = TestNode::new() else { return };
    let spec = spec(&node);
    node.apply(&spec);
    node.root("systemctl is-active homestak-agent && systemctl is-enabled homestak-agent")
        .good();
    until(&node, "watched", |status| status["watching"] == true);
    // Checks do not trigger further checks.
    is_quiet(&node);
    for (kind, command, id) in CHANGES {
        let at = change(&node, command);
        let corrected = is_corrected(&node, command, id, at);
        let (seen, done) = (
            seconds(at, &corrected["seen"]),
            seconds(at, &corrected["mended"]),
        );
        println!("{kind}: detected after {seen:.2} s, corrected after {done:.2} s");
    }
    assert_eq!(node.check(&spec), [""; 0]);
    reported_and_ignored(&node, &spec);
    two_at_once(&node);
    killed(&node);
    waits_for_the_run_lock(&node);
    let n_checks = is_quiet(&node);
    println!("{n_checks} checks; {}", memory(&node));
    println!(
        "{}",
        node.root(
            "journalctl -u homestak-agent --no-pager -o cat | grep -v ': corrected ' | tail -n 30"
        )
        .out
    );
    assert_eq!(node.status()["status"], "complete");
    node.host.destroy("lab");
}

/// Only fields that the last two specs agree on are corrected.
fn after_a_failed_apply(node: &TestNode, spec: &Value) {
    // An apply that changed nothing.
    let mut wrong = spec.clone();
    wrong["config"]["sysctl"] = json!({ "no.such.key": 1 });
    assert_eq!(node.agent("config apply", &wrong).code, 2);
    let at = change(node, "echo other >/etc/deep/er/own");
    is_corrected(node, "after an apply that changed nothing", DEEP, at);
    assert_eq!(node.status()["status"], "failed");
    // An apply that failed after some steps.
    let mut half = spec.clone();
    half["config"]["files"][0]["content"] = json!("half\n");
    half["config"]["files"].as_array_mut().unwrap().push(json!(
        { "path": "/etc/systemd/system/bad.service", "content": "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n" }
    ));
    half["platform"]["services"]["enable"] = json!(["own", "bad"]);
    assert_eq!(node.agent("config apply", &half).code, 2);
    let at = change(node, "echo other >/etc/deep/er/own");
    is_corrected(node, "after a failed apply", DEEP, at);
    let status = until(node, "trouble", |status| {
        status["drift"]["trouble"]
            .as_str()
            .is_some_and(|message| message.contains("file:/etc/motd"))
    });
    assert_eq!(status["status"], "failed");
    assert_eq!(status["enforcing"], false);
    node.root("test \"$(cat /etc/motd)\" = half; test -e /etc/systemd/system/bad.service")
        .good();
}

fn memory(node: &TestNode) -> String {
    let command = "cat /proc/$(systemctl show -P MainPID homestak-agent)/status | grep -E 'VmRSS|RssAnon' | tr '\\n' ' '";
    node.root(command).good()
}

/// Some fields of a file are corrected and others are not.
fn reported_and_ignored(node: &TestNode, spec: &Value) {
    let content_field = "file:/etc/told/content";
    let mode = "file:/etc/told/mode";
    let at = change(node, "systemctl enable nftables; chmod 600 /etc/told");
    is_corrected(node, "mode", mode, at);
    // The mode of a file whose content is not corrected is not corrected either.
    change(node, "echo other >/etc/told; chmod 600 /etc/told");
    until(node, "mode and content", |status| {
        let is_reported = |id: &str| status["drift"]["open"][id]["handling"] == "report";
        is_reported(content_field) && is_reported(mode)
    });
    node.root("test \"$(stat -c %a /etc/told)\" = 600; chmod 644 /etc/told")
        .good();
    until(node, "content alone", |status| {
        status["drift"]["open"].as_object().unwrap().len() == 1
    });
    let status = node.status();
    assert_eq!(status["drift"]["open"][content_field]["handling"], "report");
    node.root("test \"$(cat /etc/told)\" = other; test \"$(stat -c %a /etc/told)\" = 644")
        .good();
    node.root("systemctl is-enabled nftables").good();
    node.root(&format!(
        "journalctl -u homestak-agent | grep 'only reported id={content_field}'"
    ))
    .good();
    // A check reports it, and does not report ignored fields.
    let run = node.agent("config check --json-output", spec);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(run.code, 3);
    assert_eq!(result["changes"].as_array().unwrap().len(), 1);
    assert_eq!(result["changes"][0]["handling"], "report");
    assert_eq!(result["changes"][0]["since"], "node");
    let run = node.root(&format!("{AGENT} run --once --json-output"));
    assert_eq!(run.code, 3, "{}", run.err);
    // `config apply` corrects it.
    node.apply(spec);
    node.root("test \"$(cat /etc/told)\" = managed").good();
    node.root("systemctl is-enabled nftables").good();
    until(node, "nothing open", |status| {
        status["drift"]["open"].as_object().unwrap().is_empty()
    });
}

fn two_at_once(node: &TestNode) {
    let at = change(node, "echo other >/etc/deep/er/own; systemctl stop own");
    is_corrected(node, "file", DEEP, at);
    is_corrected(node, "unit", "service:own.service/active", at);
}

/// A killed watch is restarted, and detects what changed meanwhile.
fn killed(node: &TestNode) {
    let process = || node.root("systemctl show -P MainPID homestak-agent").good();
    let before = process();
    let at = change(
        node,
        "systemctl kill -s KILL homestak-agent; echo other >/etc/deep/er/own; hostname stolen",
    );
    is_corrected(node, "killed", DEEP, at);
    is_corrected(node, "killed", "hostname/kernel", at);
    assert_ne!(process(), before);
}

/// Drift is not corrected while another run holds the run lock, and right after that it is.
fn waits_for_the_run_lock(node: &TestNode) {
    let held = format!(
        "flock {STATE}/lock sh -c 'echo other >/etc/deep/er/own; sleep 2; cat /etc/deep/er/own'"
    );
    let at = change(node, "true");
    assert_eq!(node.root(&held).good(), "other\n");
    is_corrected(node, "lock", DEEP, at);
}

#[test]
fn repeated_changes_and_failures_are_put_on_hold_and_a_spec_can_disable_the_watch() {
    let Some(node) = TestNode::new() else { return };
    let mut spec = spec(&node);
    node.apply(&spec);
    until(&node, "watched", |status| status["watching"] == true);
    let fight = "file:/etc/fight/content";
    for n in 0..5 {
        let at = change(&node, &format!("echo {n} >/etc/fight"));
        is_corrected(&node, "fight", fight, at);
    }
    // The sixth change is not corrected; others still are.
    let at = change(&node, "echo mine >/etc/fight; echo other >/etc/motd");
    is_corrected(&node, "motd", "file:/etc/motd/content", at);
    let status = node.status();
    assert_eq!(status["drift"]["open"][fight]["handling"], "report");
    node.root("test \"$(cat /etc/fight)\" = mine").good();
    node.root(&format!(
        "journalctl -u homestak-agent | grep 'changes repeatedly.*id={fight}'"
    ))
    .good();

    // A field that cannot be corrected does not prevent others.
    let motd = "file:/etc/motd/content";
    node.root("echo wrong >/run/wrong; mount --bind /run/wrong /etc/motd; mount -o remount,ro,bind /etc/motd").good();
    let at = change(&node, "hostname stolen; touch /etc/motd || true");
    is_corrected(&node, "hostname", "hostname/kernel", at);
    let status = until(&node, "failed", |status| status["status"] == "failed");
    assert_eq!(status["failed"]["phase"], "run");
    let why = text(&status["drift"]["open"][motd]["why"]);
    assert!(why.contains("/etc/motd"), "{status:#}");
    let output = node.root(&format!("{AGENT} status")).good();
    assert!(output.contains("could not be corrected"), "{output}");
    // Once the cause is removed, it is corrected.
    node.root("umount /etc/motd; echo other >/etc/motd").good();
    until(&node, "corrected", |status| status["status"] == "differs");
    node.root("test \"$(cat /etc/motd)\" = managed").good();
    let open = node.status()["drift"]["open"].clone();
    assert_eq!(open.as_object().unwrap().len(), 1, "{open:#}");

    after_a_failed_apply(&node, &spec);

    // After a successful apply, its spec is enforced.
    spec["config"]["files"][0]["content"] = json!("another\n");
    node.apply(&spec);
    let at = change(&node, "echo other >/etc/motd");
    is_corrected(&node, "another", motd, at);
    node.root("test \"$(cat /etc/motd)\" = another").good();

    // Without the watch, nothing of it is left.
    spec["run"] = json!({ "trigger": "manual" });
    node.apply(&spec);
    assert_eq!(node.status()["watching"], false);
    node.root("systemctl is-active homestak-agent").bad();
    node.root("find /etc/systemd -name 'homestak-agent*' | grep .")
        .bad();
    assert_eq!(node.check(&spec), [""; 0]);
    node.root("echo other >/etc/motd; rm -r /etc/deep").good();
    // A watch would have corrected it within this time.
    std::thread::sleep(Duration::from_secs(2));
    let left = node.check(&spec);
    assert!(left.iter().any(|id| id == motd), "{left:?}");
    assert!(left.iter().any(|id| id == DEEP), "{left:?}");
    let output = node.root(&format!("{AGENT} run --once --dry-run")).good();
    assert!(output.contains("would write /etc/motd"), "{output}");
    let run = node
        .root(&format!("{AGENT} run --once --json-output"))
        .json();
    assert_eq!(run["mended"].as_array().unwrap().len(), 2, "{run:#}");
    assert_eq!(node.check(&spec), [""; 0]);
    node.host.destroy("lab");
}
