//! A machine that enrols at a server, fetches its spec and applies it, from its first boot on.

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../src/pull/tests/sample.rs"]
mod sample;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../src/pull/tests/site.rs"]
mod site;

use std::fmt::Write as _;
use std::time::Duration;

use homestak_core::firstboot::{ENROLMENT, ENROLMENT_DIRECTORY, Enrolment, PULL_UNIT};

use self::sample::{WEB, spec};
use self::site::TestSite;
use crate::test_node::{AGENT, STATE, TestNode};

/// The port of the server on the node.
const PORT: u16 = 44_443;

/// Writes the files of the first boot.
fn write_files(node: &TestNode, enrolment: &Enrolment) {
    let mut script = format!("install -d -m 0700 {ENROLMENT_DIRECTORY}\n");
    for file in enrolment.files() {
        let (path, mode) = (file.path, file.mode);
        let content = file.content.replace('\'', "'\\''");
        let _ = writeln!(script, "mkdir -p \"$(dirname {path})\"");
        let _ = writeln!(
            script,
            "printf '%s' '{content}' >{path}\nchmod {mode:o} {path}"
        );
    }
    node.root(&script).good();
}

/// Waits until the last report has a state.
fn wait_for_report(site: &TestSite, node: &TestNode, state: &str) {
    for _ in 0..300 {
        if site.reports().last().is_some_and(|last| last == state) {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let log = node
        .root(&format!("journalctl --no-pager -u {PULL_UNIT}"))
        .out;
    panic!("no report `{state}`: {:?}\n{log}", site.reports());
}

fn program() -> Vec<u8> {
    std::fs::read(env!("CARGO_BIN_EXE_homestak-agent")).unwrap()
}

/// Starts the first boot of a node of a site, which need not run yet. Returns its enrolment.
fn boot(site: &TestSite, node: &TestNode) -> Enrolment {
    site.publish_agent(&program(), &site.key);
    let port = site.url.rsplit(':').next().unwrap();
    node.host.forward_port(PORT, port.parse().unwrap());
    let mut enrolment = site.enrolment();
    enrolment.servers = vec![format!("https://127.0.0.1:{PORT}")];
    node.root(&format!("rm -rf {AGENT} /usr/local/lib/homestak"))
        .good();
    write_files(node, &enrolment);
    node.root(&format!(
        "systemctl daemon-reload; systemctl enable --now {PULL_UNIT}"
    ))
    .good();
    enrolment
}

fn restart(node: &TestNode) {
    node.root(&format!("systemctl restart {PULL_UNIT}")).good();
}

/// Waits until a command succeeds.
fn wait_for(node: &TestNode, command: &str) {
    for _ in 0..300 {
        if node.root(command).code == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let log = node.root(&format!("journalctl --no-pager -u {PULL_UNIT}"));
    panic!("`{command}` fails\n{}", log.out);
}

/// Waits until the service has logged a text.
fn wait_for_log(node: &TestNode, text: &str) {
    let log = format!("journalctl --no-pager --output=cat -u {PULL_UNIT}");
    wait_for(node, &format!("{log} | grep -qF '{text}'"));
}

#[test]
fn a_machine_configures_itself_from_its_first_boot_on_also_when_it_was_refused_for_a_while() {
    let Some(node) = TestNode::new() else { return };
    let mut site = TestSite::start();
    let motd = || node.root("cat /etc/motd").good();
    let show = |property: &str| {
        let line = format!("systemctl show --property={property} --value {PULL_UNIT}");
        node.root(&line).good().trim().to_owned()
    };
    let enrolment = boot(&site, &node);
    wait_for_report(&site, &node, "converged");
    assert_eq!(motd(), "one");
    assert_eq!(node.status()["status"], "complete");
    assert_eq!(show("ActiveState"), "active");
    let link = node
        .root(&format!("readlink {AGENT} /usr/local/bin/homestak"))
        .good();
    assert!(
        link.lines()
            .all(|link| link.starts_with("/usr/local/lib/homestak/agent-"))
    );
    let modes = format!("stat -c '%a %U' {STATE}/registration.json {STATE}/registration.key");
    assert_eq!(node.root(&modes).good(), "600 root\n600 root\n");
    node.root(&format!("! [ -e {ENROLMENT} ]")).good();
    let find = format!(
        "! grep -rqF {} /etc /usr/local /var/lib /run/cloud-init",
        enrolment.token
    );
    node.root(&find).good();

    // Signalled, it applies a newer spec at once.
    site.publish(&spec("two"), |statement| statement.generation = 8);
    let pulled = node.root(&format!("{AGENT} pull --once --json-output"));
    let pulled = pulled.json();
    assert_eq!(
        (&pulled["changed"], &pulled["generation"]),
        (&true.into(), &8.into())
    );
    assert_eq!(pulled["reported"], true);
    assert_eq!(motd(), "two");

    // Killed, it starts again and reports.
    let before = site.reports().len();
    node.root(&format!("kill -9 {}", show("MainPID"))).good();
    for _ in 0..300 {
        if site.reports().len() > before {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    wait_for_report(&site, &node, "converged");
    assert_eq!(show("ActiveState"), "active");

    // A server that lost its registry refuses the node, which keeps its configuration and runs on.
    site.lose_registry();
    let refused = node.root(&format!("{AGENT} pull --once"));
    assert_eq!(refused.code, 3, "{}", refused.err);
    restart(&node);
    wait_for_log(&node, "asking again in about");
    assert_eq!(show("ActiveState"), "active");
    assert_eq!(motd(), "two");
    // Visible on the node, and not mistaken for a spec that was not applied.
    let status = node.status();
    assert_eq!(status["status"], "failed");
    assert_eq!(status["complete"]["status"], "complete");
    let message = status["failed"]["message"].as_str().unwrap();
    assert!(message.contains("certificate of this machine"), "{message}");

    // With the registry restored, nothing else is necessary. A revocation is a refusal too.
    site.restore_registry();
    node.root(&format!("{AGENT} pull --once")).good();
    assert_eq!(node.status()["status"], "complete");
    site.ask("POST", &format!("/v1/nodes/{WEB}/revoke"));
    let refused = node.root(&format!("{AGENT} pull --once"));
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert_eq!(motd(), "two");
    node.host.destroy("lab");
    node.host.assert_unchanged();
}

#[test]
fn a_machine_waits_for_its_server_whatever_its_clock_shows_and_gets_newer_agents() {
    let Some(node) = TestNode::new() else { return };
    // The clock of the node is twenty years behind.
    let mut site = TestSite::start_at(20 * 365 * 24 * 3600);
    site.stop();
    boot(&site, &node);
    wait_for_log(&node, "does not answer");
    site.run_again();
    wait_for_report(&site, &node, "converged");
    assert_eq!(node.root("cat /etc/motd").good(), "one");
    let installed = || node.root(&format!("readlink {AGENT}")).good();
    let first = installed();

    // Another program, that works.
    let mut other = program();
    other.push(b'\n');
    site.publish_changed_agent(&other, &site.key, |statement| statement.generation = 3);
    restart(&node);
    wait_for_log(&node, "the agent was replaced");
    let second = installed();
    assert_ne!(second, first);
    let running = format!(
        "test \"$(readlink /proc/$(systemctl show --property=MainPID --value {PULL_UNIT})/exe)\" = {}",
        second.trim()
    );
    wait_for(&node, &running);
    wait_for_report(&site, &node, "converged");
    // The one before it is kept.
    node.root(&format!("test -x {}", first.trim())).good();

    // One that was published earlier, and one that does not work.
    site.publish_changed_agent(&program(), &site.key, |statement| statement.generation = 2);
    restart(&node);
    wait_for_log(&node, "is not later than 3");
    site.publish_changed_agent(b"#!/bin/sh\nexit 1\n", &site.key, |statement| {
        statement.generation = 4;
    });
    restart(&node);
    wait_for_log(&node, "does not work on this machine");
    assert_eq!(installed(), second);
    wait_for_report(&site, &node, "converged");

    // A program that is damaged later is replaced by the one before it.
    node.root(&format!(
        "echo damaged >{}.new; mv {0}.new {0}",
        second.trim()
    ))
    .good();
    restart(&node);
    wait_for_log(&node, "the agent does not start");
    let running = running.replace(second.trim(), first.trim());
    wait_for(&node, &running);
    node.host.destroy("lab");
    node.host.assert_unchanged();
}

/// A spec with a firewall that drops packets to a port, and another file.
fn firewall(port: u16) -> String {
    let mut spec: serde_json::Value = serde_json::from_str(&spec("two")).unwrap();
    let rules = format!(
        "flush ruleset\ntable inet filter {{\n chain output {{\n  type filter hook output priority 0;\n  \
         tcp dport {port} drop\n }}\n}}\n"
    );
    let files = spec["config"]["files"].as_array_mut().unwrap();
    files.push(serde_json::json!({ "path": "/etc/nftables.conf", "content": rules }));
    spec["platform"] = serde_json::json!({ "services": { "enable": ["nftables"] } });
    format!("{spec:#}\n")
}

#[test]
fn changes_after_which_no_server_is_reached_are_reverted_and_others_are_kept() {
    let Some(node) = TestNode::new() else { return };
    let site = TestSite::start();
    boot(&site, &node);
    wait_for_report(&site, &node, "converged");
    let state = "cat /etc/motd; sha256sum </etc/nftables.conf; systemctl is-enabled nftables; \
         systemctl is-active nftables; nft list ruleset; find /etc/systemd/system -name 'homestak-undo-*'; \
         ls -d /usr/local/etc/homestak/state/unconfirmed /usr/local/etc/homestak/state/jobs/*/before || true";
    let before = node.root(&format!("exec 2>/dev/null; set +e; {state}")).out;
    assert!(before.starts_with("one"), "{before}");

    site.publish(&firewall(PORT), |statement| statement.generation = 8);
    let cut = node.root(&format!("{AGENT} pull --once"));
    assert_eq!(cut.code, 2, "{}{}", cut.out, cut.err);
    for text in ["no server was reached for 60 s", "reverted: "] {
        assert!(cut.err.contains(text), "{}", cut.err);
    }
    let after = node.root(&format!("exec 2>/dev/null; set +e; {state}")).out;
    assert_eq!(after, before);
    assert_eq!(site.reports().last().map(String::as_str), Some("failed"));
    let marker = node.status()["failed"].clone();
    assert_eq!(marker["error"], "reverted", "{marker}");

    // The service does not try it again.
    let n_reports = site.reports().len();
    restart(&node);
    for _ in 0..300 {
        if site.reports().len() > n_reports + 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    wait_for_report(&site, &node, "failed");
    let after = node.root(&format!("exec 2>/dev/null; set +e; {state}")).out;
    assert_eq!(after, before);

    // A firewall that leaves the server reachable.
    site.publish(&firewall(PORT + 1), |statement| statement.generation = 9);
    let kept = node.root(&format!("{AGENT} pull --once"));
    assert_eq!(kept.code, 0, "{}{}", kept.out, kept.err);
    wait_for_report(&site, &node, "converged");
    let rules = node.root("cat /etc/motd; nft list ruleset").good();
    assert!(rules.starts_with("two"), "{rules}");
    assert!(rules.contains(&format!("dport {}", PORT + 1)), "{rules}");
    let left = "find /etc/systemd/system -name 'homestak-undo-*'; \
         ls -d /usr/local/etc/homestak/state/unconfirmed /usr/local/etc/homestak/state/jobs/*/before \
         2>/dev/null || true";
    assert_eq!(node.root(left).good(), "");
    node.host.destroy("lab");
    node.host.assert_unchanged();
}
