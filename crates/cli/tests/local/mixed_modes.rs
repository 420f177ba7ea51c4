//! One manifest with a node of each mode, configured together and one by one, also by a driver that
//! is killed. A parent that hosts guests of its own is in `nested.rs`.

use std::io::BufRead as _;
use std::time::Duration;

use serde_json::Value;

use crate::modes::{BASE, server_runs, write_site};
use crate::test_host::{Run, TestHost};

const MIXED: &str = "\
schema_version: 2
name: mixed-mode
execution:
  default_mode: pull
nodes:
  - name: infra
    type: vm
    spec: base
    preset: vm-small
    execution:
      mode: push
  - name: app
    type: vm
    spec: base
    preset: vm-small
  - name: edge
    type: vm
    spec: base
    preset: vm-small
    execution:
      mode: hybrid
";

const NODES: [&str; 3] = ["app", "edge", "infra"];

/// Runs `config apply` for the manifest.
fn configure(host: &TestHost, more: &[&str]) -> Run {
    let mut words = vec!["config", "apply", "-M", "mixed-mode", "-H", "local"];
    words.extend(more);
    host.run(&words)
}

/// Writes the spec with another text in `/etc/motd`, and with more packages.
fn write_spec(host: &TestHost, motd: &str, packages: &str) {
    let spec = BASE.replace("made by homestak", motd);
    host.write("specs/base.yaml", &spec.replace("[tree]", packages));
}

fn motd(host: &TestHost) -> [String; 3] {
    NODES.map(|node| host.inside(node, "cat /etc/motd").good().trim().to_owned())
}

/// Returns the last report of a node, as the server has it.
fn last_report(host: &TestHost, node: &str) -> Value {
    let shown = host.run(&["node", "show", node, "--json-output"]).json();
    let reports = shown["reports"].as_array().unwrap();
    reports.last().unwrap().clone()
}

