//! A node that changes from one mode of configuration to another, without being created again.

use std::io::BufRead as _;

use serde_json::Value;

use crate::modes::write_site;
use crate::node_state::{NodeTree, differences};
use crate::test_host::TestHost;

const REGISTRATION: &str = "/usr/local/etc/homestak/state/registration.json";

fn apply(host: &TestHost, mode: &str) -> String {
    let run = host.manifest_run("apply", "lab", &["--yes", "--mode", mode]);
    assert_eq!(run.code, 0, "{mode}: {}{}", run.out, run.err);
    format!("{}{}", run.out, run.err)
}

/// Returns the names of the nodes whose specs are published.
fn published(host: &TestHost) -> Vec<Value> {
    let checked = host.run(&["server", "check", "--json-output"]).json();
    let nodes = checked["nodes"].as_array().unwrap().iter();
    nodes.map(|node| node["name"].clone()).collect()
}

/// Asserts that the node has what its mode needs, and nothing of another mode.
fn assert_in_mode(host: &TestHost, mode: &str) {
    let test = |wanted: bool, what: &str| {
        let not = if wanted { "" } else { "! " };
        host.inside("web", &format!("{not}{what}")).good();
    };
    test(mode != "push", &format!("sudo test -e {REGISTRATION}"));
    test(
        mode == "pull",
        "systemctl is-active --quiet homestak-pull.service",
    );
    test(
        mode == "pull",
        "systemctl is-enabled --quiet homestak-pull.service",
    );
    if mode == "push" {
        test(false, "test -e /etc/profile.d/homestak.sh");
    }
    assert_eq!(published(host).is_empty(), mode == "push", "{mode}");
    let plan = host.manifest_run("plan", "lab", &["--mode", mode]).good();
    assert!(plan.contains("Nothing to do."), "{mode}: {plan}");
}

#[test]
fn a_node_changes_from_each_mode_to_each_other_and_keeps_its_state() {
    let Some(host) = crate::host() else { return };
    write_site(&host);
    host.manifest("lab", "  - {name: web, spec: base}\n");
    apply(&host, "push");
    assert_in_mode(&host, "push");
    let nodes = host.nodes();
    let tree = NodeTree::of(&host, "web");
    let mut before = "push";
    for mode in ["hybrid", "pull", "push", "pull", "hybrid", "push"] {
        let plan = host.manifest_run("plan", "lab", &["--mode", mode]);
        let words = format!("its mode changes from `{before}` to `{mode}`");
        assert!(plan.out.contains(&words), "{}{}", plan.out, plan.err);
        apply(&host, mode);
        assert_in_mode(&host, mode);
        let found = differences(&tree, &NodeTree::of(&host, "web"));
        assert!(found.is_empty(), "{before} to {mode}: {found:#?}");
        before = mode;
    }
    assert_eq!(host.nodes(), nodes);
    host.destroy("lab");
    crate::pull::server_has_ended(&host);
    host.assert_unchanged();
}

#[test]
fn a_change_of_mode_whose_driver_is_killed_is_finished_by_the_next_run() {
    let Some(host) = crate::host() else { return };
    write_site(&host);
    host.manifest("lab", "  - {name: web, spec: base}\n");
    apply(&host, "push");
    for (mode, words) in [("pull", "web: fetch its spec"), ("push", "web: start")] {
        let arguments = ["apply", "-M", "lab", "-H", "local", "--yes", "--mode", mode];
        let mut driver = host
            .command(&[&["manifest"][..], &arguments].concat())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(driver.stderr.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        // If it ended before, the next run has nothing to do.
        lines.any(|line| line.contains(words));
        driver.kill().unwrap();
        driver.wait().unwrap();
        apply(&host, mode);
        assert_in_mode(&host, mode);
    }
    host.destroy("lab");
    crate::pull::server_has_ended(&host);
    host.assert_unchanged();
}
