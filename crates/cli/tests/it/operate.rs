//! Manifests are planned, applied and destroyed on a host over TLS.

use homestak_core::plan::PLAN_FORMAT;
use homestak_sim::Kind;
use serde_json::Value;

use crate::test_pve::{TestPve, events, order};

#[test]
fn st_2_a_machine_is_created_and_destroyed() {
    let host = TestPve::quick();
    host.single();
    let applied = host
        .run(&[
            "manifest",
            "apply",
            "-M",
            "single-node",
            "-H",
            "father",
            "--json-output",
        ])
        .json();
    assert_eq!(applied["kind"], "manifest.apply");
    assert_eq!(
        (&applied["verb"], &applied["success"]),
        (&"apply".into(), &true.into())
    );
    assert_eq!(applied["ending"], "done");
    let node = &applied["nodes"][0];
    assert_eq!(
        (&node["name"], &node["status"]),
        (&"test-vm".into(), &"completed".into())
    );
    assert!(
        node["vm_id"].as_u64().is_some() && node["ip"].as_str().is_some(),
        "{node}"
    );
    assert!(node["duration"].as_f64().unwrap() > 0.0);
    assert_eq!(host.guests(), ["test-vm"]);
    let destroyed = host
        .run(&[
            "manifest",
            "destroy",
            "-M",
            "single-node",
            "-H",
            "father",
            "--yes",
            "--json-output",
        ])
        .json();
    assert_eq!(destroyed["nodes"][0]["status"], "destroyed");
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn st_6_peers_are_created_in_parallel_on_one_host() {
    let host = TestPve::quick();
    host.workers(3, "");
    let run = host.run(&[
        "manifest", "apply", "-M", "workers", "-H", "father", "--events",
    ]);
    let out = run.good();
    let events = events(&out);
    let first_done = events
        .iter()
        .position(|(event, _, step)| event == "step-done" && step == "create");
    let begun = events[..first_done.unwrap()]
        .iter()
        .filter(|(event, _, step)| event == "step-started" && step == "create");
    assert!(begun.count() > 1, "{events:?}");
    assert_eq!(host.guests(), ["worker-1", "worker-2", "worker-3"]);
    assert!(host.pve.guests().iter().all(|guest| guest.host == "pve1"));
    host.run(&["manifest", "destroy", "-M", "workers", "-H", "father", "-y"])
        .good();
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn st_8_every_action_can_be_repeated() {
    let host = TestPve::quick();
    host.single();
    let create = ["create", "-M", "single-node", "-H", "father"];
    let destroy = ["destroy", "-M", "single-node", "-H", "father", "--yes"];
    host.run(&create).good();
    let before = host.pve.guests();
    let again = host.run(&create);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    again.good();
    assert_eq!(host.pve.guests(), before, "guests are unchanged");
    host.run(&destroy).good();
    let again = host.run(&destroy);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    again.good();
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn a_plan_is_shown_with_reasons_and_changes_nothing() {
    let host = TestPve::quick();
    host.single();
    let plan = host
        .run(&["manifest", "plan", "-M", "single-node", "-H", "father"])
        .good();
    assert!(plan.contains("+ test-vm"), "{plan}");
    assert!(plan.contains("manifests/single-node.yaml:5:"), "{plan}");
    assert!(plan.contains("1 to create;"), "{plan}");
    let dry = host
        .run(&[
            "manifest",
            "apply",
            "-M",
            "single-node",
            "-H",
            "father",
            "--dry-run",
        ])
        .good();
    assert_eq!(dry, plan);
    let json = host
        .run(&[
            "manifest",
            "plan",
            "-M",
            "single-node",
            "-H",
            "father",
            "--json-output",
        ])
        .json();
    assert_eq!(
        (&json["kind"], &json["verb"]),
        (&"manifest.plan".into(), &"apply".into())
    );
    assert_eq!(json["nodes"][0]["action"], "create");
    assert_eq!(host.guests(), [""; 0]);
    assert_eq!(
        host.run(&["manifest", "history"]).out,
        "",
        "no run was recorded"
    );
}

#[test]
fn a_saved_plan_is_applied_only_while_it_is_current() {
    let host = TestPve::quick();
    host.single();
    let plan = [
        "manifest",
        "plan",
        "-M",
        "single-node",
        "-H",
        "father",
        "--out",
        "plan.json",
    ];
    host.run(&plan).good();
    host.run(&["manifest", "apply", "plan.json", "--dry-run"])
        .good();
    host.run(&["manifest", "apply", "plan.json"]).good();
    assert_eq!(host.guests(), ["test-vm"]);
    let stale = host.run(&["manifest", "apply", "--plan", "plan.json"]);
    assert_eq!(stale.code, 3);
    assert!(
        stale
            .err
            .contains("`test-vm`: the action was create, and is now nothing"),
        "{}",
        stale.err
    );
    assert_eq!(host.guests(), ["test-vm"]);
    let dry = host.run(&["manifest", "apply", "plan.json", "--dry-run"]);
    assert_eq!(dry.code, 3, "{}", dry.out);
    assert!(dry.err.contains("is now nothing"), "{}", dry.err);
    std::fs::write(host.env.work().join("other.json"), "{\"form\": 99}").unwrap();
    let unknown = host.run(&["manifest", "apply", "other.json"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("its format is 99"), "{}", unknown.err);
    let written = std::fs::read_to_string(host.env.work().join("plan.json")).unwrap();
    let older = written.replacen(&format!("\"form\": {PLAN_FORMAT}"), "\"form\": 2", 1);
    assert_ne!(written, older);
    std::fs::write(host.env.work().join("other.json"), older).unwrap();
    let older = host.run(&["manifest", "apply", "other.json"]);
    assert_eq!(older.code, 1);
    assert!(older.err.contains("its format is 2"), "{}", older.err);
    assert!(older.err.contains("manifest plan --out"), "{}", older.err);
}

#[test]
fn comments_that_move_lines_leave_a_saved_plan_valid() {
    let host = TestPve::quick();
    host.single();
    host.run(&[
        "manifest",
        "plan",
        "-M",
        "single-node",
        "-H",
        "father",
        "--out",
        "plan.json",
    ])
    .good();
    let written = std::fs::read_to_string(host.env.work().join("plan.json")).unwrap();
    assert!(written.contains("single-node.yaml:"), "{written}");
    let mut changed = 0;
    for kind in [
        "manifests",
        "nodes",
        "presets",
        "images",
        "specs",
        "postures",
    ] {
        let Ok(files) = std::fs::read_dir(host.env.site().join(kind)) else {
            continue;
        };
        for file in files.map(|file| file.unwrap().path()) {
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, format!("# Another line.\n\n{text}")).unwrap();
            changed += 1;
        }
    }
    assert!(changed > 2);
    host.run(&["manifest", "apply", "plan.json"]).good();
    assert_eq!(host.guests(), ["test-vm"]);
}

#[test]
fn destroying_needs_confirmation_and_without_a_terminal_the_flag() {
    let host = TestPve::quick();
    host.workers(2, "");
    host.run(&["manifest", "apply", "-M", "workers", "-H", "father"])
        .good();
    let refused = host.env.with_input(
        &["manifest", "destroy", "-M", "workers", "-H", "father"],
        "y\n",
    );
    assert_eq!(refused.code, 3);
    assert!(
        refused.err.contains("- worker-1") && refused.err.contains("--yes"),
        "{}",
        refused.err
    );
    assert_eq!(host.guests(), ["worker-1", "worker-2"]);
    host.workers(1, "");
    let unpruned = host.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert!(
        unpruned.err.contains("--prune deletes it"),
        "{}",
        unpruned.err
    );
    unpruned.good();
    let prune = [
        "manifest", "apply", "-M", "workers", "-H", "father", "--prune",
    ];
    assert_eq!(host.run(&prune).code, 3);
    host.run(&[&prune[..], &["--yes"]].concat()).good();
    assert_eq!(host.guests(), ["worker-1"]);
}

#[test]
fn a_resized_node_is_changed_in_place_and_a_new_node_moves_no_other() {
    let host = TestPve::quick();
    host.workers(2, "vmid_base: 500");
    let apply = ["manifest", "apply", "-M", "workers", "-H", "father"];
    host.run(&apply).good();
    let nodes = "  - {name: alpha, spec: base, preset: vm-small, image: debian-12}\n  - {name: worker-1, spec: base, preset: vm-small, image: debian-12, memory: 4096}\n  - {name: worker-2, spec: base, preset: vm-small, image: debian-12}\n";
    // VM ids are assigned by rank of name: without recorded ids, both workers would be replaced.
    host.manifest("workers", "vmid_base: 498", nodes);
    let plan = host
        .run(&["manifest", "plan", "-M", "workers", "-H", "father"])
        .good();
    assert!(
        plan.contains("~ worker-1") && plan.contains("memory 2048 -> 4096 MiB"),
        "{plan}"
    );
    assert!(
        plan.contains("1 to create, 1 to change, 1 unchanged"),
        "{plan}"
    );
    host.run(&apply).good();
    let facts = host.pve.guests();
    let worker = facts
        .iter()
        .find(|guest| guest.config["name"] == "worker-1")
        .unwrap();
    assert_eq!(
        (worker.vmid, worker.config["memory"].as_str()),
        (500, "4096")
    );
}

#[test]
fn a_vmid_of_another_guest_is_refused_with_a_hint() {
    let host = TestPve::quick();
    let pairs = vec![("name".to_owned(), "theirs".to_owned())];
    host.pve.put_guest("pve1", Kind::Qemu, 700, pairs);
    host.manifest(
        "fixed",
        "",
        "  - {name: mine, spec: base, preset: vm-small, image: debian-12, vmid: 700}\n",
    );
    for verb in ["plan", "apply"] {
        let run = host.run(&["manifest", verb, "-M", "fixed", "-H", "father"]);
        assert_eq!(run.code, 3, "{verb}");
        let output = run.out + &run.err;
        assert!(
            output.contains("vmid 700 belongs to another guest, `theirs`"),
            "{output}"
        );
        assert!(output.contains("set another `vmid`"), "{output}");
    }
    assert_eq!(host.guests(), ["theirs (off)"]);
    let destroy = host.run(&[
        "manifest", "destroy", "-M", "fixed", "-H", "father", "--yes",
    ]);
    assert!(
        destroy.err.contains("unchanged: 1 other guest"),
        "{}",
        destroy.err
    );
    destroy.good();
    assert_eq!(host.guests(), ["theirs (off)"]);
}

#[test]
fn events_are_lines_of_json_and_the_result_is_the_last() {
    let host = TestPve::quick();
    host.single();
    let apply = [
        "manifest",
        "apply",
        "-M",
        "single-node",
        "-H",
        "father",
        "--events",
        "--json-output",
    ];
    let out = host.run(&apply).good();
    let lines: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (last, events) = lines.split_last().unwrap();
    assert_eq!(
        (&last["kind"], &last["success"]),
        (&"manifest.apply".into(), &true.into())
    );
    assert_eq!(events.first().unwrap()["event"], "run-started");
    assert_eq!(events.last().unwrap()["event"], "run-ended");
    assert!(
        events
            .iter()
            .all(|event| event["run"] == last["run"] && event["at"].is_string())
    );
    let destroy = [
        "manifest",
        "destroy",
        "-M",
        "single-node",
        "-H",
        "father",
        "--events",
        "--yes",
    ];
    let out = host.run(&destroy).good();
    assert_eq!(order(&out, "destroy"), ["test-vm"]);
    assert!(out.lines().all(|line| line.contains("\"event\"")), "{out}");
}

#[test]
fn a_test_creates_verifies_destroys_and_reports() {
    let host = TestPve::quick();
    host.single();
    let json = host
        .run(&[
            "manifest",
            "test",
            "-M",
            "single-node",
            "-H",
            "father",
            "--report-dir",
            "reports",
            "--json-output",
        ])
        .json();
    assert_eq!(
        (&json["verb"], &json["success"]),
        (&"test".into(), &true.into())
    );
    assert_eq!(host.guests(), [""; 0]);
    let reports: Vec<_> = json["reports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| path.as_str().unwrap())
        .collect();
    assert!(
        reports.iter().any(|path| path.ends_with(".passed.md")),
        "{reports:?}"
    );
    let path = reports
        .iter()
        .find(|path| path.ends_with(".passed.json"))
        .unwrap();
    let text = std::fs::read_to_string(host.env.work().join(path)).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    for key in [
        "scenario",
        "host",
        "hostname",
        "success",
        "started_at",
        "finished_at",
        "duration",
        "nodes",
    ] {
        assert!(report.get(key).is_some(), "{key}: {report}");
    }
    let phases: Vec<_> = report["phases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|phase| {
            (
                phase["name"].as_str().unwrap(),
                phase["status"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        phases,
        [
            ("create", "passed"),
            ("verify", "passed"),
            ("destroy", "passed")
        ]
    );
}

#[test]
fn guests_are_found_by_their_tags_when_the_state_is_lost() {
    let host = TestPve::quick();
    host.workers(3, "");
    host.run(&["manifest", "apply", "-M", "workers", "-H", "father"])
        .good();
    std::fs::remove_dir_all(host.state()).unwrap();
    let again = host.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    std::fs::remove_dir_all(host.state()).unwrap();
    host.run(&[
        "manifest", "destroy", "-M", "workers", "-H", "father", "--yes",
    ])
    .good();
    assert_eq!(host.guests(), [""; 0]);
}
