//! A state directory that was lost, or a second one: records come back from the hosts.

use std::fs;

use homestak_sim::Kind;
use serde_json::Value;

use crate::father::Father;
use crate::owner::{APPLY, without_id};
use crate::support::{Run, World};

const REBUILD: [&str; 4] = ["state", "rebuild", "-H", "father"];

fn rebuild(father: &Father) -> (i32, Value) {
    let run = father.run(&[&REBUILD[..], &["--json-output"]].concat());
    let json = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}", run.err));
    (run.code, json)
}

fn restored(json: &Value) -> Vec<String> {
    let nodes = json["restored"].as_array().unwrap().iter();
    let mut names: Vec<String> = nodes
        .map(|node| node["node"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn lose_state(father: &Father) {
    fs::remove_dir_all(father.state()).unwrap();
}

#[test]
fn records_of_a_lost_state_come_back_from_the_host_and_keys_are_asked_for() {
    let father = Father::quick();
    father.workers(2, "");
    father
        .run(&["manifest", "apply", "-M", "workers", "-H", "father"])
        .good();
    let before = father.pve.guests();
    lose_state(&father);
    let dry = father.run(&[&REBUILD[..], &["--dry-run"]].concat());
    assert!(dry.err.contains("2 nodes would be recorded"), "{}", dry.err);
    let (code, json) = rebuild(&father);
    assert_eq!(code, 0, "{json:#}");
    assert_eq!(restored(&json), ["worker-1", "worker-2"]);
    for node in json["restored"].as_array().unwrap() {
        let vmid = node["vmid"].as_u64().unwrap();
        assert!(
            before.iter().any(|guest| u64::from(guest.vmid) == vmid),
            "{json:#}"
        );
        assert!(node["address"].is_string(), "{json:#}");
    }
    // Neither the driver's key nor the keys of the nodes can come back.
    let locked = json["without_keys"].as_array().unwrap();
    assert_eq!(locked.len(), 2, "{json:#}");
    let commands = locked[0]["commands"].to_string();
    assert!(
        commands.contains("authorized_keys") && commands.contains("known_hosts"),
        "{commands}"
    );
    assert_eq!(father.pve.guests(), before, "hosts are not changed");
    // It is known now, and once is enough.
    let (code, json) = rebuild(&father);
    assert_eq!((code, json["known"].as_u64()), (0, Some(2)), "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    // As long as the keys are not there, it says so.
    assert_eq!(json["without_keys"].as_array().unwrap().len(), 2);
    let known = father.run(&["manifest", "forget", "worker-1", "-M", "workers", "--yes"]);
    known.good();
    assert_eq!(restored(&rebuild(&father).1), ["worker-1"]);
    // What is recorded can be removed again.
    father
        .run(&[
            "manifest", "destroy", "-M", "workers", "-H", "father", "--yes",
        ])
        .good();
    assert!(father.pve.guests().is_empty());
}

#[test]
fn guests_of_another_site_with_the_same_names_are_not_recorded() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    lose_state(&father);
    father.run(&["site", "new-id", "--yes"]).good();
    let (code, json) = rebuild(&father);
    assert_eq!(code, 0, "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    without_id(&father);
    let run = father.run(&REBUILD);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("The site has no id"), "{}", run.err);
}

#[test]
fn copies_are_not_recorded_and_are_named() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let original = father.pve.guests().remove(0);
    let copy = original.vmid + 1;
    let config: Vec<(String, String)> = original.config.clone().into_iter().collect();
    father.pve.put_guest("pve1", Kind::Qemu, copy, config);
    lose_state(&father);
    let (code, json) = rebuild(&father);
    assert_eq!(code, 3, "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    let reason = json["refused"][0]["reason"].as_str().unwrap();
    for vmid in [original.vmid, copy] {
        assert!(reason.contains(&vmid.to_string()), "{reason}");
    }
}

#[test]
fn notes_and_tags_that_contradict_the_identity_are_not_believed() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let guest = father.pve.guests().remove(0);
    let forge = |vmid: u32, change: &dyn Fn(&mut std::collections::BTreeMap<String, String>)| {
        let mut config = guest.config.clone().into_iter().collect();
        change(&mut config);
        father
            .pve
            .put_guest("pve1", Kind::Qemu, vmid, config.into_iter().collect());
    };
    // Tags and notes say that it is the node's, its SMBIOS says otherwise.
    let other = "0a0b0c0d-0000-8000-8000-000000000000";
    forge(guest.vmid, &|config| {
        config.insert("smbios1".to_owned(), format!("uuid={other}"));
    });
    // All of it says that it is a guest of this site and manifest, and no node has its identity.
    let uuid = guest.config["smbios1"]
        .trim_start_matches("uuid=")
        .split(',')
        .next()
        .unwrap()
        .to_owned();
    forge(4321, &|config| {
        for value in config.values_mut() {
            *value = value
                .replace(&uuid, other)
                .replace(&guest.vmid.to_string(), "4321");
        }
    });
    lose_state(&father);
    let (code, json) = rebuild(&father);
    assert_eq!(code, 3, "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    let refused = json["refused"].to_string();
    assert!(refused.contains("guest 4321"), "{json:#}");
    assert_eq!(json["refused"].as_array().unwrap().len(), 2, "{json:#}");
}

#[test]
fn nodes_inside_nodes_come_back_with_the_node_they_are_in() {
    let world = World::new();
    let run = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_SIM_SPEED", "200");
        command.output().map(Run::from).unwrap()
    };
    run(&["manifest", "apply", "-M", "n2-tiered", "-H", "sim"]).good();
    let state = world.home().join(".local/state/homestak");
    for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        _ = fs::remove_file(state.join(file));
    }
    let json = run(&["state", "rebuild", "-H", "sim", "--json-output"]).json();
    assert_eq!(restored(&json), ["edge", "root-pve"]);
    let plan = run(&["manifest", "plan", "-M", "n2-tiered", "-H", "sim"]);
    assert!(!plan.good().contains("create"), "nothing is created again");
    run(&["sim", "stop"]).good();
}

#[test]
fn a_full_disk_is_reported_and_nothing_counts_as_recorded() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let state = father.site.work().join("small");
    fs::create_dir(&state).unwrap();
    let mut command = father.command(&REBUILD);
    let program = command.get_program().to_owned();
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let environment: Vec<_> = command
        .get_envs()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
        .collect();
    command = std::process::Command::new("unshare");
    let script = "mount -t tmpfs -o size=40k none \"$1\" || exit 77; shift; exec \"$@\"";
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(&state)
        .arg(program)
        .args(words)
        .env_clear()
        .envs(environment)
        .env("HOMESTAK_STATE", &state)
        .current_dir(father.site.work());
    let run = command.output().map(Run::from).unwrap();
    if run.code == 77 || run.err.contains("unshare") {
        println!("SKIPPED: nothing can be mounted here: {}", run.err);
        return;
    }
    assert_eq!(run.code, 1, "{}\n{}", run.out, run.err);
    assert!(
        run.err.contains("full") || run.err.contains("space"),
        "{}",
        run.err
    );
    assert!(!run.err.contains("recorded;"), "{}", run.err);
}

