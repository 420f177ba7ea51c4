//! Manifests are planned, applied and destroyed on a host over TLS.

use homestak_core::plan::PLAN_FORMAT;
use homestak_sim::Kind;
use serde_json::Value;

use crate::father::{Father, events, order};

#[test]
fn st_2_a_machine_is_made_and_removed() {
    let father = Father::quick();
    father.single();
    let made = father
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
    assert_eq!(made["kind"], "manifest.apply");
    assert_eq!(
        (&made["verb"], &made["success"]),
        (&"apply".into(), &true.into())
    );
    assert_eq!(made["ending"], "done");
    let node = &made["nodes"][0];
    assert_eq!(
        (&node["name"], &node["status"]),
        (&"test-vm".into(), &"completed".into())
    );
    assert!(
        node["vm_id"].as_u64().is_some() && node["ip"].as_str().is_some(),
        "{node}"
    );
    assert!(node["duration"].as_f64().unwrap() > 0.0);
    assert_eq!(father.guests(), ["test-vm"]);
    let gone = father
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
    assert_eq!(gone["nodes"][0]["status"], "destroyed");
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn st_6_peers_are_made_side_by_side_on_one_host() {
    let father = Father::quick();
    father.workers(3, "");
    let run = father.run(&[
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
    assert_eq!(father.guests(), ["worker-1", "worker-2", "worker-3"]);
    assert!(father.pve.guests().iter().all(|guest| guest.host == "pve1"));
    father
        .run(&["manifest", "destroy", "-M", "workers", "-H", "father", "-y"])
        .good();
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn st_8_every_action_can_be_repeated() {
    let father = Father::quick();
    father.single();
    let create = ["create", "-M", "single-node", "-H", "father"];
    let destroy = ["destroy", "-M", "single-node", "-H", "father", "--yes"];
    father.run(&create).good();
    let before = father.pve.guests();
    let again = father.run(&create);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    again.good();
    assert_eq!(father.pve.guests(), before, "the world is unchanged");
    father.run(&destroy).good();
    let again = father.run(&destroy);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    again.good();
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn a_plan_is_shown_with_reasons_and_changes_nothing() {
    let father = Father::quick();
    father.single();
    let plan = father
        .run(&["manifest", "plan", "-M", "single-node", "-H", "father"])
        .good();
    assert!(plan.contains("+ test-vm"), "{plan}");
    assert!(plan.contains("manifests/single-node.yaml:5:"), "{plan}");
    assert!(plan.contains("1 to create;"), "{plan}");
    let dry = father
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
    let json = father
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
    assert_eq!(father.guests(), [""; 0]);
    assert_eq!(
        father.run(&["manifest", "history"]).out,
        "",
        "nothing was begun"
    );
}

#[test]
fn a_written_plan_is_carried_out_only_while_it_fits() {
    let father = Father::quick();
    father.single();
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
    father.run(&plan).good();
    father.run(&["manifest", "apply", "plan.json"]).good();
    assert_eq!(father.guests(), ["test-vm"]);
    let stale = father.run(&["manifest", "apply", "--plan", "plan.json"]);
    assert_eq!(stale.code, 3);
    assert!(
        stale
            .err
            .contains("`test-vm`: the action was create, and is now nothing"),
        "{}",
        stale.err
    );
    assert_eq!(father.guests(), ["test-vm"]);
    std::fs::write(father.site.work().join("other.json"), "{\"form\": 99}").unwrap();
    let unknown = father.run(&["manifest", "apply", "other.json"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("its format is 99"), "{}", unknown.err);
    let written = std::fs::read_to_string(father.site.work().join("plan.json")).unwrap();
    let older = written.replacen(&format!("\"form\": {PLAN_FORMAT}"), "\"form\": 2", 1);
    assert_ne!(written, older);
    std::fs::write(father.site.work().join("other.json"), older).unwrap();
    let older = father.run(&["manifest", "apply", "other.json"]);
    assert_eq!(older.code, 1);
    assert!(older.err.contains("its format is 2"), "{}", older.err);
    assert!(older.err.contains("manifest plan --out"), "{}", older.err);
}

#[test]
fn a_comment_that_moves_every_line_leaves_a_written_plan_valid() {
    let father = Father::quick();
    father.single();
    father
        .run(&[
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
    let written = std::fs::read_to_string(father.site.work().join("plan.json")).unwrap();
    assert!(written.contains("single-node.yaml:"), "{written}");
    let mut moved = 0;
    for kind in [
        "manifests",
        "nodes",
        "presets",
        "images",
        "specs",
        "postures",
    ] {
        let Ok(files) = std::fs::read_dir(father.site.site().join(kind)) else {
            continue;
        };
        for file in files.map(|file| file.unwrap().path()) {
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, format!("# Another line.\n\n{text}")).unwrap();
            moved += 1;
        }
    }
    assert!(moved > 2);
    father.run(&["manifest", "apply", "plan.json"]).good();
    assert_eq!(father.guests(), ["test-vm"]);
}

#[test]
fn removal_needs_a_yes_and_without_a_terminal_the_flag() {
    let father = Father::quick();
    father.workers(2, "");
    father
        .run(&["manifest", "apply", "-M", "workers", "-H", "father"])
        .good();
    let refused = father.site.with_input(
        &["manifest", "destroy", "-M", "workers", "-H", "father"],
        "y\n",
    );
    assert_eq!(refused.code, 3);
    assert!(
        refused.err.contains("- worker-1") && refused.err.contains("--yes"),
        "{}",
        refused.err
    );
    assert_eq!(father.guests(), ["worker-1", "worker-2"]);
    father.workers(1, "");
    let kept = father.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert!(kept.err.contains("--prune deletes it"), "{}", kept.err);
    kept.good();
    let prune = [
        "manifest", "apply", "-M", "workers", "-H", "father", "--prune",
    ];
    assert_eq!(father.run(&prune).code, 3);
    father.run(&[&prune[..], &["--yes"]].concat()).good();
    assert_eq!(father.guests(), ["worker-1"]);
}

#[test]
fn a_changed_size_is_changed_in_place_and_a_new_node_moves_no_other() {
    let father = Father::quick();
    father.workers(2, "vmid_base: 500");
    let apply = ["manifest", "apply", "-M", "workers", "-H", "father"];
    father.run(&apply).good();
    let nodes = "  - {name: alpha, spec: base, preset: vm-small, image: debian-12}\n  - {name: worker-1, spec: base, preset: vm-small, image: debian-12, memory: 4096}\n  - {name: worker-2, spec: base, preset: vm-small, image: debian-12}\n";
    // Ranks go by name: without memory of the ids, both workers would be replaced.
    father.manifest("workers", "vmid_base: 498", nodes);
    let plan = father
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
    father.run(&apply).good();
    let facts = father.pve.guests();
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
fn an_id_of_another_guest_is_refused_with_what_to_do() {
    let father = Father::quick();
    let pairs = vec![("name".to_owned(), "theirs".to_owned())];
    father.pve.put_guest("pve1", Kind::Qemu, 700, pairs);
    father.manifest(
        "fixed",
        "",
        "  - {name: mine, spec: base, preset: vm-small, image: debian-12, vmid: 700}\n",
    );
    for verb in ["plan", "apply"] {
        let run = father.run(&["manifest", verb, "-M", "fixed", "-H", "father"]);
        assert_eq!(run.code, 3, "{verb}");
        let said = run.out + &run.err;
        assert!(
            said.contains("vmid 700 belongs to another guest, `theirs`"),
            "{said}"
        );
        assert!(said.contains("set another `vmid`"), "{said}");
    }
    assert_eq!(father.guests(), ["theirs (off)"]);
    let destroy = father.run(&[
        "manifest", "destroy", "-M", "fixed", "-H", "father", "--yes",
    ]);
    assert!(
        destroy.err.contains("unchanged: 1 other guest"),
        "{}",
        destroy.err
    );
    destroy.good();
    assert_eq!(father.guests(), ["theirs (off)"]);
}

#[test]
fn events_are_lines_of_json_and_the_result_is_the_last() {
    let father = Father::quick();
    father.single();
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
    let out = father.run(&apply).good();
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
    let out = father.run(&destroy).good();
    assert_eq!(order(&out, "destroy"), ["test-vm"]);
    assert!(out.lines().all(|line| line.contains("\"event\"")), "{out}");
}

#[test]
fn a_test_makes_verifies_removes_and_reports() {
    let father = Father::quick();
    father.single();
    let json = father
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
    assert_eq!(father.guests(), [""; 0]);
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
    let text = std::fs::read_to_string(father.site.work().join(path)).unwrap();
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
fn guests_are_found_by_their_tags_when_all_memory_is_lost() {
    let father = Father::quick();
    father.workers(3, "");
    father
        .run(&["manifest", "apply", "-M", "workers", "-H", "father"])
        .good();
    std::fs::remove_dir_all(father.state()).unwrap();
    let again = father.run(&["manifest", "apply", "-M", "workers", "-H", "father"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    std::fs::remove_dir_all(father.state()).unwrap();
    father
        .run(&[
            "manifest", "destroy", "-M", "workers", "-H", "father", "--yes",
        ])
        .good();
    assert_eq!(father.guests(), [""; 0]);
}