/// Configures a node, and kills the driver once its progress has a line with these words.
fn configure_until(host: &TestHost, node: &str, words: &str) {
    let arguments = [
        "config",
        "apply",
        "-M",
        "mixed-mode",
        "-H",
        "local",
        "--yes",
        node,
    ];
    let mut driver = host
        .command(&arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(driver.stderr.take().unwrap()).lines();
    let mut seen = Vec::new();
    let found = lines.map_while(Result::ok).any(|line| {
        let found = line.contains(words);
        seen.push(line);
        found
    });
    assert!(found, "{seen:#?}");
    driver.kill().unwrap();
    driver.wait().unwrap();
}

/// Waits until a node no longer works on its spec.
fn wait_until_idle(host: &TestHost, node: &str) {
    let idle = "! systemctl list-units --plain --no-legend 'homestak-pull-once-*' | grep -q .";
    for _ in 0..300 {
        if host.inside(node, idle).code == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("{node} still works on its spec");
}

#[test]
fn st_5_a_node_of_each_mode_is_configured_with_the_others_and_alone() {
    let Some(host) = crate::host() else { return };
    write_site(&host);
    host.write("manifests/mixed-mode.yaml", MIXED);
    let made = host.manifest_run("apply", "mixed-mode", &["--yes", "--json-output"]);
    let made = made.json();
    for node in made["nodes"].as_array().unwrap() {
        assert_eq!(node["config"], "configured", "{made}");
    }
    assert_who_configured(&host);
    let again = configure(&host, &["--yes"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);

    select_nodes(&host);
    crate::pull::server_has_ended(&host);
    kill_the_driver_of_a_hybrid_node(&host);
    skip_a_node_that_is_off(&host);
    host.destroy("mixed-mode");
    crate::pull::server_has_ended(&host);
    host.assert_unchanged();
}

/// The driver configured one node; the others fetched their specs, with a token of their own.
fn assert_who_configured(host: &TestHost) {
    let listed = host.run(&["node", "list", "--json-output"]).json();
    let names = |list: &Value, key: &str| -> Vec<String> {
        let all = list[key].as_array().unwrap().iter();
        let mut names: Vec<String> = all.map(|one| one["name"].to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&listed, "nodes"), ["\"app\"", "\"edge\""]);
    let tokens = host.run(&["token", "list", "--json-output"]).json();
    let tokens = tokens["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 2, "{tokens:?}");
    assert!(
        tokens.iter().all(|token| token["used"].is_i64()),
        "{tokens:?}"
    );
    for (node, registered, pulls) in [("infra", 1, 1), ("edge", 0, 1), ("app", 0, 0)] {
        let file = "sudo test -e /usr/local/etc/homestak/state/registration.json";
        assert_eq!(host.inside(node, file).code, registered, "{node}");
        let unit = "test -e /etc/systemd/system/homestak-pull.service";
        assert_eq!(host.inside(node, unit).code, pulls, "{node}");
    }
}

/// Only the named nodes are configured, whatever their mode; an unknown name changes nothing.
fn select_nodes(host: &TestHost) {
    let old = "made by homestak";
    write_spec(host, "second", "[tree]");
    let unknown = configure(host, &["--yes", "app", "apq"]);
    assert_eq!(unknown.code, 1, "{}", unknown.err);
    assert!(unknown.err.contains("`apq`"), "{}", unknown.err);
    assert_eq!(motd(host), [old, old, old]);
    let unconfirmed = configure(host, &["app"]);
    assert_eq!(unconfirmed.code, 3, "{}", unconfirmed.err);
    let one = configure(host, &["--yes", "--json-output", "app"]).json();
    assert_eq!(one["success"], true, "{one}");
    assert_eq!(motd(host), ["second", old, old]);
    configure(host, &["--yes", "edge", "infra"]).good();
    assert_eq!(motd(host), ["second"; 3]);
}

/// The node continues without its driver; the next command has the result, as JSON.
fn kill_the_driver_of_a_hybrid_node(host: &TestHost) {
    // The server that the driver started ends with it, so the report is lost, and the node is asked.
    write_spec(host, "third", "[tree, cron]");
    configure_until(host, "edge", "edge: install");
    crate::pull::server_has_ended(host);
    wait_until_idle(host, "edge");
    let result = configure(host, &["--yes", "--json-output", "edge"]).json();
    assert_eq!(result["success"], true, "{result}");
    let nodes = result["nodes"].as_array().unwrap();
    let edge = nodes.iter().find(|node| node["name"] == "edge").unwrap();
    assert_eq!(edge["config"], "configured", "{result}");
    host.inside("edge", "grep -qx third /etc/motd").good();

    // A server that stays receives the report, of a success and of a failure.
    host.run(&["server", "start"]).good();
    assert!(server_runs(host));
    for (packages, state, words) in [
        ("[tree, no-such-package]", "failed", "no-such-package"),
        ("[tree]", "converged", ""),
    ] {
        write_spec(host, "fourth", packages);
        configure_until(host, "edge", "edge: fetch its spec");
        wait_until_idle(host, "edge");
        let report = last_report(host, "edge");
        assert_eq!(report["state"], state, "{report}");
        let error = report["error"].as_str().unwrap_or_default();
        assert!(error.contains(words), "{report}");
    }
    let result = configure(host, &["--yes", "edge"]);
    assert!(result.err.contains("Nothing to do."), "{}", result.err);
    host.inside("edge", "grep -qx fourth /etc/motd && ! command -v crontab")
        .good();
    host.run(&["server", "stop"]).good();
}

/// A node that is off cannot be configured: that is an error when it is named, and a notice otherwise.
fn skip_a_node_that_is_off(host: &TestHost) {
    host.inside("edge", "sudo systemctl poweroff");
    while host
        .nodes()
        .iter()
        .any(|node| node["name"] == "edge" && node["running"] == true)
    {
        std::thread::sleep(Duration::from_millis(100));
    }
    let named = configure(host, &["--yes", "edge"]);
    assert_eq!(named.code, 3, "{}{}", named.out, named.err);
    assert!(named.err.contains("it does not run"), "{}", named.err);
    let others = configure(host, &["--yes"]);
    assert_eq!(others.code, 0, "{}{}", others.out, others.err);
    assert!(others.err.contains("it does not run"), "{}", others.err);
    for node in ["app", "infra"] {
        host.inside(node, "grep -qx fourth /etc/motd").good();
    }
}
