//! Rights that others wait for, also in other processes.
//!
//! In: the path of a lock file. Out: [`Lock`]; dropping it, or dying, gives it up.
//! Never: a right to a file that others do not find any more.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fs_err::os::unix::fs::OpenOptionsExt as _;

use crate::private;

/// A right. Dropping it gives it up.
pub(super) struct Lock {
    _file: fs_err::File,
}

impl Lock {
    /// Waits for a lock file.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        loop {
            if let Some(directory) = path.parent() {
                private::directory(directory)?;
            }
            // Whoever can open it can hold it.
            let file = fs_err::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(path)?;
            private::close(path, 0o600)?;
            file.file().lock()?;
            // The last one removes lock files: only the one that others find counts.
            if is_same(&file, path) {
                return Ok(Self { _file: file });
            }
        }
    }
}

fn is_same(file: &fs_err::File, path: &Path) -> bool {
    let id = |data: std::fs::Metadata| (data.dev(), data.ino());
    let (own, found) = (file.metadata().map(id), fs_err::metadata(path).map(id));
    matches!((own, found), (Ok(own), Ok(found)) if own == found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn nobody_else_can_reach_or_hold_a_lock_also_one_that_was_open_to_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let locks = directory.path().join("locks");
        let mode =
            |path: &Path| fs_err::metadata(path).expect("there").permissions().mode() & 0o777;
        let path = locks.join("one");
        drop(Lock::take(&path).expect("a lock"));
        assert_eq!((mode(&locks), mode(&path)), (0o700, 0o600));
        let open = |path: &Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            fs_err::set_permissions(path, mode).expect("changed");
        };
        open(&locks, 0o755);
        open(&path, 0o644);
        drop(Lock::take(&path).expect("a lock"));
        assert_eq!((mode(&locks), mode(&path)), (0o700, 0o600));
    }
}