#[test]
fn a_machine_of_a_cluster_that_does_not_answer_keeps_its_own_nodes_from_being_recorded_only() {
    let father = Father::cluster();
    let node = |name: &str, host: &str| {
        format!("  - {{name: {name}, preset: vm-small, image: debian-12, host: {host}}}\n")
    };
    let nodes = node("wa", "father") + &node("wb", "mother");
    father.manifest("w", "", &nodes);
    father.run(&["manifest", "apply", "-M", "w"]).good();
    lose_state(&father);
    father.pve.set_online("pve2", false);
    let run = father.run(&["state", "rebuild", "--json-output"]);
    let json: Value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}", run.err));
    assert_eq!(run.code, 3, "{json:#}");
    assert_eq!(restored(&json), ["wa"], "{json:#}");
    assert_eq!(json["unreachable"], serde_json::json!({}), "{json:#}");
    let refused = json["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{json:#}");
    assert_eq!(refused[0]["node"], "wb", "{json:#}");
    assert_ne!(refused[0]["hint"], "", "{json:#}");
    father.pve.set_online("pve2", true);
    let json = father.run(&["state", "rebuild", "--json-output"]).json();
    assert_eq!(restored(&json), ["wb"], "{json:#}");
}

#[test]
fn recorded_guests_of_a_manifest_outside_the_site_are_not_refused() {
    let father = Father::quick();
    father.single();
    let site = father.site.site();
    fs::rename(
        site.join("manifests/single-node.yaml"),
        site.join("single-node.yaml"),
    )
    .unwrap();
    let apply = [
        "manifest",
        "apply",
        "--manifest-file",
        "site/single-node.yaml",
        "-H",
        "father",
    ];
    father.run(&apply).good();
    let (code, json) = rebuild(&father);
    assert_eq!(code, 0, "{json:#}");
    assert_eq!(json["refused"].as_array().unwrap().len(), 0, "{json:#}");
    // Without its record, nothing tells whose it is.
    lose_state(&father);
    assert_eq!(rebuild(&father).0, 3);
}
