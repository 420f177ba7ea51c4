//! A node that looks after itself: what is changed on it is seen at once, and mended, reported or
//! left as its spec says.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::text;
use crate::lab::{AGENT, Lab, STATE};

/// How each kind of thing is changed, and the field that must be mended.
const BREAKS: &[(&str, &str, &str)] = &[
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

/// A file that is not changed so often that it counts as a fight.
const DEEP: &str = "file:/etc/deep/er/own/content";

/// A unit that needs no package.
const OWN: &str =
    "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n";

fn spec(lab: &Lab) -> Value {
    let mut spec = lab.spec("dev");
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
    // Nothing but what is watched is seen.
    spec["run"] = json!({ "trigger": "schedule", "interval": "1d" });
    spec
}

/// Waits until something holds of what the node says about itself.
pub fn until(lab: &Lab, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut status = Value::Null;
    for _ in 0..400 {
        status = lab.status();
        if holds(&status) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let journal = lab.root("journalctl -u homestak-agent -n 40 --no-pager");
    panic!("{what}: {status:#}\n{}", journal.out);
}

fn moment(value: &Value) -> i128 {
    let at: jiff::Timestamp = text(value).parse().unwrap();
    at.as_nanosecond()
}

/// Changes something, and returns when that was.
pub fn change(lab: &Lab, command: &str) -> i128 {
    let said = lab.root(&format!("date +%s%N; {command}")).good();
    said.lines().next().unwrap().parse().unwrap()
}

/// Returns the mend of a field after a moment.
fn mend(status: &Value, id: &str, after: i128) -> Option<Value> {
    let mut recent = status["drift"]["recent"].as_array().unwrap().iter();
    let is_it = |one: &&Value| one["id"] == id && moment(&one["seen"]) > after;
    recent.find(is_it).cloned()
}

pub fn is_mended(lab: &Lab, what: &str, id: &str, after: i128) -> Value {
    let status = until(lab, what, |status| mend(status, id, after).is_some());
    mend(&status, id, after).unwrap()
}

fn seconds(from: i128, to: &Value) -> f64 {
    let nanos = moment(to) - from;
    Duration::from_nanos(u64::try_from(nanos).unwrap()).as_secs_f64()
}

/// Waits until the watch has nothing to do.
fn is_quiet(lab: &Lab) -> u64 {
    let looks = |status: &Value| status["drift"]["looks"].as_u64().unwrap();
    let mut before = looks(&lab.status());
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(1500));
        let now = looks(&lab.status());
        if now == before {
            return now;
        }
        before = now;
    }
    panic!("it looks and looks: {before}");
}

#[test]
fn what_is_changed_on_a_node_is_seen_and_mended_reported_or_ignored() {
    let Some(lab) = Lab::new() else { return };
    let spec = spec(&lab);
    lab.apply(&spec);
    lab.root("systemctl is-active homestak-agent && systemctl is-enabled homestak-agent")
        .good();
    until(&lab, "watched", |status| status["watching"] == true);
    // It looks because of others, not because of itself.
    is_quiet(&lab);
    for (kind, command, id) in BREAKS {
        let at = change(&lab, command);
        let mended = is_mended(&lab, command, id, at);
        let (seen, done) = (seconds(at, &mended["seen"]), seconds(at, &mended["mended"]));
        println!("{kind}: seen after {seen:.2} s, mended after {done:.2} s");
    }
    assert_eq!(lab.check(&spec), [""; 0]);
    reported_and_ignored(&lab, &spec);
    two_at_once(&lab);
    killed(&lab);
    waits_for_its_turn(&lab);
    let looks = is_quiet(&lab);
    println!("{looks} looks; {}", memory(&lab));
    println!(
        "{}",
        lab.root(
            "journalctl -u homestak-agent --no-pager -o cat | grep -v ': mended$' | tail -n 30"
        )
        .out
    );
    assert_eq!(lab.status()["status"], "complete");
    lab.bed.destroy("lab");
}

