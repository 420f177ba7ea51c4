//! Changes that could make the node unreachable are kept if they are confirmed, and reverted if not.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::test_host::{SshConnection, text};
use crate::test_node::{AGENT, KEY, STATE, TestNode, result};

/// Checks that nothing awaits confirmation, and no copies are left.
fn nothing_is_unconfirmed(node: &TestNode) {
    let left = node.root(&format!(
        "find /etc/systemd/system -name 'homestak-undo-*'; ls -d {STATE}/unconfirmed {STATE}/jobs/*/before {STATE}/jobs/*/undo.json 2>/dev/null || true"
    ));
    assert_eq!(left.good(), "");
}

/// Checks that a job was reverted and the node is as before, and returns the message.
fn reverted(node: &TestNode, id: &str, before: &[String], spec: &Value) -> String {
    let (code, events) = node.follow(&format!("--id {id}"));
    assert_eq!(code, 2, "{id}: {events:#?}");
    let kinds: Vec<String> = events.iter().map(|event| text(&event["event"])).collect();
    assert!(kinds.contains(&"reverted".to_owned()), "{id}: {events:#?}");
    let status = node.status();
    assert_eq!(status["failed"]["message"], result(&events)["message"]);
    assert_eq!(status["failed"]["error"], result(&events)["error"]);
    let after: BTreeSet<String> = node.system_snapshot().into_iter().collect();
    let before: BTreeSet<String> = before.iter().cloned().collect();
    let differs: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(differs.is_empty(), "{id}: {differs:#?}");
    nothing_is_unconfirmed(node);
    assert_ne!(
        node.check(spec),
        [""; 0],
        "{id}: the difference is reported"
    );
    let confirmation = node.root(&format!("{AGENT} job confirm --id {id}"));
    assert_eq!(confirmation.code, 1, "{}", confirmation.err);
    text(&result(&events)["message"])
}

/// Returns whether a job was reverted already; the machine may be slow.
fn is_reverted(node: &TestNode, id: &str) -> bool {
    let run = node.root(&format!("grep -q reverted {STATE}/jobs/{id}/events"));
    run.code == 0
}

/// Another address in the network of the node.
fn other_address(spec: &Value) -> String {
    let address = text(&spec["network"]["ip"]);
    let (start, _) = address.rsplit_once('.').unwrap();
    format!("{start}.251/20")
}

#[test]
fn confirmed_changes_are_kept_and_unconfirmed_ones_reverted() {
    let Some(node) = TestNode::new() else { return };
    let first = node.spec("local");
    // The first apply of a node can be reverted too.
    let untouched = node.system_snapshot();
    let packages = json!(["sudo", "openssh-server"]);
    let mut early = first.clone();
    early["platform"]["packages"] = packages;
    early["platform"]["services"] = json!({});
    early["config"]["timezone"].take();
    early["config"].as_object_mut().unwrap().remove("timezone");
    node.begin("--id early --confirm 1", &early, SshConnection::Shared)
        .end();
    let message = reverted(&node, "early", &untouched, &early);
    assert!(message.contains("not confirmed within 1 s"), "{message}");
    assert!(message.contains("create user alice"), "{message}");
    node.apply(&first);
    // Files of the reverted user may be left, so its ids are not reused.
    let retired = node.root(&format!("cat {STATE}/retired-user")).good();
    let alice = node.root("id -u alice").good();
    let mut ids = retired.split_whitespace();
    assert!(ids.all(|id| id != alice.trim()), "{alice} {retired}");
    let before = node.system_snapshot();

    confirmed(&node, &first);
    node.apply(&first);
    // A created account is kept, but locked.
    let before_dave = before;
    let before = node.system_snapshot();
    assert_ne!(before, before_dave);

    // The SSH server at another port.
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["port"] = json!(2222);
    let mut job = node.begin("--id port --confirm 3", &spec, SshConnection::Shared);
    job.until("confirm");
    let reached = node.run_separately("true").code == 0;
    assert!(!reached || is_reverted(&node, "port"), "still reachable");
    drop(job);
    let message = reverted(&node, "port", &before, &spec);
    assert!(
        message.contains("write /etc/ssh/sshd_config.d/"),
        "{message}"
    );

    // What fails for a while, for example without free processes, is reverted later.
    node.root("systemd-run --quiet sh -c 'until test -e /run/away; do sleep 0.1; done; sleep 10; mv /usr/bin/systemctl.away /usr/bin/systemctl; rm /run/away'").good();
    let mut job = node.begin("--id later --confirm 2", &spec, SshConnection::Shared);
    job.until("confirm");
    node.root("mv /usr/bin/systemctl /usr/bin/systemctl.away; touch /run/away")
        .good();
    drop(job);
    let message = reverted(&node, "later", &before, &spec);
    assert!(!message.contains("could not be reverted"), "{message}");

    // The driver's own sudo rule and account.
    let mut spec = first.clone();
    let ops = json!({ "name": "ops", "sudo": false, "ssh_keys": [KEY] });
    spec["access"]["users"].as_array_mut().unwrap().push(ops);
    let mut job = node.begin("--id sudo --confirm 3", &spec, SshConnection::Shared);
    job.until("confirm");
    let can_sudo = node.host.run_with_input("web", "sudo -n true", b"").code == 0;
    assert!(
        !can_sudo || is_reverted(&node, "sudo"),
        "still can use sudo"
    );
    drop(job);
    reverted(&node, "sudo", &before, &spec);

    node.host.destroy("lab");
}

