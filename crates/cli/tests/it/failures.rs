//! Runs that fail: what they leave behind, and how it is resumed, undone or settled.

use homestak_sim::{Call, Fault, FaultKind};
use serde_json::Value;

use crate::father::Father;

/// Two machines; the image of the second is nowhere.
fn half_broken(father: &Father) {
    father.site.write("images/nowhere.yaml", "name: nowhere\n");
    let nodes = "  - {name: good, spec: base, preset: vm-small, image: debian-12}\n  - {name: bad, spec: base, preset: vm-small, image: nowhere}\n";
    father.manifest("half", "parallelism: 1", nodes);
}

#[test]
fn a_host_that_is_not_ready_is_found_out_before_anything_is_made() {
    let father = Father::quick();
    half_broken(&father);
    let run = father.run(&["manifest", "apply", "-M", "half", "-H", "father"]);
    assert_eq!(run.code, 3);
    assert!(
        run.err.contains("nowhere.qcow2") && run.err.contains("--skip-preflight"),
        "{}",
        run.err
    );
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn what_a_failure_leaves_depends_on_what_was_asked() {
    let father = Father::quick();
    half_broken(&father);
    let apply = [
        "manifest",
        "apply",
        "-M",
        "half",
        "-H",
        "father",
        "--skip-preflight",
    ];
    let continued =
        father.run(&[&apply[..], &["--on-error", "continue", "--json-output"]].concat());
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
    assert_eq!(father.guests(), ["good"]);
    father.run(&["manifest", "rollback", "--yes"]).good();
    assert_eq!(father.guests(), [""; 0]);

    let back = father.run(&[&apply[..], &["--on-error", "rollback"]].concat());
    assert_eq!(back.code, 1);
    assert!(
        back.err.contains("All changes of this run are reverted."),
        "{}",
        back.err
    );
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn kept_on_failure_means_not_rolled_back() {
    let father = Father::quick();
    father.workers(2, "on_error: rollback, parallelism: 1");
    // The first worker is made, and cannot be started.
    let start = Call::any().method("POST").path("/status/start");
    father
        .pve
        .add_fault(Fault::new(start, FaultKind::Status(501)));
    let run = father.run(&[
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
    assert_eq!(father.guests(), ["worker-1 (off)"]);
    let back = father.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert_eq!(back.code, 1, "{}", back.err);
    assert!(back.err.contains("are reverted"), "{}", back.err);
}

/// A machine that can neither be started nor removed, with everything undone on failure.
fn stuck() -> Father {
    let father = Father::quick();
    father.workers(1, "on_error: rollback");
    for (method, path) in [("POST", "/status/start"), ("DELETE", "/qemu/")] {
        let call = Call::any().method(method).path(path);
        father
            .pve
            .add_fault(Fault::new(call, FaultKind::Status(501)));
    }
    let run = father.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert_eq!(run.code, 5, "{}", run.err);
    assert!(
        run.err.contains("manual intervention is needed"),
        "{}",
        run.err
    );
    assert!(run.out.contains("stuck"), "{}", run.out);
    assert_eq!(father.guests(), ["worker-1 (off)"]);
    father
}

#[test]
fn what_could_not_be_undone_is_undone_once_the_cause_is_fixed() {
    let father = stuck();
    let status = father.run(&["manifest", "status"]);
    assert!(
        status.err.contains("could not be rolled back"),
        "{}",
        status.err
    );
    father.pve.clear_faults();
    let resumed = father.run(&["manifest", "resume"]);
    assert_eq!(resumed.code, 1, "it was undone, not done: {}", resumed.err);
    assert!(resumed.err.contains("are reverted"), "{}", resumed.err);
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn what_could_not_be_undone_can_be_marked_as_resolved() {
    let father = stuck();
    let unknown = father.run(&["manifest", "resume", "--mark-resolved", "worker-9"]);
    assert_eq!(unknown.code, 1);
    assert!(
        unknown.err.contains("did you mean `worker-1`?"),
        "{}",
        unknown.err
    );
    let settled = father.run(&["manifest", "resume", "--mark-resolved", "worker-1"]);
    let said = "Reverted, except for what was marked as resolved: `worker-1`";
    assert!(settled.err.contains(said), "{}", settled.err);
    assert_eq!(
        father.guests(),
        ["worker-1 (off)"],
        "it is the person's now"
    );
    assert_eq!(father.run(&["manifest", "resume"]).code, 3);
}

#[test]
fn a_test_that_fails_removes_everything_unless_it_is_to_be_kept() {
    let father = Father::quick();
    half_broken(&father);
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
    let kept = father.run(&[&test[..], &["--keep-on-failure"]].concat());
    assert_eq!(kept.code, 1, "{}", kept.err);
    assert!(kept.out.contains("skipped"), "{}", kept.out);
    assert_eq!(father.guests(), ["good"]);
    let guarded = father.run(&test);
    assert_eq!(
        guarded.code, 3,
        "what was there before is not removed without a yes"
    );
    assert_eq!(father.guests(), ["good"]);
    let removed = father.run(&[&test[..], &["--yes"]].concat());
    assert_eq!(removed.code, 1, "{}", removed.err);
    assert!(removed.err.contains(".failed.json"), "{}", removed.err);
    assert_eq!(father.guests(), [""; 0]);
}
