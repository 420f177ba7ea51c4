//! A malicious user of a node gains nothing outside their home directory, and cannot prevent the
//! convergence of anything else.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drift::{change, is_corrected, until};
use crate::test_host::{Run, text};
use crate::test_node::{AGENT, KEY, STATE, TestNode, result};

/// The attack.
const ATTACK: &str = include_str!("attack.py");
/// How long the attack lasts.
const DURATION: Duration = Duration::from_secs(30);

/// Files of root that a link could point to.
const TARGET: &str = "mkdir -m 755 /etc/prize; for name in authorized_keys app.conf keep; do echo root >/etc/prize/$name; done; mkdir -p -m 700 /root/.ssh; test -s /root/.ssh/authorized_keys || echo '# root' >/root/.ssh/authorized_keys";

fn spec(node: &TestNode) -> Value {
    let mut spec = node.spec("dev");
    spec["access"]["_posture"]["packages"] = json!([]);
    spec["platform"] = json!({});
    spec["access"]["users"] = json!([
        { "name": "alice", "sudo": false, "ssh_keys": [KEY] },
        { "name": "bob", "sudo": true, "ssh_keys": [KEY] },
    ]);
    spec["config"] = json!({
        "files": [
            { "path": "/etc/motd", "content": "managed\n" },
            { "path": "/home/alice/conf.d/app.conf", "content": "managed\n", "owner": "alice", "group": "alice" },
            { "path": "/home/alice/own/deep/app.conf", "content": "managed\n", "owner": "alice", "mode": "0600" },
        ],
        "converge": { "foreign_keys": "remove" },
    });
    spec["run"] = json!({ "trigger": "schedule", "interval": "1d" });
    spec
}

/// The same without alice.
fn without_alice(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["access"]["users"].as_array_mut().unwrap().remove(0);
    spec["config"]["files"].as_array_mut().unwrap().truncate(1);
    spec
}

/// Returns a snapshot without the files of alice.
fn others_snapshot(node: &TestNode) -> Vec<String> {
    let mut lines = node.system_snapshot();
    lines.retain(|line| !line.contains("home/alice"));
    lines
}

/// Checks that nothing outside the home directory belongs to alice or was changed.
fn is_unharmed(node: &TestNode, before: &[String]) {
    let now = others_snapshot(node);
    let new: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
    let removed: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
    assert!(
        new.is_empty() && removed.is_empty(),
        "{new:#?} instead of {removed:#?}"
    );
    let theirs = node.root("find / -xdev \\( -path /proc -o -path /sys -o -path /home/alice -o -path /tmp \\) -prune -o -user alice -print");
    assert_eq!(theirs.good(), "");
}

/// Runs a command as alice.
fn alice(node: &TestNode, command: &str) -> Run {
    node.root(&format!(
        "cd /home/alice; runuser -u alice -- sh -ec '{command}'"
    ))
}

fn refused(status: &Value, id: &str) -> String {
    text(&status["drift"]["refused"][id])
}