#[test]
fn an_unreachable_node_is_reverted_even_if_the_agent_is_killed_or_the_node_restarts() {
    let Some(mut node) = TestNode::new() else {
        return;
    };
    let first = node.spec("local");
    node.apply(&first);
    let before = node.system_snapshot();

    // Another address, gateway and name server.
    let mut spec = first.clone();
    spec["network"]["ip"] = json!(other_address(&first));
    spec["network"]["gateway"] = json!(other_address(&first).replace("251/20", "252"));
    spec["network"]["dns"] = json!(["192.0.2.1"]);
    let network = "ip -4 route show default; ip -br -4 address show eth0; cat /etc/resolv.conf";
    let was = node.root(network).good();
    let mut job = node.begin("--id network --confirm 2", &spec, SshConnection::New);
    job.until("changes");
    let (code, _) = node.follow("--id network");
    assert_eq!(code, 2);
    drop(job);
    node.host.open_shared_connection("web");
    reverted(&node, "network", &before, &spec);
    assert_eq!(node.root(network).good(), was);

    // A failed job is reverted at once.
    node.root("printf '[Service]\\nType=oneshot\\nExecStart=/bin/false\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; systemctl daemon-reload").good();
    let with_unit = node.system_snapshot();
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["permit_root_login"] = json!("no");
    spec["platform"]["services"]["enable"] = json!(["cron", "bad"]);
    node.begin("--id bad --confirm 60", &spec, SshConnection::Shared)
        .end();
    let message = reverted(&node, "bad", &with_unit, &spec);
    assert!(message.contains("start bad.service"), "{message}");
    assert!(message.contains("journalctl -u bad.service"), "{message}");
    node.root(
        "rm /etc/systemd/system/bad.service; systemctl daemon-reload; systemctl reset-failed",
    )
    .good();

    killed_or_restarted(&mut node, &first, &before);

    // Applied and confirmed manually.
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["permit_root_login"] = json!("no");
    let command = format!("sudo {AGENT} config apply --json-output --confirm 60 --spec -");
    let input = spec.to_string();
    let mut apply =
        node.host
            .command_with_input("web", &command, input.as_bytes(), SshConnection::Shared);
    apply.stdout(std::process::Stdio::piped());
    let apply = apply.spawn().unwrap();
    until_confirmed(&node, "config confirm");
    let output = apply.wait_with_output().unwrap();
    assert!(output.status.success());
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["kind"], "config.apply");
    assert_eq!(node.check(&spec), [""; 0]);
    nothing_is_unconfirmed(&node);
    node.host.destroy("lab");
}

