//! Runs that fail: what they leave behind, and how they are resumed, rolled back or resolved.

use homestak_sim::{Call, Fault, FaultKind};
use serde_json::Value;

use crate::test_pve::TestPve;

/// Two machines; the image of the second does not exist.
fn half_broken(host: &TestPve) {
    host.env.write("images/nowhere.yaml", "name: nowhere\n");
    let nodes = "  - {name: good, spec: base, preset: vm-small, image: debian-12}\n  - {name: bad, spec: base, preset: vm-small, image: nowhere}\n";
    host.manifest("half", "parallelism: 1", nodes);
}

#[test]
fn preflight_refuses_a_host_that_is_not_ready_before_anything_is_created() {
    let host = TestPve::quick();
    half_broken(&host);
    let run = host.run(&["manifest", "apply", "-M", "half", "-H", "father"]);
    assert_eq!(run.code, 3);
    assert!(
        run.err.contains("nowhere.qcow2") && run.err.contains("--skip-preflight"),
        "{}",
        run.err
    );
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn on_error_decides_what_a_failure_leaves() {
    let host = TestPve::quick();
    half_broken(&host);
    let apply = [
        "manifest",
        "apply",
        "-M",
        "half",
        "-H",
        "father",
        "--skip-preflight",
    ];
    let continued = host.run(&[&apply[..], &["--on-error", "continue", "--json-output"]].concat());
    assert_eq!(continued.code, 1);
    let json: Value = serde_json::from_str(&continued.out).unwrap();
    assert_eq!(
        (&json["success"], &json["ending"]),
        (&false.into(), &"failed".into())
    );
    assert!(
        continued.err.contains("has no `source`"),
        "{}",
        continued.err
    );
    assert!(
        continued
            .err
            .contains("homestak manifest resume -M half -H father"),
        "{}",
        continued.err
    );
    assert_eq!(host.guests(), ["good"]);
    host.run(&["manifest", "rollback", "--yes"]).good();
    assert_eq!(host.guests(), [""; 0]);

    let rollback = host.run(&[&apply[..], &["--on-error", "rollback"]].concat());
    assert_eq!(rollback.code, 1);
    assert!(
        rollback
            .err
            .contains("All changes of this run are reverted."),
        "{}",
        rollback.err
    );
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn keep_on_failure_prevents_the_rollback() {
    let host = TestPve::quick();
    host.workers(2, "on_error: rollback, parallelism: 1");
    // The first worker is created and cannot be started.
    let start = Call::any().method("POST").path("/status/start");
    host.pve
        .add_fault(Fault::new(start, FaultKind::Status(501)));
    let run = host.run(&[
        "manifest",
        "apply",
        "-M",
        "workers",
        "-H",
        "father",
        "--keep-on-failure",
        "--json-output",
    ]);
    assert_eq!(run.code, 1, "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["ending"], "failed");
    assert!(
        json["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|node| node["error"].is_string())
    );
    assert_eq!(host.guests(), ["worker-1 (off)"]);
    let rollback = host.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert_eq!(rollback.code, 1, "{}", rollback.err);
    assert!(rollback.err.contains("are reverted"), "{}", rollback.err);
}

/// A machine that can be neither started nor destroyed, with `on_error: rollback`.
fn stuck() -> TestPve {
    let host = TestPve::quick();
    host.workers(1, "on_error: rollback");
    for (method, path) in [("POST", "/status/start"), ("DELETE", "/qemu/")] {
        let call = Call::any().method(method).path(path);
        host.pve.add_fault(Fault::new(call, FaultKind::Status(501)));
    }
    let run = host.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert_eq!(run.code, 5, "{}", run.err);
    assert!(
        run.err.contains("manual intervention is needed"),
        "{}",
        run.err
    );
    assert!(run.out.contains("stuck"), "{}", run.out);
    assert_eq!(host.guests(), ["worker-1 (off)"]);
    host
}

#[test]
fn a_failed_rollback_is_completed_by_resume_once_the_cause_is_fixed() {
    let host = stuck();
    let status = host.run(&["manifest", "status"]);
    assert!(
        status.err.contains("could not be rolled back"),
        "{}",
        status.err
    );
    host.pve.clear_faults();
    let resumed = host.run(&["manifest", "resume"]);
    assert_eq!(resumed.code, 1, "it was undone, not done: {}", resumed.err);
    assert!(resumed.err.contains("are reverted"), "{}", resumed.err);
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn a_failed_rollback_can_be_marked_as_resolved() {
    let host = stuck();
    let unknown = host.run(&["manifest", "resume", "--mark-resolved", "worker-9"]);
    assert_eq!(unknown.code, 1);
    assert!(
        unknown.err.contains("did you mean `worker-1`?"),
        "{}",
        unknown.err
    );
    let resolved = host.run(&["manifest", "resume", "--mark-resolved", "worker-1"]);
    let expected = "Reverted, except for what was marked as resolved: `worker-1`";
    assert!(resolved.err.contains(expected), "{}", resolved.err);
    assert_eq!(
        host.guests(),
        ["worker-1 (off)"],
        "a resolved guest is kept"
    );
    assert_eq!(host.run(&["manifest", "resume"]).code, 3);
}

#[test]
fn a_failed_test_removes_everything_unless_keep_on_failure_is_set() {
    let host = TestPve::quick();
    half_broken(&host);
    let test = [
        "manifest",
        "test",
        "-M",
        "half",
        "-H",
        "father",
        "--skip-preflight",
        "--on-error",
        "continue",
    ];
    let failed = host.run(&[&test[..], &["--keep-on-failure"]].concat());
    assert_eq!(failed.code, 1, "{}", failed.err);
    assert!(failed.out.contains("skipped"), "{}", failed.out);
    assert_eq!(host.guests(), ["good"]);
    let guarded = host.run(&test);
    assert_eq!(
        guarded.code, 3,
        "existing guests are not destroyed without confirmation"
    );
    assert_eq!(host.guests(), ["good"]);
    let removed = host.run(&[&test[..], &["--yes"]].concat());
    assert_eq!(removed.code, 1, "{}", removed.err);
    assert!(removed.err.contains(".failed.json"), "{}", removed.err);
    assert_eq!(host.guests(), [""; 0]);
}
