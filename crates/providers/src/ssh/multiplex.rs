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

/// How long the path of a directory may be: the system allows 108 bytes in all, the name of a
/// socket has 33, and `ssh` adds 17 while it makes one.
const MAX_LENGTH: usize = 108 - 33 - 17 - 2;

/// Returns the socket path of the connection to a guest, and creates its directory. `None` when
/// there is no safe directory: then connections are not shared.
pub(super) fn socket(keys: &Path, alias: &str, whom: &[&str]) -> Option<PathBuf> {
    let directory = directory(keys);
    safe(&directory).ok()?;
    Some(directory.join(format!("{}-{}", short(&[alias]), short(whom))))
}

/// Closes all shared connections to a guest, within a timeout.
pub(super) fn close(keys: &Path, alias: &str, within: Duration) {
    let Ok(entries) = fs_err::read_dir(directory(keys)) else {
        return;
    };
    let prefix = format!("{}-", short(&[alias]));
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // A connection that does not answer has ended; only its socket is left.
            _ = process::exit_master(&entry.path(), within);
            _ = fs_err::remove_file(entry.path());
        }
    }
}

/// Beside the keys if the path is short enough, otherwise in a directory named after it.
fn directory(keys: &Path) -> PathBuf {
    let beside = keys.join("shared");
    if beside.as_os_str().len() <= MAX_LENGTH {
        return beside;
    }
    let name = short(&[&keys.to_string_lossy()]);
    Path::new("/tmp").join(format!("homestak-{name}"))
}

/// Creates a directory that only we can use, or verifies an existing one.
fn safe(directory: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(directory);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs_err::symlink_metadata(directory)?;
            let ours = found.uid() == rustix::process::geteuid().as_raw();
            if found.is_dir() && ours && found.mode() & 0o077 == 0 {
                return Ok(());
            }
            Err(io::Error::other(
                "it belongs to another user, or others can access it",
            ))
        }
        made => made,
    }
}

/// Returns a hash of some texts, as sixteen characters.
fn short(parts: &[&str]) -> String {
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
            let socket = |alias, whom: &[&str]| socket(keys, alias, whom).expect("a place");
            let one = socket("a", &["10.0.0.7", "ops"]);
            assert!(one.as_os_str().len() + 17 < 108, "{}", one.display());
            assert_ne!(one, socket("b", &["10.0.0.7", "ops"]));
            assert_ne!(one, socket("a", &["10.0.0.8", "ops"]));
            let place = one.parent().expect("a directory").to_owned();
            fs_err::remove_dir(place).expect("removed");
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
}