/// What the last two specs agree about is kept up, and what they do not is left as it is.
fn after_a_failed_apply(lab: &Lab, spec: &Value) {
    // One that changed nothing.
    let mut wrong = spec.clone();
    wrong["config"]["sysctl"] = json!({ "no.such.key": 1 });
    assert_eq!(lab.agent("config apply", &wrong).code, 2);
    let at = change(lab, "echo other >/etc/deep/er/own");
    is_mended(lab, "after one that changed nothing", DEEP, at);
    assert_eq!(lab.status()["status"], "failed");
    // One that failed half-way.
    let mut half = spec.clone();
    half["config"]["files"][0]["content"] = json!("half\n");
    half["config"]["files"].as_array_mut().unwrap().push(json!(
        { "path": "/etc/systemd/system/bad.service", "content": "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n" }
    ));
    half["platform"]["services"]["enable"] = json!(["own", "bad"]);
    assert_eq!(lab.agent("config apply", &half).code, 2);
    let at = change(lab, "echo other >/etc/deep/er/own");
    is_mended(lab, "after one that failed", DEEP, at);
    let status = until(lab, "trouble", |status| {
        status["drift"]["trouble"]
            .as_str()
            .is_some_and(|said| said.contains("file:/etc/motd"))
    });
    assert_eq!(status["status"], "failed");
    assert_eq!(status["enforcing"], false);
    lab.root("test \"$(cat /etc/motd)\" = half; test -e /etc/systemd/system/bad.service")
        .good();
}

fn memory(lab: &Lab) -> String {
    let command = "cat /proc/$(systemctl show -P MainPID homestak-agent)/status | grep -E 'VmRSS|RssAnon' | tr '\\n' ' '";
    lab.root(command).good()
}

/// Some fields of one file are mended and others are not.
fn reported_and_ignored(lab: &Lab, spec: &Value) {
    let told = "file:/etc/told/content";
    let mode = "file:/etc/told/mode";
    let at = change(lab, "systemctl enable nftables; chmod 600 /etc/told");
    is_mended(lab, "mode", mode, at);
    // Content that stays and is not the wanted one gets no other mode.
    change(lab, "echo other >/etc/told; chmod 600 /etc/told");
    until(lab, "mode and content", |status| {
        let is_reported = |id: &str| status["drift"]["open"][id]["handling"] == "report";
        is_reported(told) && is_reported(mode)
    });
    lab.root("test \"$(stat -c %a /etc/told)\" = 600; chmod 644 /etc/told")
        .good();
    until(lab, "content alone", |status| {
        status["drift"]["open"].as_object().unwrap().len() == 1
    });
    let status = lab.status();
    assert_eq!(status["drift"]["open"][told]["handling"], "report");
    lab.root("test \"$(cat /etc/told)\" = other; test \"$(stat -c %a /etc/told)\" = 644")
        .good();
    lab.root("systemctl is-enabled nftables").good();
    lab.root(&format!(
        "journalctl -u homestak-agent | grep '{told} was changed: only reported'"
    ))
    .good();
    // A check names it, and what is none of ours is not even named.
    let run = lab.agent("config check --json-output", spec);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(run.code, 3);
    assert_eq!(result["changes"].as_array().unwrap().len(), 1);
    assert_eq!(result["changes"][0]["handling"], "report");
    assert_eq!(result["changes"][0]["since"], "node");
    let run = lab.root(&format!("{AGENT} run --once --json-output"));
    assert_eq!(run.code, 3, "{}", run.err);
    // Whoever asks for the spec gets it.
    lab.apply(spec);
    lab.root("test \"$(cat /etc/told)\" = managed").good();
    lab.root("systemctl is-enabled nftables").good();
    until(lab, "nothing open", |status| {
        status["drift"]["open"].as_object().unwrap().is_empty()
    });
}

fn two_at_once(lab: &Lab) {
    let at = change(lab, "echo other >/etc/deep/er/own; systemctl stop own");
    is_mended(lab, "file", DEEP, at);
    is_mended(lab, "unit", "service:own.service/active", at);
}

/// Killed, it is started again, and finds what changed meanwhile.
fn killed(lab: &Lab) {
    let process = || lab.root("systemctl show -P MainPID homestak-agent").good();
    let before = process();
    let at = change(
        lab,
        "systemctl kill -s KILL homestak-agent; echo other >/etc/deep/er/own; hostname stolen",
    );
    is_mended(lab, "killed", DEEP, at);
    is_mended(lab, "killed", "hostname/kernel", at);
    assert_ne!(process(), before);
}

