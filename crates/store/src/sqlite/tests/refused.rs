//! Files and directories that may not be written.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use homestak_engine::journal::Journal as _;

use super::*;

/// The variable with the directory for this test, which runs itself again as the user `nobody`.
const PLACE: &str = "HOMESTAK_TEST_PLACE";

const NOBODY: u32 = 65534;

fn mode(path: &Path, mode: u32) {
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directory_and_file_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("a/state");
    let (_journal, _) = filled(&state, 1);
    let bits = |path: &Path| fs_err::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(bits(&state), 0o700);
    for name in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        assert_eq!(bits(&state.join(name)), 0o600, "{name}");
    }
}

/// Tries to open journals that cannot be written, and to create some that cannot be created.
fn try_all(dir: &Path) {
    for name in ["file", "directory", "closed/new"] {
        let path = dir.join(name);
        let (detail, hint) = broken(Sqlite::open(&path));
        assert!(hint.contains("writable"), "{name}: {detail}: {hint}");
        assert!(hint.contains(&file(&path).display().to_string()), "{hint}");
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "root repeats the test as nobody, in another process"
)]
fn missing_write_permission_is_reported_when_opening() {
    if let Some(dir) = std::env::var_os(PLACE) {
        return try_all(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["file", "directory"] {
        drop(filled(&dir.path().join(name), 1));
        mode(&file(&dir.path().join(name)), 0o444);
    }
    fs_err::create_dir(dir.path().join("closed")).unwrap();
    mode(&dir.path().join("file"), 0o777);
    mode(&dir.path().join("directory"), 0o555);
    mode(&dir.path().join("closed"), 0o555);
    if fs_err::write(dir.path().join("closed/root"), "").is_err() {
        return try_all(dir.path());
    }
    fs_err::remove_file(dir.path().join("closed/root")).unwrap();
    // The user `nobody` may not be able to read the program itself.
    let program = dir.path().join("program");
    fs_err::copy(std::env::current_exe().unwrap(), &program).unwrap();
    mode(&program, 0o755);
    mode(dir.path(), 0o755);
    let name = std::thread::current().name().unwrap().to_owned();
    let output = Command::new(&program)
        .args(["--exact", &name, "--nocapture"])
        .env(PLACE, dir.path())
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{output:?}"
    );
    // Nothing was changed by trying.
    mode(&dir.path().join("directory"), 0o700);
    for name in ["file", "directory"] {
        let path = dir.path().join(name);
        mode(&file(&path), 0o600);
        let journal = Sqlite::open(&path).unwrap();
        assert_eq!(wait(journal.runs(None)).unwrap().len(), 1);
    }
}

#[test]
fn a_file_in_place_of_the_directory_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs_err::write(&state, "in the way").unwrap();
    let (_, hint) = broken(Sqlite::open(&state));
    assert!(hint.contains("HOMESTAK_STATE"), "{hint}");
    assert_eq!(fs_err::read_to_string(&state).unwrap(), "in the way");
}
