//! A staged update of nodes that pull, through the server, which is killed meanwhile.

use std::process::Stdio;

use serde_json::Value;

use crate::jobs::{
    UPDATE, apply, job, kill_server, offer, run, update, updated, version, wait, write,
};
use crate::test_host::{Run, TestHost, text};

/// A script of a package that waits for a file, and how often it began.
const HELD: &str = "echo begun >>/srv/begun; until [ -e /srv/go ]; do sleep 0.2; done";
/// The daemon ends after the job, because its program was replaced, and cannot be started again.
const STOPS_PULLING: &str = "mv /usr/local/lib/homestak/first-boot /srv/first-boot; \
                             readlink /usr/local/bin/homestak-agent >/srv/program; \
                             ln -sfn /bin/false /usr/local/bin/homestak-agent";
const PULL_AGAIN: &str = "sudo mv /srv/first-boot /usr/local/lib/homestak/first-boot; \
                          sudo ln -sfn $(cat /srv/program) /usr/local/bin/homestak-agent; \
                          sudo systemctl restart homestak-pull";
const AT_ONCE: u32 = 2;

fn nodes() -> String {
    let nodes = ["a", "b", "c"]
        .map(|name| format!("  - {{name: {name}, spec: web, execution: {{mode: pull}}}}\n"));
    nodes.concat() + &format!("settings: {{updates: {{at_once: {AT_ONCE}}}}}\n")
}

/// Returns a value that changes with each boot of a node.
fn boot(host: &TestHost, node: &str) -> String {
    host.inside(node, "cat /proc/sys/kernel/random/boot_id")
        .good()
}

fn entry(out: &Value, node: &str) -> Value {
    let nodes = out["nodes"].as_array().unwrap();
    nodes
        .iter()
        .find(|one| one["node"] == node)
        .unwrap()
        .clone()
}

/// Returns what `manifest status` shows of the reports of a node.
fn account(host: &TestHost, node: &str) -> Value {
    let status = run(host, "manifest status -M lab --json-output").json();
    let nodes = status["runs"][0]["nodes"].as_array().unwrap().clone();
    let found = nodes.iter().find(|one| one["name"] == node).unwrap();
    found["report"].clone()
}

/// Asserts that all jobs of a node succeeded, and how many of them are updates: one asks what would be
/// installed.
fn require_updates(host: &TestHost, node: &str, count: usize) {
    let list = run(host, &format!("job list {node} --json-output")).json();
    let jobs = list["jobs"].as_array().unwrap().clone();
    let updates: Vec<&Value> = jobs.iter().filter(|job| job["kind"] == "update").collect();
    assert_eq!(updates.len(), count, "{list}");
    for job in updates {
        assert_eq!(job["state"], "succeeded", "{list}");
    }
}

#[test]
fn an_update_through_the_server_outlives_its_kill_and_stops_at_a_node_that_takes_no_jobs_any_more()
{
    let Some(host) = crate::host() else { return };
    write(
        &host,
        "trigger: manual, interval: 5s",
        "00:00-24:00",
        &nodes(),
    );
    run(&host, "server start").good();
    apply(&host);
    let a = format!("{HELD}; touch /run/reboot-required");
    offer(&host, "a", ["1", "2"], &a);
    offer(&host, "b", ["1", "2"], &format!("{HELD}; {STOPS_PULLING}"));
    offer(&host, "c", ["1", "2"], "true");
    // What differs before is no reason to stop, and is not corrected with this trigger.
    let change = "echo changed | sudo tee /etc/motd";
    host.inside("c", change).good();
    let before = ["a", "b", "c"].map(|node| boot(&host, node));

    let words: Vec<&str> = UPDATE.split(' ').chain(["--yes"]).collect();
    let mut command = host.command(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let updating = command.spawn().unwrap();
    for node in ["a", "b"] {
        wait("the update to begin", || {
            host.inside(node, "test -e /srv/begun").code == 0
        });
    }
    kill_server(&host);
    run(&host, "server start").good();
    for node in ["a", "b"] {
        host.inside(node, "sudo touch /srv/go").good();
    }
    let done: Run = updating.wait_with_output().unwrap().into();
    let (out, states) = updated(&done, 1);
    assert_eq!(states, ["updated", "unhealthy", "not-started"], "{out}");
    let stopped = text(&out["stopped"]);
    assert_eq!(stopped, "`b` did not come back healthy", "{out}");
    let versions = ["a", "b", "c"].map(|node| version(&host, node));
    assert_eq!(versions, ["2 installed", "2 installed", "1 installed"]);
    // Once each, and only the one that needs it was restarted.
    for node in ["a", "b"] {
        host.inside(node, "test $(wc -l </srv/begun) = 1").good();
        require_updates(&host, node, 2);
        assert_eq!(entry(&out, node)["route"], "server", "{out}");
    }
    assert_eq!(entry(&out, "a")["rebooted"], true, "{out}");
    assert_eq!(entry(&out, "a")["reboot_needed"], false, "{out}");
    assert_eq!(entry(&out, "b")["rebooted"], Value::Null, "{out}");
    assert_ne!(boot(&host, "a"), before[0]);
    assert_eq!(["b", "c"].map(|node| boot(&host, node)), before[1..]);

    // It is silent, and does not follow a new spec.
    wait("the node to count as silent", || {
        account(&host, "b")["silent"] == true
    });
    assert_eq!(account(&host, "b")["behind"], false);
    assert_eq!(account(&host, "a")["silent"], false);
    write(
        &host,
        "trigger: manual, interval: 6s",
        "00:00-24:00",
        &nodes(),
    );
    let configure = "config apply -M lab -H local --yes b";
    let late = run(&host, &format!("--timeout config=1 {configure}"));
    assert_eq!(late.code, 1, "{}{}", late.out, late.err);
    let late = account(&host, "b");
    assert_eq!([&late["behind"], &late["silent"]], [true, true], "{late}");
    let shown = run(&host, "manifest status -M lab").good();
    assert!(shown.contains("silent for 3 intervals"), "{shown}");
    host.inside("b", PULL_AGAIN).good();
    run(&host, configure).good();
    let back = account(&host, "b");
    assert_eq!([&back["behind"], &back["silent"]], [false, false], "{back}");

    // Corrected, the same command continues.
    let (out, states) = update(&host, "--yes", 0);
    assert_eq!(states, ["up-to-date", "up-to-date", "updated"], "{out}");
    let checked = job(&host, "c check", 0, "succeeded");
    let differences = &checked["outcome"]["result"]["differences"];
    assert_eq!(differences.as_array().unwrap().len(), 1, "{checked}");
    job(&host, "c converge", 0, "succeeded");
    host.inside("c", "grep -q 'made by homestak' /etc/motd")
        .good();

    if std::env::var_os("HOMESTAK_TEST_FULL").is_some() {
        stays_off(&host);
    }
    host.destroy("lab");
    run(&host, "server stop").good();
    host.assert_unchanged();
}

/// A node that does not come back from its restart: what it did is not known.
fn stays_off(host: &TestHost) {
    let off = "touch /run/reboot-required; systemctl set-default poweroff.target";
    // The other one was restarted by a job just now, and would not be again.
    offer(host, "b", ["2", "3"], off);
    for node in ["a", "c"] {
        offer(host, node, ["2", "3"], "true");
    }
    let (out, states) = update(host, "--yes", 4);
    assert_eq!(states, ["updated", "unknown", "not-started"], "{out}");
    let stopped = text(&out["stopped"]);
    assert_eq!(stopped, "`b` did not report a result", "{out}");
    assert_eq!(version(host, "c"), "2 installed");
}
