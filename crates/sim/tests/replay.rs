//! Recorded exchanges of a real Proxmox VE, and a small recording of our own.

use std::path::{Path, PathBuf};

use homestak_sim::replay;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/small.jsonl")
}

/// Returns the recordings that are not part of this project, when they lie beside it.
#[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
fn reference(names: &[&str]) -> Vec<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference");
    let directory = std::env::var("HOMESTAK_REFERENCE").map_or(beside, PathBuf::from);
    names
        .iter()
        .map(|name| directory.join(name))
        .filter(|path| path.exists())
        .collect()
}

#[test]
fn our_own_recording_agrees() {
    let report = replay::run(&[own()], &[]).unwrap();
    let (agreed, compared) = report.agreement();
    assert_eq!(agreed, compared, "{report}");
    assert!(compared >= 20, "{report}");
}

#[test]
fn a_changed_recording_is_noticed() {
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
        println!("skipped: no recordings beside the checkout, see HOMESTAK_REFERENCE");
        return;
    }
    let report = replay::run(&files, &[]).unwrap();
    println!("{report}");
    let (agreed, compared) = report.agreement();
    // What differs is which of several waiting requests a busy worker serves first, and what a
    // guest with a broken network says of itself.
    assert!(agreed * 1000 >= compared * 990, "{report}");
    let groups = report.groups.iter().filter(|(_, _, same, _)| !same).count();
    assert_eq!(groups, 0, "{report}");
}

#[test]
fn a_flow_that_is_not_named_is_not_replayed() {
    let report = replay::run(&[own()], &["another".to_owned()]).unwrap();
    assert_eq!(report.agreement(), (0, 0));
}

/// The flows of the second recording that must agree, and how many exchanges each has at least.
/// They were recorded together and are replayed together: some see guests of others.
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
        println!("skipped: no recordings beside the checkout, see HOMESTAK_REFERENCE");
        return;
    }
    let report = replay::run(&files, &[]).unwrap();
    println!("{report}");
    let tallies = report.tallies();
    // What differs: calls that are not simulated (move_disk, mtunnel, the console's websocket, the
    // shell of a host, rate limits of a storage), a container whose network the set-up broke, a
    // copy whose rate limit is in the words of its failure, one container without swap, guests of
    // another flow whose creation ended at another time, a lock of ten seconds that something
    // unknown held on the host, files that something unknown removed, how the pressure of a
    // container is written, and a bridge that some workers of the real one remember as a path.
    for (flow, least) in FLOWS {
        let tally = tallies[flow];
        assert!(tally.compared >= least, "{flow}: {report}");
        assert!(
            tally.agreed * 100 >= tally.compared * 97,
            "{flow}: {report}"
        );
    }
    // Commands run on the host, apart from those that look into the files of a container and one
    // that takes a file system away.
    let missing = report.commands.iter().filter(|one| one.missing.is_some());
    assert!(missing.count() <= 8, "{report}");
}