#[test]
fn changes_by_one_user_are_refused_and_everything_else_is_corrected() {
    let Some(node) = TestNode::new() else { return };
    let spec = spec(&node);
    node.root(TARGET).good();
    node.apply(&spec);
    until(&node, "watched", |status| status["watching"] == true);
    let before = others_snapshot(&node);
    only_root_can_read_state_and_locks(&node);
    is_secured_by_an_upgrade(&node, &spec);
    does_not_affect_others(&node, &spec);

    // A file where a directory should be, and directories that are links.
    alice(
        &node,
        "rm -r .ssh; mv conf.d old; touch .ssh; ln -s /etc/prize conf.d",
    )
    .good();
    let keys = "keys:alice//home/alice/.ssh";
    let conf = "file:/home/alice/conf.d/app.conf/content";
    let status = until(&node, "refused", |status| {
        let refused = &status["drift"]["refused"];
        refused.get(keys).is_some() && refused.get(conf).is_some()
    });
    assert!(refused(&status, keys).contains("is not a directory"));
    assert!(refused(&status, conf).contains("is a symbolic link that a user can change"));
    let status = until(&node, "not complete", |status| status["status"] == "failed");
    assert!(text(&status["failed"]["message"]).contains("keys:alice"));
    let status_text = node.root(&format!("{AGENT} status")).good();
    assert!(
        status_text.contains(&format!("{keys} is refused")),
        "{status_text}"
    );
    // Everything else is corrected by the watch, and applied.
    let motd = "file:/etc/motd/content";
    let at = change(
        &node,
        "echo other >/etc/motd; rm /home/bob/.ssh/authorized_keys",
    );
    is_corrected(&node, "motd", motd, at);
    is_corrected(
        &node,
        "bob",
        "keys:bob//home/bob/.ssh/authorized_keys content",
        at,
    );
    let mut other = spec.clone();
    other["config"]["files"][0]["content"] = json!("another\n");
    let run = node.agent("config apply --json-output", &other);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(
        run.err.contains(keys) && run.err.contains(conf),
        "{}",
        run.err
    );
    node.root("test \"$(cat /etc/motd)\" = another").good();
    let check = node.agent("config check --json-output", &other);
    let check: Value = serde_json::from_str(&check.out).unwrap();
    assert_eq!(check["settled"], false);
    assert_eq!(check["refused"].as_object().unwrap().len(), 2, "{check:#}");
    // The watch enforces the new spec, and completes it once alice stops.
    let at = change(&node, "echo other >/etc/motd");
    is_corrected(&node, "after a failed apply", motd, at);
    node.root("test \"$(cat /etc/motd)\" = another").good();
    alice(&node, "rm .ssh conf.d").good();
    until(&node, "complete", |status| status["status"] == "complete");
    node.apply(&spec);
    is_unharmed(&node, &before);

    reverting_follows_no_links(&node, &spec);
    is_unharmed(&node, &before);
    root_access_is_always_corrected(&node);

    // Removing a user does not follow links.
    alice(&node, "rm -r .ssh; ln -s /etc/prize .ssh").good();
    node.apply(&without_alice(&spec));
    node.root("test -s /etc/prize/authorized_keys; test -s /root/.ssh/authorized_keys")
        .good();
    node.root("getent shadow alice | cut -d: -f8 | grep -qx 1")
        .good();
    node.root("rm /home/alice/.ssh").good();
    node.apply(&spec);
    is_unharmed(&node, &before);
    node.host.destroy("lab");
}

fn only_root_can_read_state_and_locks(node: &TestNode) {
    for command in [
        format!("flock -n {STATE}/lock true"),
        format!("flock -n {STATE}/watch.lock true"),
        format!("ls {STATE}"),
        format!("{AGENT} status"),
    ] {
        alice(node, &command).bad();
    }
    let modes =
        format!("stat -c '%a %U' {STATE} {STATE}/lock {STATE}/watch.lock {STATE}/drift.json");
    assert_eq!(
        node.root(&modes).good(),
        "700 root\n600 root\n600 root\n600 root\n"
    );
}

/// The state of an older version is restricted to root, and a lock that a user held is replaced.
fn is_secured_by_an_upgrade(node: &TestNode, spec: &Value) {
    node.root(&format!(
        "chmod 755 {STATE} {STATE}/jobs 2>/dev/null || true; chmod 644 {STATE}/*; touch {STATE}/old; chown alice {STATE}/old"
    ))
    .good();
    let status = format!(
        "{AGENT} status >/dev/null; stat -c '%a %U' {STATE} {STATE}/converge.json {STATE}/old; rm {STATE}/old"
    );
    assert_eq!(node.root(&status).good(), "700 root\n600 root\n600 root\n");
    // Opened before it was restricted.
    node.root("systemctl stop homestak-agent").good();
    node.root(&format!("chmod 755 {STATE}; chmod 644 {STATE}/lock; systemd-run --quiet --unit=holder --uid=alice sh -c 'exec 9<{STATE}/lock; touch /tmp/open; while test -e /tmp/open; do sleep 0.1; done; flock 9; touch /tmp/held; sleep 60'; for i in $(seq 50); do test -e /tmp/open && exit 0; sleep 0.1; done; exit 1")).good();
    node.root(&format!("{AGENT} status >/dev/null; rm /tmp/open; for i in $(seq 50); do test -e /tmp/held && exit 0; sleep 0.1; done; exit 1")).good();
    node.apply(spec);
    node.root("systemctl stop holder; rm /tmp/held; systemctl start homestak-agent")
        .good();
    until(node, "watched", |status| status["watching"] == true);
}