fn until_confirmed(node: &TestNode, words: &str) {
    for _ in 0..100 {
        if node.root(&format!("{AGENT} {words}")).code == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("nothing to confirm");
}

fn confirmed(node: &TestNode, first: &Value) {
    let mut spec = first.clone();
    let dave = json!({ "name": "dave", "sudo": true, "ssh_keys": [KEY] });
    spec["access"]["users"].as_array_mut().unwrap().push(dave);
    let mut job = node.begin("--id stays --confirm 60", &spec, SshConnection::Shared);
    assert_eq!(job.until("confirm")["within"], 60);
    // Another run is refused meanwhile.
    let run = node.agent("config apply", first);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("job confirm --id stays"), "{}", run.err);
    let confirm = format!("sudo {AGENT} job confirm --id stays");
    node.run_separately(&confirm).good();
    let (code, events) = job.end();
    assert_eq!(code, 0, "{events:#?}");
    assert_eq!(result(&events)["users"], 3);
    node.run_separately(&confirm).good();
    node.root("runuser -u dave -- sudo -n true").good();
    assert_eq!(node.status()["status"], "complete");
    assert_eq!(node.check(&spec), [""; 0]);
    nothing_is_unconfirmed(node);
}

fn killed_or_restarted(node: &mut TestNode, first: &Value, before: &[String]) {
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["permit_root_login"] = json!("no");
    spec["access"]["users"][1]["sudo"] = json!(true);
    spec["identity"]["hostname"] = json!("other");
    let waiting = |node: &TestNode, id: &str, seconds: u32| {
        let words = format!("--id {id} --confirm {seconds}");
        let mut job = node.begin(&words, &spec, SshConnection::Shared);
        job.until("confirm");
        job.disconnect();
    };
    // Both the worker and the unit that reverts are killed.
    waiting(node, "killed", 3);
    node.root(
        "systemctl kill -s KILL homestak-job-killed || true; systemctl kill -s KILL homestak-undo-killed || true",
    )
    .good();
    let message = reverted(node, "killed", before, &spec);
    assert!(message.contains("not confirmed within 3 s"), "{message}");

    // Killed between two steps, it is reverted at once.
    let command =
        format!("sudo env HOMESTAK_CRASH_AFTER=4 {AGENT} job run --id crash --confirm 60");
    let input = spec.to_string();
    node.host
        .run_with_input("web", &command, input.as_bytes())
        .bad();
    let message = reverted(node, "crash", before, &spec);
    assert!(
        message.contains("the agent was killed before the changes were confirmed"),
        "{message}"
    );

    // The node restarts while it is unreachable.
    let mut lost = spec.clone();
    lost["network"]["ip"] = json!(other_address(first));
    lost["network"]["gateway"] = json!(other_address(first).replace("251/20", "252"));
    node.root(&format!("systemd-run --quiet sh -c 'until test -e {STATE}/jobs/restart/asked.json; do sleep 0.2; done; systemctl reboot'")).good();
    let mut job = node.begin("--id restart --confirm 600", &lost, SshConnection::New);
    job.until("changes");
    node.follow("--id restart");
    job.disconnect();
    node.host.open_shared_connection("web");
    let message = reverted(node, "restart", before, &lost);
    assert!(
        message.contains("the node was restarted before the changes were confirmed"),
        "{message}"
    );

    // Killed and confirmed afterwards: the changes are kept.
    waiting(node, "late", 60);
    node.root("systemctl kill -s KILL homestak-job-late").good();
    node.root(&format!("{AGENT} job confirm --id late")).good();
    let (code, events) = node.follow("--id late");
    assert_eq!(code, 0, "{events:#?}");
    assert_eq!(node.check(&spec), [""; 0]);
    nothing_is_unconfirmed(node);
    node.apply(first);
}
