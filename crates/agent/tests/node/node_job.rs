//! Jobs of a node as a driver runs them over SSH, with package sources on the node.

use std::time::Duration;

use serde_json::{Value, json};

use crate::test_host::Run;
use crate::test_node::{AGENT, STATE, TestNode};

/// Creates two flat archives, of which one is a security suite. Each has a package with a newer
/// version; that of the other suite waits in its script while a file exists.
const ARCHIVES: &str = r#"
umask 022
make() { # directory, name, version, script
    d=$(mktemp -d); mkdir -p $d/DEBIAN $d/etc
    printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: Nobody <nobody@lab.example>\nDescription: none\n' $2 $3 >$d/DEBIAN/control
    echo "version $3" >$d/etc/$2.conf; echo /etc/$2.conf >$d/DEBIAN/conffiles
    printf '#!/bin/sh\n%s\n' "$4" >$d/DEBIAN/postinst; chmod 755 $d/DEBIAN/postinst
    dpkg-deb --build $d $1/$2.deb >/dev/null
}
index() { # directory, suite
    cd $1
    for file in *.deb; do
        dpkg-deb --field $file
        echo "Filename: ./$file"; echo "Size: $(stat -c %s $file)"; echo "SHA256: $(sha256sum $file | cut -d' ' -f1)"; echo
    done >Packages
    { echo "Origin: Lab"; echo "Label: Lab"; echo "Suite: $2"; echo "Codename: $2"; echo "Date: $(date -Ru)"
      echo "SHA256:"; echo " $(sha256sum Packages | cut -d' ' -f1) $(stat -c %s Packages) Packages"; } >Release
}
mkdir -p /srv/old /srv/secure /srv/plain
make /srv/old door 1 true; make /srv/old lamp 1 true
dpkg -i /srv/old/*.deb >/dev/null
echo changed >/etc/door.conf
make /srv/secure door 2 true; index /srv/secure stable-security
make /srv/plain lamp 2 'while [ -e /srv/stone ]; do sleep 0.1; done'; index /srv/plain stable
mkdir /srv/sources; mv /etc/apt/sources.list* /srv/sources
mkdir /etc/apt/sources.list.d
for name in secure plain; do echo "deb [trusted=yes] file:/srv/$name ./"; done >/etc/apt/sources.list.d/own.list
"#;

fn spec(run: &Value) -> Value {
    json!({
        "schema_version": 1,
        "identity": { "hostname": "web" },
        "access": { "posture": "dev", "_posture": { "auth": { "method": "network" } } },
        "config": { "files": [{ "path": "/etc/motd", "content": "managed\n" }] },
        "run": run,
    })
}

/// Returns an id.
fn id(n: u64) -> String {
    format!("{n:032x}")
}

/// Runs a job, and returns its exit code and outcome.
fn job(node: &TestNode, n: u64, words: &str) -> (i32, Value) {
    let run = start(node, n, words);
    let outcome = serde_json::from_str(&run.out).expect(&run.err);
    (run.code, outcome)
}

fn start(node: &TestNode, n: u64, words: &str) -> Run {
    let id = id(n);
    node.run_separately(&format!(
        "sudo -n {AGENT} node-job {words} --id {id} --json-output"
    ))
}

fn versions(node: &TestNode) -> String {
    let command = "dpkg-query -W -f '${Package}=${Version}/${db:Status-Status} ' door lamp";
    node.root(command).good().trim().to_owned()
}

fn names(outcome: &Value) -> Vec<(String, bool)> {
    let packages = outcome["result"]["packages"].as_array();
    let packages = packages.map(Vec::as_slice).unwrap_or_default().iter();
    packages
        .map(|one| {
            (
                one["name"].as_str().unwrap().to_owned(),
                one["security"] == true,
            )
        })
        .collect()
}

/// Runs a job that restarts the node, which ends the connection, until the same id returns its outcome.
fn restart(node: &TestNode, n: u64, words: &str) {
    start(node, n, words);
    let mut ended = None;
    for _ in 0..300 {
        let run = start(node, n, words);
        if let Ok(outcome) = serde_json::from_str::<Value>(&run.out)
            && outcome["state"].is_string()
        {
            ended = Some((run.code, outcome));
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let (code, outcome) = ended.expect("the node is back");
    assert_eq!(
        (code, &outcome["result"]["rebooted"]),
        (0, &json!(true)),
        "{outcome}"
    );
}

#[test]
fn updates_install_the_packages_of_their_scope_once_and_in_the_window_of_the_spec() {
    let Some(node) = TestNode::new() else { return };
    node.root(ARCHIVES).good();
    node.apply(&spec(&json!({})));

    // Without a scope.
    let (code, outcome) = job(&node, 1, "update");
    assert_eq!((code, &outcome["state"]), (3, &json!("refused")));
    let message = outcome["message"].as_str().unwrap();
    assert!(message.contains("run.updates"), "{message}");

    // Simulated.
    let (code, outcome) = job(&node, 2, "update --dry-run --scope all");
    assert_eq!(code, 0, "{outcome}");
    let both = [("door".to_owned(), true), ("lamp".to_owned(), false)];
    let mut found = names(&outcome);
    found.sort();
    assert_eq!(found, both);
    assert_eq!(outcome["result"]["changed"], false);
    assert_eq!(versions(&node), "door=1/installed lamp=1/installed");

    // Those of the security suite, as in the spec.
    node.apply(&spec(&json!({ "updates": "security" })));
    let (code, outcome) = job(&node, 3, "update");
    assert_eq!(
        (code, names(&outcome)),
        (0, both[..1].to_vec()),
        "{outcome}"
    );
    assert_eq!(outcome["result"]["changed"], true);
    assert_eq!(versions(&node), "door=2/installed lamp=1/installed");
    assert_eq!(node.root("cat /etc/door.conf").good(), "changed\n");
    let again = job(&node, 3, "update --scope all");
    assert_eq!(again, (code, outcome));
    assert_eq!(versions(&node), "door=2/installed lamp=1/installed");

    // Outside the window.
    let day = node
        .root("date +%u")
        .good()
        .trim()
        .parse::<usize>()
        .unwrap();
    let other_day = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"][(day + 2) % 7];
    let window = format!("{other_day} 10:00-11:00");
    node.apply(&spec(&json!({ "updates": "all", "window": [window] })));
    for (n, kind) in [(4, "update"), (5, "reboot")] {
        let (code, outcome) = job(&node, n, kind);
        assert_eq!(code, 3, "{outcome}");
        let message = outcome["message"].as_str().unwrap();
        assert!(message.contains(&window), "{message}");
    }
    let (code, outcome) = job(&node, 6, "update --dry-run");
    assert_eq!((code, names(&outcome)), (0, both[1..].to_vec()));
    let message = outcome["message"].as_str().unwrap();
    assert!(message.contains(&window), "{message}");
    let (_, outcome) = job(&node, 9, "update --dry-run --force");
    assert_eq!(outcome["message"], Value::Null, "{outcome}");

    // It is ended at its time limit, and finished by the next one.
    node.root("touch /srv/stone").good();
    let (code, outcome) = job(&node, 7, "update --force --no-reboot --time-limit 10");
    assert_eq!(code, 2, "{outcome}");
    let message = outcome["message"].as_str().unwrap();
    assert!(message.contains("time limit of 10 s"), "{message}");
    assert_ne!(versions(&node), "door=2/installed lamp=2/installed");
    node.root("rm /srv/stone").good();
    // A restart that it needs is left out when it is not wanted.
    node.root("touch /run/reboot-required").good();
    let (code, outcome) = job(&node, 8, "update --force --no-reboot");
    assert_eq!(code, 0, "{outcome}");
    assert_eq!(versions(&node), "door=2/installed lamp=2/installed");
    assert_eq!(outcome["result"]["reboot_needed"], true);
    assert_eq!(outcome["result"]["rebooted"], Value::Null);
    node.root(&format!("{AGENT} config check")).good();
    node.host.destroy("lab");
    node.host.assert_unchanged();
}

#[test]
fn a_node_is_compared_corrected_described_and_restarted_at_most_every_ten_minutes() {
    let Some(node) = TestNode::new() else { return };
    node.apply(&spec(&json!({})));
    node.root("echo other >/etc/motd; echo secret-7431 >/root/private")
        .good();
    let (code, outcome) = job(&node, 1, "check");
    assert_eq!(code, 0, "{outcome}");
    let differences = outcome["result"]["differences"].to_string();
    assert!(
        differences.contains("file:/etc/motd/content"),
        "{differences}"
    );
    let (code, outcome) = job(&node, 2, "converge");
    assert_eq!((code, &outcome["result"]["changed"]), (0, &json!(true)));
    assert_eq!(node.root("cat /etc/motd").good(), "managed\n");
    let (_, outcome) = job(&node, 3, "check");
    assert_eq!(outcome["result"]["differences"], Value::Null);

    // A journal with long lines, and lines of others.
    node.root(
        "logger other-unit-5190; logger -t homestak-job-test other-unit-5191
         { for n in $(seq 300); do printf '<6>%s %01000d\\n' $n 0; done; echo own-unit-8824; } \
         | systemd-run --quiet --wait --pipe --unit=homestak-job-test systemd-cat
         logger other-unit-5192; journalctl --sync",
    )
    .good();
    let run = start(&node, 4, "collect");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(!run.out.contains("secret-7431"));
    let outcome: Value = serde_json::from_str(&run.out).unwrap();
    assert!(outcome.to_string().len() < 48 << 10);
    let collected = &outcome["result"]["collected"];
    assert_eq!(collected["status"], "complete");
    for fact in [
        "os",
        "kernel",
        "uptime",
        "memory",
        "disk",
        "load",
        "boot_id",
        "addresses",
    ] {
        assert!(collected["facts"][fact].is_string(), "{fact}: {collected}");
    }
    let lines = collected["journal"].as_array().unwrap().iter();
    let lines: Vec<&str> = lines.map(|line| line.as_str().unwrap()).collect();
    assert!(lines.len() <= 200);
    assert!(lines.iter().all(|line| line.chars().count() <= 500));
    let has = |words| lines.iter().any(|line| line.contains(words));
    assert!(has("own-unit-8824") && !has("other-unit"), "{lines:#?}");
    assert_eq!(
        collected["truncated"], true,
        "the oldest lines are left out"
    );

    // The connection is lost; the same id returns the outcome once it has restarted.
    let boot = "cat /proc/sys/kernel/random/boot_id";
    let before = node.run_separately(boot).good();
    restart(&node, 5, "reboot");
    let after = node.run_separately(boot).good();
    assert_ne!(after, before);
    let (code, outcome) = job(&node, 6, "reboot");
    assert_eq!(code, 3, "{outcome}");
    let message = outcome["message"].as_str().unwrap();
    assert!(message.contains("less than 10 minutes ago"), "{message}");
    assert_eq!(node.run_separately(boot).good(), after);
    restart(&node, 7, "reboot --force");
    assert_ne!(node.run_separately(boot).good(), after);
    let mode = format!("sudo -n stat -c %a {STATE}/node-jobs");
    assert_eq!(node.run_separately(&mode).good(), "700\n");
    node.host.destroy("lab");
    node.host.assert_unchanged();
}