/// A moved directory of root, a huge key file, and invalid UTF-8 in the account database.
fn does_not_affect_others(node: &TestNode, spec: &Value) {
    node.root("install -d -m 700 /home/alice/prot; echo secret >/home/alice/prot/secret")
        .good();
    alice(node, "mv .ssh kept; mv prot .ssh").good();
    let run = node.agent("config apply", spec);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(
        run.err.contains("belongs to another user (id 0)"),
        "{}",
        run.err
    );
    let owner = node.root("stat -c %u:%a /home/alice/.ssh").good();
    assert_eq!(owner.trim(), "0:700");
    node.root("rm -r /home/alice/.ssh").good();
    // The watch may create the directory again at any time, and replace a file in it.
    let keys = "test -n \"$(find .ssh/authorized_keys -size +1M)\" || { rm -rf .ssh kept; mkdir .ssh; yes ssh-ed25519 AAAAforeign eve | head -n 340000 >.ssh/authorized_keys; }";
    alice(node, keys);
    node.root("LC_ALL=C sed -i 's/^\\(alice:x:[0-9]*:[0-9]*:\\):/\\1\\xff:/' /etc/passwd; LC_ALL=C grep -q '^alice.*[^ -~]' /etc/passwd")
        .good();
    let at = change(node, "echo other >/etc/motd");
    is_corrected(node, "motd", "file:/etc/motd/content", at);
    let id = "keys:alice//home/alice/.ssh";
    let status = until(node, "too large", |status| {
        let is_refused = status["drift"]["refused"].get(id).is_some();
        if !is_refused {
            alice(node, keys);
        }
        is_refused
    });
    assert!(refused(&status, id).contains("is larger than 256 KiB"));
    node.root("LC_ALL=C sed -i 's/^\\(alice:x:[0-9]*:[0-9]*:\\)\\xff:/\\1:/' /etc/passwd")
        .good();
    alice(node, "rm .ssh/authorized_keys").good();
    node.apply(spec);
}

/// A directory is replaced by a link before the changes are reverted: it is not followed.
fn reverting_follows_no_links(node: &TestNode, spec: &Value) {
    let mut other = spec.clone();
    other["config"]["files"][1]["content"] = json!("another\n");
    other["access"]["users"][1]["sudo"] = json!(false);
    // Copies of a run that was killed before its first change are deleted.
    node.root(&format!(
        "mkdir -p {STATE}/jobs/dead/before; echo secret >{STATE}/jobs/dead/before/1"
    ))
    .good();
    let mut job = node.begin(
        "--id back --confirm 3",
        &other,
        crate::test_host::SshConnection::Shared,
    );
    job.until("confirm");
    alice(node, "mv conf.d older; ln -s /etc/prize conf.d").good();
    let (code, events) = job.end();
    assert_eq!(code, 2);
    node.root(&format!("test ! -e {STATE}/jobs/dead/before"))
        .good();
    let message = text(&result(&events)["message"]);
    assert!(
        message.contains("could not be reverted") && message.contains("conf.d"),
        "{message}"
    );
    node.root("runuser -u bob -- sudo -n true").good();
    alice(node, "rm conf.d").good();
    node.apply(spec);
}

/// Fields that grant root access are never put on hold.
fn root_access_is_always_corrected(node: &TestNode) {
    for n in 0..7 {
        let command = format!("echo 'alice ALL=(ALL) NOPASSWD: /bin/n{n}' >/etc/sudoers.d/zz");
        let at = change(node, &command);
        is_corrected(node, &command, "sudo:alice/rule", at);
    }
}

