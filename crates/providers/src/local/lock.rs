//! Rights that others wait for, also in other processes.
//!
//! In: the path of a lock file. Out: [`Lock`]; dropping it, or dying, gives it up.
//! Never: a right to a file that others do not find any more.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A right. Dropping it gives it up.
pub(super) struct Lock {
    _file: fs_err::File,
}

impl Lock {
    /// Waits for a lock file.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        loop {
            if let Some(directory) = path.parent() {
                fs_err::create_dir_all(directory)?;
            }
            let file = fs_err::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)?;
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
