//! Replays a small recording of the project, and those of a real Proxmox VE if available.

use std::path::{Path, PathBuf};

use homestak_sim::replay;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/small.jsonl")
}

/// Returns the external recordings that exist.
#[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
fn reference(names: &[&str]) -> Vec<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference");
    let directory = std::env::var("HOMESTAK_REFERENCE").map_or(default, PathBuf::from);
    names
        .iter()
        .map(|name| directory.join(name))
        .filter(|path| path.exists())
        .collect()
}

#[test]
fn the_small_recording_agrees() {
    let report = replay::run(&[own()], &[]).unwrap();
    let (agreed, compared) = report.agreement();
    assert_eq!(agreed, compared, "{report}");
    assert!(compared >= 20, "{report}");
}

#[test]
fn a_changed_answer_is_reported() {
    let text = fs_err::read_to_string(own()).unwrap();
    let changed = text.replace("already exists on node", "was here before on node");
    assert_ne!(text, changed);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs_err::write(file.path(), changed).unwrap();
    let report = replay::run(&[file.path().to_owned()], &[]).unwrap();
    let (agreed, compared) = report.agreement();
    assert_eq!(compared - agreed, 1, "{report}");
}

#[test]
fn recordings_of_a_real_proxmox_ve_agree() {
    let files = reference(&["pve-transcripts.jsonl", "pve-transcripts-flows.jsonl"]);
    if files.is_empty() {
        println!("skipped: no recordings found, see HOMESTAK_REFERENCE");
        return;
    }
    let report = replay::run(&files, &[]).unwrap();
    println!("{report}");
    let (agreed, compared) = report.agreement();
    // Known differences: which of several queued requests a busy worker serves first, and what the
    // agent of a guest with a broken network reports.
    assert!(agreed * 1000 >= compared * 990, "{report}");
    let groups = report.groups.iter().filter(|(_, _, same, _)| !same).count();
    assert_eq!(groups, 0, "{report}");
}

#[test]
fn only_the_given_flows_are_replayed() {
    let report = replay::run(&[own()], &["another".to_owned()]).unwrap();
    assert_eq!(report.agreement(), (0, 0));
}

/// The flows of the second recording that must agree, each with its minimum number of exchanges.
/// They are replayed together, as they were recorded, because some list guests of others.
const FLOWS: [(&str, usize); 8] = [
    ("visibility", 1000),
    ("capacity", 100),
    ("copies", 200),
    ("half-made", 300),
    ("boot-order", 900),
    ("pending", 400),
    ("locks", 400),
    ("ct-console", 200),
];

#[test]
fn each_flow_of_a_real_proxmox_ve_agrees() {
    let files = reference(&["pve-transcripts-2.jsonl"]);
    if files.is_empty() {
        println!("skipped: no recordings found, see HOMESTAK_REFERENCE");
        return;
    }
    let report = replay::run(&files, &[]).unwrap();
    println!("{report}");
    let counts = report.counts();
    // Known differences: calls that are not simulated (move_disk, mtunnel, the websocket of the
    // console, the shell of a host, rate limits of a storage), a container whose network was broken
    // by the test setup, a copy whose error contains its rate limit, a container without swap,
    // guests of another flow whose creation ended at another time, a lock that was held for ten
    // seconds and files that were removed on the host for unknown reasons, the notation of a
    // container's pressure, and a bridge that some real workers cached as a path.
    for (flow, least) in FLOWS {
        let count = counts[flow];
        assert!(count.compared >= least, "{flow}: {report}");
        assert!(
            count.agreed * 100 >= count.compared * 97,
            "{flow}: {report}"
        );
    }
    // Not simulated: commands that read the files of a container, and one that unmounts a file
    // system.
    let missing = report.commands.iter().filter(|one| one.missing.is_some());
    assert!(missing.count() <= 8, "{report}");
}
