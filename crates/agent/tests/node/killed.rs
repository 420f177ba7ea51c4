//! Killed at any step and run again, a node ends the same.

use serde_json::{Value, json};

use crate::lab::{AGENT, KEY, Lab, STATE};
use crate::sample;

#[test]
fn killed_after_any_step_and_run_again_it_ends_the_same() {
    let Some(lab) = Lab::new() else { return };
    // Packages are one step, and a slow one: they are part of the first moments only.
    let (mut dev, mut prod) = (lab.spec("dev"), lab.spec("prod"));
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
    first_moments(&lab, &dev, &slow);
    lab.apply(&dev);
    lab.apply(&prod);
    let right = lab.picture();
    let fields = lab
        .root(&format!("{AGENT} config show --json-output"))
        .good();
    lab.apply(&dev);
    let n_steps = lab.rehearse(&prod);
    // Packages, files, reloads and services are steps of their own.
    assert!(n_steps > 5, "{n_steps}");
    let moments = sample::some(4, n_steps + 1);
    for &at in &moments {
        lab.apply(&dev);
        assert!(killed(&lab, at, &prod), "at {at}");
        let status = lab.status();
        assert_ne!(status["status"], "complete", "killed at {at}: {status:#}");
        lab.apply(&prod);
        assert_eq!(lab.status()["status"], "complete");
        let now = lab.picture();
        let lines: Vec<_> = now.lines().filter(|line| !right.contains(line)).collect();
        assert_eq!(now, right, "killed at {at}: {lines:#?}");
        let shown = lab
            .root(&format!("{AGENT} config show --json-output"))
            .good();
        assert_eq!(shown, fields, "killed at {at}");
    }
    println!("killed at {moments:?} of {n_steps} moments");
    lab.root(&format!("ls -A {STATE}")).good();
    lab.bed.destroy("lab");
}

/// Applies a spec with an agent that dies after some steps, and tells whether it died.
fn killed(lab: &Lab, at: usize, spec: &Value) -> bool {
    let command = format!("sudo env HOMESTAK_CRASH_AFTER={at} {AGENT} config apply --spec -");
    let run = lab.bed.feed("web", &command, spec.to_string().as_bytes());
    run.code != 0
}

/// Killed around packages, what was installed for a spec still goes with it.
fn first_moments(lab: &Lab, before: &Value, spec: &Value) {
    lab.apply(before);
    for at in 0..2 {
        assert!(killed(lab, at, spec), "at {at}");
    }
    lab.apply(spec);
    lab.root("command -v strace").good();
    lab.apply(before);
    lab.root("command -v strace").bad();
}
