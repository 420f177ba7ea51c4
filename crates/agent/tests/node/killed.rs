//! A run that is killed at any step and repeated has the same result.

use serde_json::{Value, json};

use crate::sample;
use crate::test_node::{AGENT, KEY, STATE, TestNode};

#[test]
fn a_run_killed_after_any_step_and_repeated_has_the_same_result() {
    let Some(node) = TestNode::new() else { return };
    // Packages are one slow step, which is tested separately.
    let (mut dev, mut prod) = (node.spec("dev"), node.spec("prod"));
    for spec in [&mut dev, &mut prod] {
        spec["access"]["_posture"]["fail2ban"]["enabled"] = json!(false);
        spec["access"]["_posture"]["packages"] = json!([]);
    }
    prod["access"]["users"] = json!([{ "name": "dave", "sudo": true, "ssh_keys": [KEY] }]);
    prod["identity"]["domain"] = json!("other.example");
    prod["config"]["timezone"] = json!("Europe/Paris");
    prod["platform"]["services"] = json!({ "enable": [], "disable": [] });
    let mut slow = prod.clone();
    slow["platform"]["packages"] = json!(["tree", "cron", "strace"]);
    killed_around_packages(&node, &dev, &slow);
    node.apply(&dev);
    node.apply(&prod);
    let right = node.snapshot();
    let fields = node
        .root(&format!("{AGENT} config show --json-output"))
        .good();
    node.apply(&dev);
    let n_steps = node.dry_run(&prod);
    // Packages, files, reloads and services are steps of their own.
    assert!(n_steps > 5, "{n_steps}");
    let points = sample::some(4, n_steps + 1);
    for &at in &points {
        node.apply(&dev);
        assert!(killed(&node, at, &prod), "at {at}");
        let status = node.status();
        assert_ne!(status["status"], "complete", "killed at {at}: {status:#}");
        node.apply(&prod);
        assert_eq!(node.status()["status"], "complete");
        let now = node.snapshot();
        let lines: Vec<_> = now.lines().filter(|line| !right.contains(line)).collect();
        assert_eq!(now, right, "killed at {at}: {lines:#?}");
        let differences = node
            .root(&format!("{AGENT} config show --json-output"))
            .good();
        assert_eq!(differences, fields, "killed at {at}");
    }
    println!("killed at {points:?} of {n_steps} points");
    node.root(&format!("ls -A {STATE}")).good();
    node.host.destroy("lab");
}

/// Applies a spec with an agent that aborts after some steps, and returns whether it did.
fn killed(node: &TestNode, at: usize, spec: &Value) -> bool {
    let command = format!("sudo env HOMESTAK_CRASH_AFTER={at} {AGENT} config apply --spec -");
    let run = node
        .host
        .run_with_input("web", &command, spec.to_string().as_bytes());
    run.code != 0
}

/// Packages installed by a killed run are still removed with their spec.
fn killed_around_packages(node: &TestNode, before: &Value, spec: &Value) {
    node.apply(before);
    for at in 0..2 {
        assert!(killed(node, at, spec), "at {at}");
    }
    node.apply(spec);
    node.root("command -v strace").good();
    node.apply(before);
    node.root("command -v strace").bad();
}
