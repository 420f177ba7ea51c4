//! Killed at any step and run again, a node ends the same.

use crate::lab::{AGENT, Lab, STATE};

#[test]
fn killed_after_any_step_and_run_again_it_ends_the_same() {
    let Some(lab) = Lab::new() else { return };
    let (dev, prod) = (lab.spec("dev"), lab.spec("prod"));
    lab.apply(&dev);
    lab.apply(&prod);
    let right = lab.picture();
    let fields = lab
        .root(&format!("{AGENT} config show --json-output"))
        .good();
    let mut n_killed = 0;
    for at in 0.. {
        lab.apply(&dev);
        let command = format!("sudo env HOMESTAK_CRASH_AFTER={at} {AGENT} config apply --spec -");
        let run = lab.bed.feed("web", &command, prod.to_string().as_bytes());
        if run.code == 0 {
            break;
        }
        n_killed += 1;
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
    // Packages, files, reloads and services are steps of their own.
    assert!(n_killed > 5, "{n_killed}");
    println!("killed at {n_killed} moments");
    lab.root(&format!("ls -A {STATE}")).good();
    lab.bed.destroy("lab");
}
