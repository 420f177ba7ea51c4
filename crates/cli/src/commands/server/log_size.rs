//! Limits the size of the log of a server in the background.
//!
//! The server writes to a descriptor that it was started with, in append mode. So the file is copied
//! and emptied, and not renamed. Meanwhile stderr is locked, so that no line is lost.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::durable::{self, Access};

/// A log that is larger is moved to the older one.
const LIMIT: u64 = 16 << 20;
/// How often the size is checked. What is logged in this time is limited by the server.
pub(super) const CHECK: Duration = Duration::from_secs(10);
/// What the name of the older log ends with.
const OLDER: &str = ".1";

/// The file that this process logs to.
#[derive(Clone)]
pub(super) struct LogFile(PathBuf);

impl LogFile {
    /// Returns the file that stderr is, if it is one.
    pub(super) fn of_stderr() -> Option<Self> {
        let path = fs_err::read_link("/proc/self/fd/2").ok()?;
        fs_err::metadata(&path)
            .ok()?
            .is_file()
            .then_some(Self(path))
    }

    /// Moves the log to the older one if it is too large.
    pub(super) fn limit(&self) {
        let _stderr = io::stderr().lock();
        // It may have been removed or replaced.
        let is_open = match (
            fs_err::metadata("/proc/self/fd/2"),
            fs_err::metadata(&self.0),
        ) {
            (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
            (Ok(_) | Err(_), _) => false,
        };
        if is_open {
            limit(&self.0, LIMIT);
        }
    }
}

fn limit(path: &Path, most: u64) {
    let moved = move_if_larger(path, most);
    if let Err(error) = moved {
        tracing::error!(%error, "lines of the log were deleted: it is too large, and cannot be copied");
        _ = fs_err::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path);
    }
}

fn move_if_larger(path: &Path, most: u64) -> io::Result<()> {
    let mut file = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)?;
    let size = file.metadata()?.len();
    if size <= most {
        return Ok(());
    }
    // One of an earlier version may be far larger.
    file.seek(SeekFrom::Start(size - most))?;
    let mut last = Vec::new();
    file.by_ref().take(most).read_to_end(&mut last)?;
    let mut older = path.as_os_str().to_owned();
    older.push(OLDER);
    durable::write(Path::new(&older), &last, Access::PRIVATE)?;
    file.set_len(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_log_that_is_too_large_is_moved_and_its_writer_continues_in_an_empty_one() {
        let root = tempfile::tempdir().unwrap();
        let (log, older) = (
            root.path().join("server.log"),
            root.path().join("server.log.1"),
        );
        let mut options = fs_err::OpenOptions::new();
        let mut writer = options.append(true).create(true).open(&log).unwrap();
        writer.write_all(b"first\n").unwrap();
        limit(&log, 6);
        assert!(!older.exists());
        writer.write_all(b"second\n").unwrap();
        limit(&log, 12);
        assert_eq!(fs_err::read_to_string(&older).unwrap(), "irst\nsecond\n");
        writer.write_all(b"third\n").unwrap();
        assert_eq!(fs_err::read_to_string(&log).unwrap(), "third\n");
        assert_eq!(fs_err::metadata(&older).unwrap().mode() & 0o777, 0o600);
        // What cannot be copied is deleted.
        fs_err::remove_file(&older).unwrap();
        fs_err::create_dir(&older).unwrap();
        limit(&log, 3);
        assert_eq!(fs_err::metadata(&log).unwrap().len(), 0);
    }
}