#[test]
fn a_user_who_continuously_replaces_files_gains_nothing_outside_the_home_directory() {
    let Some(node) = TestNode::new() else { return };
    let spec = spec(&node);
    node.root(TARGET).good();
    node.apply(&spec);
    until(&node, "watched", |status| status["watching"] == true);
    let before = others_snapshot(&node);
    let put = "tee /home/alice/attack.py >/dev/null";
    node.host
        .run_with_input("web", &format!("sudo {put}"), ATTACK.as_bytes())
        .good();
    let seconds = DURATION.as_secs();
    node.root(&format!("mkdir -p /home/alice/own; chown alice /home/alice/own; systemd-run --quiet --unit=attack --uid=alice python3 /home/alice/attack.py /home/alice {seconds}")).good();
    let end = Instant::now() + DURATION;
    let mut changed = spec.clone();
    changed["config"]["files"][1]["content"] = json!("another\n");
    changed["access"]["users"][1]["sudo"] = json!(false);
    let other_spec = without_alice(&spec);
    let mut n = 0;
    while Instant::now() < end {
        // Each run ends, successfully or with refusals.
        let code = match n % 4 {
            1 => {
                node.job(&format!("--id attack-{n} --confirm 1"), &changed)
                    .0
            }
            2 => apply(&node, &other_spec),
            _ => apply(&node, &spec),
        };
        assert!(matches!(code, 0 | 2), "{n}: {code}");
        // Drift of others is still corrected.
        if n % 4 == 3 {
            let foreign =
                format!("echo 'ssh-ed25519 AAAAforeign{n} eve' >>/home/bob/.ssh/authorized_keys");
            let at = change(&node, &foreign);
            let id = format!(
                "keys:bob/ssh-ed25519 ...{}",
                tail(&format!("ssh-ed25519 AAAAforeign{n}"))
            );
            let corrected = is_corrected(&node, "bob", &id, at);
            println!("{n}: bob's keys corrected: {corrected}");
        }
        n += 1;
    }
    node.root("systemctl stop attack || true").good();
    let attempts = node
        .root("for file in /home/alice/attempts.*; do cat $file; echo; done")
        .good();
    println!("{n} runs; attempts: {}", attempts.replace('\n', " "));
    let total: u64 = attempts
        .lines()
        .map(|line| line.parse::<u64>().unwrap())
        .sum();
    assert!(total > 2_000, "{total}");
    // After the attack, the spec can be applied completely.
    node.root("rm -rf /home/alice/.ssh* /home/alice/conf.d* /home/alice/own* /home/alice/att*")
        .good();
    node.apply(&spec);
    is_unharmed(&node, &before);
    assert_eq!(node.check(&spec), [""; 0]);
    node.host.destroy("lab");
}

