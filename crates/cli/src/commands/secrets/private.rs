//! A private directory for plain text that a person edits, in memory where that is possible.
//!
//! It is removed when the edit ends. A lock on it ends with the process, so that the next command
//! can distinguish leftovers of a killed edit from a running one.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_driver::DriverError;

/// Prefix of the names of these directories.
const PREFIX: &str = "homestak-edit-";
/// Held while the edit runs. A directory without it was kept for the user who wrote its content.
const LOCK: &str = "lock";
/// A file system in memory, on every Linux.
const MEMORY: &str = "/dev/shm";

/// A file that only this user can read; removed when it is dropped.
pub(super) struct PrivateFile {
    directory: tempfile::TempDir,
    /// Where it is.
    pub(super) path: PathBuf,
    _lock: std::fs::File,
}

impl PrivateFile {
    /// Writes text to a new file.
    pub(super) fn new(text: &str) -> Result<Self, DriverError> {
        let failed = |error: std::io::Error| {
            DriverError::failed(format!("Cannot create a private directory: {error}."))
        };
        let mut private = tempfile::Builder::new();
        private
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700));
        let directory = private
            .tempdir_in(MEMORY)
            .or_else(|_| private.tempdir())
            .map_err(failed)?;
        let create = |name: &str| {
            let mut options = fs_err::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            options.open(directory.path().join(name))
        };
        // Locked before anything is written.
        let lock = create(LOCK).map_err(failed)?.into_parts().0;
        lock.lock().map_err(failed)?;
        create("secrets.yaml")
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(failed)?;
        Ok(Self {
            path: directory.path().join("secrets.yaml"),
            directory,
            _lock: lock,
        })
    }

    /// Keeps the file for the user.
    pub(super) fn keep(self) -> PathBuf {
        let directory = self.directory.keep();
        _ = fs_err::remove_file(directory.join(LOCK));
        self.path
    }
}

/// Removes leftovers of killed edits of this user.
pub(super) fn remove_leftovers() {
    let own = rustix::process::geteuid().as_raw();
    for parent in [Path::new(MEMORY), &std::env::temp_dir()] {
        for entry in fs_err::read_dir(parent).into_iter().flatten().flatten() {
            let path = entry.path();
            let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
                && path
                    .symlink_metadata()
                    .is_ok_and(|found| found.is_dir() && found.uid() == own);
            if ours && abandoned(&path) {
                _ = fs_err::remove_dir_all(&path);
            }
        }
    }
}

/// Returns whether the lock of a directory is free.
fn abandoned(directory: &Path) -> bool {
    let lock = fs_err::File::open(directory.join(LOCK));
    lock.is_ok_and(|lock| lock.into_parts().0.try_lock().is_ok())
}