/// While another run has the turn nothing is mended, and right after it is.
fn waits_for_its_turn(lab: &Lab) {
    let held = format!(
        "flock {STATE}/lock sh -c 'echo other >/etc/deep/er/own; sleep 2; cat /etc/deep/er/own'"
    );
    let at = change(lab, "true");
    assert_eq!(lab.root(&held).good(), "other\n");
    is_mended(lab, "turn", DEEP, at);
}

#[test]
fn fights_and_failures_are_not_repeated_and_a_spec_that_does_not_ask_is_not_watched() {
    let Some(lab) = Lab::new() else { return };
    let mut spec = spec(&lab);
    lab.apply(&spec);
    until(&lab, "watched", |status| status["watching"] == true);
    let fight = "file:/etc/fight/content";
    for n in 0..5 {
        let at = change(&lab, &format!("echo {n} >/etc/fight"));
        is_mended(&lab, "fight", fight, at);
    }
    // The sixth change stays, and others are mended all the same.
    let at = change(&lab, "echo mine >/etc/fight; echo other >/etc/motd");
    is_mended(&lab, "motd", "file:/etc/motd/content", at);
    let status = lab.status();
    assert_eq!(status["drift"]["open"][fight]["handling"], "report");
    lab.root("test \"$(cat /etc/fight)\" = mine").good();
    lab.root(&format!(
        "journalctl -u homestak-agent | grep '{fight} is changed again and again'"
    ))
    .good();

    // What cannot be mended does not keep other things from it.
    let motd = "file:/etc/motd/content";
    lab.root("echo wrong >/run/wrong; mount --bind /run/wrong /etc/motd; mount -o remount,ro,bind /etc/motd").good();
    let at = change(&lab, "hostname stolen; touch /etc/motd || true");
    is_mended(&lab, "hostname", "hostname/kernel", at);
    let status = until(&lab, "failed", |status| status["status"] == "failed");
    assert_eq!(status["failed"]["phase"], "run");
    let why = text(&status["drift"]["open"][motd]["why"]);
    assert!(why.contains("/etc/motd"), "{status:#}");
    let shown = lab.root(&format!("{AGENT} status")).good();
    assert!(shown.contains("could not be mended"), "{shown}");
    // Once the cause is gone, so is the difference.
    lab.root("umount /etc/motd; echo other >/etc/motd").good();
    until(&lab, "corrected", |status| status["status"] == "differs");
    lab.root("test \"$(cat /etc/motd)\" = managed").good();
    let open = lab.status()["drift"]["open"].clone();
    assert_eq!(open.as_object().unwrap().len(), 1, "{open:#}");

    after_a_failed_apply(&lab, &spec);

    // The next one that succeeds is taken up, also when it asks for something else.
    spec["config"]["files"][0]["content"] = json!("another\n");
    lab.apply(&spec);
    let at = change(&lab, "echo other >/etc/motd");
    is_mended(&lab, "another", motd, at);
    lab.root("test \"$(cat /etc/motd)\" = another").good();

    // Looked after by nobody, nothing is left of the watch.
    spec["run"] = json!({ "trigger": "manual" });
    lab.apply(&spec);
    assert_eq!(lab.status()["watching"], false);
    lab.root("systemctl is-active homestak-agent").bad();
    lab.root("find /etc/systemd -name 'homestak-agent*' | grep .")
        .bad();
    assert_eq!(lab.check(&spec), [""; 0]);
    lab.root("echo other >/etc/motd; rm -r /etc/deep").good();
    let shown = lab.root(&format!("{AGENT} run --once --dry-run")).good();
    assert!(shown.contains("would write /etc/motd"), "{shown}");
    let run = lab
        .root(&format!("{AGENT} run --once --json-output"))
        .json();
    assert_eq!(run["mended"].as_array().unwrap().len(), 2, "{run:#}");
    assert_eq!(lab.check(&spec), [""; 0]);
    lab.bed.destroy("lab");
}
