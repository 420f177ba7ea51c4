//! Sockets of shared SSH connections (ControlMaster), one per guest and user.
//!
//! Kept in a directory that only the owner can use, with paths short enough for Linux.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_core::hex;
use sha2::{Digest as _, Sha256};

use super::process;

/// The longest path of the directory: Linux allows 108 bytes for the path of a socket. The name of a
/// socket has 33, `ssh` adds 17 while it creates one, and a slash and a NUL byte are added.
const MAX_LENGTH: usize = 108 - 33 - 17 - 2;

/// Returns the socket path of the connection to a guest, and creates its directory. `endpoint` is what
/// connections to the same guest differ by. `None` if other users can access the directory;
/// connections are not shared then.
pub(super) fn socket(keys: &Path, alias: &str, endpoint: &[&str]) -> Option<PathBuf> {
    let directory = directory(keys);
    create_private(&directory).ok()?;
    let name = format!("{}-{}", short_hash(&[alias]), short_hash(endpoint));
    Some(directory.join(name))
}

/// Closes all shared connections to a guest; `timeout` applies to each.
pub(super) fn close(keys: &Path, alias: &str, timeout: Duration) {
    let directory = directory(keys);
    // Other users may have put something else in its place.
    if require_private(&directory).is_err() {
        return;
    }
    let Ok(entries) = fs_err::read_dir(&directory) else {
        return;
    };
    let prefix = format!("{}-", short_hash(&[alias]));
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // Fails if the `ssh` of this socket was killed; the socket remains then.
            _ = process::exit_master(&entry.path(), timeout);
            _ = fs_err::remove_file(entry.path());
        }
    }
}

/// Returns the directory of the sockets: below the directory of the keys, or in `/tmp` if that path is
/// too long.
fn directory(keys: &Path) -> PathBuf {
    let below_keys = keys.join("shared");
    if below_keys.as_os_str().len() <= MAX_LENGTH {
        return below_keys;
    }
    let name = short_hash(&[&keys.to_string_lossy()]);
    Path::new("/tmp").join(format!("homestak-{name}"))
}

/// Creates a directory that only the current user can access, or verifies that an existing one is
/// such a directory.
fn create_private(directory: &Path) -> io::Result<()> {
    let created = std::fs::DirBuilder::new().mode(0o700).create(directory);
    match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => require_private(directory),
        created => created,
    }
}

/// Verifies that a directory exists that only the current user can access.
fn require_private(directory: &Path) -> io::Result<()> {
    let found = fs_err::symlink_metadata(directory)?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && ours && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(
        "it belongs to another user, or others can access it",
    ))
}

/// Returns a hash of texts as sixteen hexadecimal digits.
fn short_hash(parts: &[&str]) -> String {
    let hash = Sha256::digest(parts.join("\n").as_bytes());
    hex::encode(&hash[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_short_and_differ_by_guest_and_user() {
        let directory = tempfile::tempdir().expect("a directory");
        let long = directory.path().join("x".repeat(90));
        fs_err::create_dir(&long).expect("created");
        for keys in [directory.path(), &long] {
            let socket = |alias, endpoint: &[&str]| socket(keys, alias, endpoint).expect("a path");
            let one = socket("a", &["10.0.0.7", "ops"]);
            assert!(one.as_os_str().len() + 17 < 108, "{}", one.display());
            assert_ne!(one, socket("b", &["10.0.0.7", "ops"]));
            assert_ne!(one, socket("a", &["10.0.0.8", "ops"]));
            let parent = one.parent().expect("a directory").to_owned();
            fs_err::remove_dir(parent).expect("removed");
        }
    }

    #[test]
    fn connections_are_not_shared_in_a_public_directory() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let shared = directory.path().join("shared");
        fs_err::create_dir(&shared).expect("created");
        let open = std::fs::Permissions::from_mode(0o777);
        fs_err::set_permissions(&shared, open).expect("changed");
        assert_eq!(socket(directory.path(), "a", &["b"]), None);
    }

    #[test]
    fn nothing_is_closed_or_removed_in_a_public_directory() {
        use std::os::unix::fs::PermissionsExt as _;
        let keys = tempfile::tempdir().expect("a directory");
        let socket = socket(keys.path(), "a", &["b"]).expect("a path");
        fs_err::write(&socket, "").expect("written");
        let set_mode = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            fs_err::set_permissions(keys.path().join("shared"), mode).expect("changed");
        };
        set_mode(0o777);
        close(keys.path(), "a", Duration::from_secs(10));
        assert!(socket.exists());
        set_mode(0o700);
        close(keys.path(), "a", Duration::from_secs(10));
        assert!(!socket.exists());
    }
}