/// Sets an access control list that gives alice access to everything in a directory.
const DEFAULT_LIST: &str = r#"import os, pwd, struct, sys
alice = pwd.getpwnam("alice").pw_uid
entries = [(1, 7, 0xFFFFFFFF), (2, 7, alice), (4, 7, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
os.setxattr(sys.argv[2], "system.posix_acl_" + sys.argv[1], data)
"#;

#[test]
fn a_user_can_neither_read_files_of_root_nor_prevent_her_removal() {
    let Some(node) = TestNode::new() else { return };
    let mut spec = spec(&node);
    node.apply(&spec);
    let put = "sudo tee /usr/local/bin/list.py >/dev/null";
    node.host
        .run_with_input("web", put, DEFAULT_LIST.as_bytes())
        .good();
    let list = |kind: &str, path: &str| format!("python3 /usr/local/bin/list.py {kind} {path}");
    alice(&node, &list("default", "/home/alice")).good();
    for (name, mode) in [("app.secret", "0640"), ("ro.conf", "0664")] {
        let path = format!("/home/alice/{name}");
        let file = json!({ "path": path, "content": "of root\n", "mode": mode });
        spec["config"]["files"].as_array_mut().unwrap().push(file);
    }
    node.apply(&spec);
    alice(
        &node,
        "touch own.txt; if cat app.secret || echo mine >ro.conf; then exit 1; fi",
    )
    .good();
    node.root("test \"$(cat /home/alice/ro.conf)\" = \"of root\"")
        .good();
    assert_eq!(node.check(&spec), [""; 0]);
    // An access control list left by an older version is a difference.
    node.root("systemctl stop homestak-agent").good();
    node.root(&list("access", "/home/alice/app.secret")).good();
    node.root("chmod 640 /home/alice/app.secret").good();
    alice(&node, "cat app.secret").good();
    let differs = node.check(&spec);
    assert!(differs.contains(&"file:/home/alice/app.secret/mode".to_owned()));
    node.apply(&spec);
    alice(&node, "cat app.secret").bad();

    // Removing another user needs no confirmation, so she cannot prevent it.
    let (code, events) = node.job("--id gone --confirm 60", &without_alice(&spec));
    assert_eq!(code, 0, "{events:#?}");
    assert!(!events.iter().any(|event| event["event"] == "confirm"));
    node.root("getent shadow alice | cut -d: -f8 | grep -qx 1")
        .good();
    node.host.destroy("lab");
}

#[test]
fn a_user_who_fills_tmp_prevents_neither_packages_nor_her_removal() {
    let Some(node) = TestNode::new() else { return };
    let spec = spec(&node);
    node.apply(&spec);
    node.root("rm -rf /var/lib/apt/lists/*").good();
    let fill = "python3 -c \"n = 0\nwhile True: open(f\\\"/tmp/{n}\\\", \\\"x\\\"); n += 1\" || true; \
                rm /tmp/1; dd if=/dev/zero of=/tmp/x bs=1M count=600 || true; touch /tmp/y || true";
    let message = alice(&node, fill);
    assert!(message.err.contains("No space left"), "{}", message.err);
    node.root("touch /tmp/mine").bad();
    let mut other_spec = without_alice(&spec);
    other_spec["platform"] = json!({ "packages": ["tree"] });
    node.apply(&other_spec);
    node.root("test -x /usr/bin/tree; getent shadow alice | cut -d: -f8 | grep -qx 1")
        .good();
    node.host.destroy("lab");
}

#[test]
fn ids_of_users_whose_creation_was_reverted_are_not_reused() {
    let Some(node) = TestNode::new() else { return };
    let mut spec = spec(&node);
    spec["run"] = json!({ "trigger": "manual" });
    node.apply(&spec);
    let with = |name: &str| {
        let mut spec = spec.clone();
        let user = json!({ "name": name, "sudo": true, "ssh_keys": [] });
        spec["access"]["users"].as_array_mut().unwrap().push(user);
        spec
    };
    let ids = |name: &str| node.root(&format!("id -u {name}; id -g {name}")).good();
    let mut reverted_ids = Vec::new();
    let mut reverted = |job: &str| {
        let words = format!("--id {job} --confirm 2");
        let mut job = node.begin(
            &words,
            &with("carol"),
            crate::test_host::SshConnection::Shared,
        );
        job.until("confirm");
        let carol = ids("carol");
        assert_eq!(job.end().0, 2);
        reverted_ids.extend(carol.lines().map(str::to_owned));
        reverted_ids.clone()
    };
    // An existing group makes UID and GID differ.
    node.root("groupadd shared").good();
    let left = reverted("first");
    node.apply(&with("dave"));
    let dave = ids("dave");
    assert!(
        !left.iter().any(|one| dave.contains(one)),
        "{dave} {left:?}"
    );
    node.apply(&spec);
    // The last ids of the range.
    node.root("useradd -u 59999 last").good();
    let left = reverted("last");
    assert!(left.contains(&"60000".to_owned()), "{left:?}");
    node.apply(&with("erin"));
    let erin = ids("erin");
    assert!(
        !left.iter().any(|one| erin.contains(one)),
        "{erin} {left:?}"
    );
    node.host.destroy("lab");
}

/// Applies a spec with a time limit, and returns the exit code.
fn apply(node: &TestNode, spec: &Value) -> i32 {
    let command = format!("sudo timeout 60 {AGENT} config apply --spec -");
    let run = node
        .host
        .run_with_input("web", &command, spec.to_string().as_bytes());
    run.code
}

fn tail(text: &str) -> String {
    let end: String = text.chars().rev().take(16).collect();
    end.chars().rev().collect()
}
