//! Every diagnostic code has a case in `tests/invalid/`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::Path;

use homestak_core::doc::Code;

/// Codes without a case, and why.
const EXCEPTIONS: &[(Code, &str)] = &[];

fn snapshots() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/invalid");
    let mut found = Vec::new();
    for entry in fs_err::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "out") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            found.push((name, fs_err::read_to_string(path).unwrap()));
        }
    }
    found
}

#[test]
fn every_code_is_printed_by_a_case() {
    let all: String = snapshots().into_iter().map(|(_, text)| text).collect();
    let silent: Vec<&str> = Code::ALL
        .iter()
        .filter(|code| !EXCEPTIONS.iter().any(|(excepted, _)| excepted == *code))
        .map(|code| code.id())
        .filter(|id| !all.contains(&format!("[{id}]")))
        .collect();
    assert!(
        silent.is_empty(),
        "no case in tests/invalid prints {silent:?}"
    );
}

#[test]
fn exceptions_are_still_needed() {
    let all: String = snapshots().into_iter().map(|(_, text)| text).collect();
    for (code, why) in EXCEPTIONS {
        assert!(
            !all.contains(code.id()),
            "{} has a case now, so this does not hold: {why}",
            code.id()
        );
    }
}

#[test]
fn every_snapshot_has_its_case() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/invalid");
    let orphans: BTreeSet<String> = snapshots()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !directory.join(format!("{name}.case")).exists())
        .collect();
    assert!(orphans.is_empty(), "snapshots without a case: {orphans:?}");
}
