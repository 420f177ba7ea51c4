//! `state rebuild`: records of a lost or second state directory are restored from the hosts.

use std::fs;

use homestak_sim::Kind;
use serde_json::Value;

use crate::owner::{APPLY, without_id};
use crate::support::{Run, TestEnv};
use crate::test_pve::TestPve;

const REBUILD: [&str; 4] = ["state", "rebuild", "-H", "father"];

fn rebuild(host: &TestPve) -> (i32, Value) {
    let run = host.run(&[&REBUILD[..], &["--json-output"]].concat());
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

fn lose_state(host: &TestPve) {
    fs::remove_dir_all(host.state()).unwrap();
}

#[test]
fn a_host_that_does_not_exist_is_answered_with_those_that_do() {
    let run = TestEnv::new().on_site(&["state", "rebuild", "-H", "zzzzzzzz"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("available: "), "{}", run.err);
}

#[test]
fn rebuild_restores_records_from_the_host_and_lists_nodes_without_keys() {
    let host = TestPve::quick();
    host.workers(2, "");
    host.run(&["manifest", "apply", "-M", "workers", "-H", "father"])
        .good();
    let before = host.pve.guests();
    lose_state(&host);
    let dry = host.run(&[&REBUILD[..], &["--dry-run"]].concat());
    assert!(dry.err.contains("2 nodes would be recorded"), "{}", dry.err);
    let (code, json) = rebuild(&host);
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
    // The keys of the driver and the nodes cannot be restored.
    let locked = json["without_keys"].as_array().unwrap();
    assert_eq!(locked.len(), 2, "{json:#}");
    let commands = locked[0]["commands"].to_string();
    assert!(
        commands.contains("authorized_keys") && commands.contains("known_hosts"),
        "{commands}"
    );
    assert_eq!(host.pve.guests(), before, "hosts are not changed");
    // A second rebuild restores nothing.
    let (code, json) = rebuild(&host);
    assert_eq!((code, json["known"].as_u64()), (0, Some(2)), "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    // Missing keys are reported every time.
    assert_eq!(json["without_keys"].as_array().unwrap().len(), 2);
    let known = host.run(&["manifest", "forget", "worker-1", "-M", "workers", "--yes"]);
    known.good();
    assert_eq!(restored(&rebuild(&host).1), ["worker-1"]);
    // Restored nodes can be destroyed.
    host.run(&[
        "manifest", "destroy", "-M", "workers", "-H", "father", "--yes",
    ])
    .good();
    assert!(host.pve.guests().is_empty());
}

#[test]
fn guests_of_another_site_with_the_same_names_are_not_recorded() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    lose_state(&host);
    host.run(&["site", "new-id", "--yes"]).good();
    let (code, json) = rebuild(&host);
    assert_eq!(code, 0, "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    without_id(&host);
    let run = host.run(&REBUILD);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("The site has no id"), "{}", run.err);
}

#[test]
fn copies_are_refused_and_listed() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let original = host.pve.guests().remove(0);
    let copy = original.vmid + 1;
    let config: Vec<(String, String)> = original.config.clone().into_iter().collect();
    host.pve.put_guest("pve1", Kind::Qemu, copy, config);
    lose_state(&host);
    let (code, json) = rebuild(&host);
    assert_eq!(code, 3, "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    let reason = json["refused"][0]["reason"].as_str().unwrap();
    for vmid in [original.vmid, copy] {
        assert!(reason.contains(&vmid.to_string()), "{reason}");
    }
}

#[test]
fn guests_whose_notes_and_tags_contradict_their_identity_are_refused() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let guest = host.pve.guests().remove(0);
    let forge = |vmid: u32, change: &dyn Fn(&mut std::collections::BTreeMap<String, String>)| {
        let mut config = guest.config.clone().into_iter().collect();
        change(&mut config);
        host.pve
            .put_guest("pve1", Kind::Qemu, vmid, config.into_iter().collect());
    };
    // Tags and notes are those of the node, the SMBIOS uuid is not.
    let other = "0a0b0c0d-0000-8000-8000-000000000000";
    forge(guest.vmid, &|config| {
        config.insert("smbios1".to_owned(), format!("uuid={other}"));
    });
    // Tags, notes and SMBIOS uuid are of this site and manifest, and no node has this identity.
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
    lose_state(&host);
    let (code, json) = rebuild(&host);
    assert_eq!(code, 3, "{json:#}");
    assert!(restored(&json).is_empty(), "{json:#}");
    let refused = json["refused"].to_string();
    assert!(refused.contains("guest 4321"), "{json:#}");
    assert_eq!(json["refused"].as_array().unwrap().len(), 2, "{json:#}");
}

#[test]
fn nested_nodes_are_restored_with_their_parent() {
    let env = TestEnv::new();
    let run = |arguments: &[&str]| {
        let mut command = env.command(arguments);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_SIM_SPEED", "200");
        Run::of(&mut command)
    };
    run(&["manifest", "apply", "-M", "n2-tiered", "-H", "sim"]).good();
    let state = env.home().join(".local/state/homestak");
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
fn a_full_disk_is_reported_and_nothing_is_recorded() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let state = host.env.work().join("small");
    fs::create_dir(&state).unwrap();
    let mut command = host.command(&REBUILD);
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
        .current_dir(host.env.work());
    let run = Run::of(&mut command);
    if run.code == 77 || run.err.contains("unshare") {
        println!("SKIPPED: cannot mount a tmpfs: {}", run.err);
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
fn an_offline_cluster_member_blocks_only_its_own_nodes() {
    let host = TestPve::cluster();
    let node = |name: &str, host: &str| {
        format!("  - {{name: {name}, preset: vm-small, image: debian-12, host: {host}}}\n")
    };
    let nodes = node("wa", "father") + &node("wb", "mother");
    host.manifest("w", "", &nodes);
    host.run(&["manifest", "apply", "-M", "w"]).good();
    lose_state(&host);
    host.pve.set_online("pve2", false);
    let run = host.run(&["state", "rebuild", "--json-output"]);
    let json: Value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}", run.err));
    assert_eq!(run.code, 3, "{json:#}");
    assert_eq!(restored(&json), ["wa"], "{json:#}");
    assert_eq!(json["unreachable"], serde_json::json!({}), "{json:#}");
    let refused = json["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{json:#}");
    assert_eq!(refused[0]["node"], "wb", "{json:#}");
    assert_ne!(refused[0]["hint"], "", "{json:#}");
    host.pve.set_online("pve2", true);
    let json = host.run(&["state", "rebuild", "--json-output"]).json();
    assert_eq!(restored(&json), ["wb"], "{json:#}");
}

#[test]
fn recorded_guests_of_a_manifest_outside_the_site_are_not_refused() {
    let host = TestPve::quick();
    host.single();
    let site = host.env.site();
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
    host.run(&apply).good();
    let (code, json) = rebuild(&host);
    assert_eq!(code, 0, "{json:#}");
    assert_eq!(json["refused"].as_array().unwrap().len(), 0, "{json:#}");
    // Without its record, its owner is unknown.
    lose_state(&host);
    assert_eq!(rebuild(&host).0, 3);
}
