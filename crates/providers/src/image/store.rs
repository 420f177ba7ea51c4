//! The image cache: finished images, locks and build directories.
//!
//! An image gets its final name only when it is complete.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::durable::{self, Access};
use homestak_api::limit::monotonic;
use homestak_api::lock::{lock_shared, timeout_error};
use homestak_api::runtime::{Clock as _, WallClock};
use serde::{Deserialize, Serialize};

use super::archive::Archive;
use super::error::ImageError;

/// Marks a directory as a complete image. It is written last.
pub(super) const RECORD: &str = "image.json";

/// Start of the names of directories that are being built, or being removed.
const BUILDING: &str = ".build-";
const REMOVING: &str = ".remove-";
const LOCK: &str = ".lock-";

/// How often to retry taking a lock that another process holds.
const TRY_EVERY: Duration = Duration::from_millis(300);
/// How long it is waited for: longer than any build takes.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// How long the removal of an image is waited for.
const REMOVAL: Duration = Duration::from_secs(60);

/// What is known of an image, beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    /// Version of this form.
    pub(super) version: u32,
    /// Name of the recipe.
    pub(super) name: String,
    /// Key of the recipe.
    pub(super) key: String,
    /// When it was created.
    pub(super) made: jiff::Timestamp,
    /// Where its packages came from.
    pub(super) archive: Archive,
    /// Its checksum.
    pub(super) checksum: String,
    /// Bytes on the disk.
    pub(super) bytes: u64,
    /// Files, directories and everything else.
    pub(super) files: u64,
}

/// The directory of images.
#[derive(Clone, Debug)]
pub(super) struct ImageStore {
    pub(super) directory: PathBuf,
}

impl ImageStore {
    /// Returns where an image is, or would be.
    pub(super) fn path(&self, name: &str, key: &str) -> PathBuf {
        self.directory.join(format!("{name}-{key}"))
    }

    /// Reads what is known of a finished image.
    pub(super) fn record(&self, directory: &Path) -> Option<ImageRecord> {
        let text = fs_err::read_to_string(directory.join(RECORD)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns every finished image, sorted by name.
    pub(super) fn images(&self) -> Vec<(PathBuf, ImageRecord)> {
        let mut images: Vec<(PathBuf, ImageRecord)> = self
            .names("")
            .into_iter()
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| {
                let directory = self.directory.join(name);
                let record = self.record(&directory)?;
                Some((directory, record))
            })
            .collect();
        images.sort_by(|one, other| one.0.cmp(&other.0));
        images
    }

    /// Locks an image for building. `notice` is called once if the lock must be waited for. Cancel-safe:
    /// dropping it stops waiting.
    pub(super) async fn lock(&self, name: &str, notice: impl FnOnce()) -> Result<File, ImageError> {
        // Trees have programs with the set-user-ID bit.
        crate::private::directory(&self.directory)
            .map_err(|source| file("create directory", &self.directory, source))?;
        let path = self.directory.join(format!("{LOCK}{name}"));
        let failed = |source| file("lock", &path, source);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let mut notice = Some(notice);
        let until = monotonic() + PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) if monotonic() >= until => {
                    return Err(failed(timeout_error(&lock, PATIENCE)));
                }
                Err(TryLockError::WouldBlock) => {
                    if let Some(notice) = notice.take() {
                        notice();
                    }
                    WallClock.sleep(TRY_EVERY).await;
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
    }

    /// Creates a build directory for an image. The caller holds its lock.
    pub(super) fn begin(&self, name: &str) -> Result<BuildDirectory, ImageError> {
        let unique = uuid::Uuid::new_v4().simple();
        let path = self.directory.join(format!("{BUILDING}{name}-{unique}"));
        fs_err::create_dir(&path).map_err(|source| file("create directory", &path, source))?;
        Ok(BuildDirectory { path: Some(path) })
    }

    /// Makes what was built an image: writes what is known of it, and renames.
    pub(super) fn finish(
        &self,
        mut build_directory: BuildDirectory,
        record: &ImageRecord,
    ) -> Result<PathBuf, ImageError> {
        let Some(path) = build_directory.path.clone() else {
            return Ok(self.path(&record.name, &record.key));
        };
        let text = serde_json::to_string_pretty(record).unwrap_or_default();
        let at = path.join(RECORD);
        durable::write(&at, format!("{text}\n").as_bytes(), Access::PUBLIC)
            .map_err(|source| file("write", &at, source))?;
        let directory = self.path(&record.name, &record.key);
        // An incomplete directory of that name is replaced.
        if fs_err::symlink_metadata(&directory).is_ok() {
            self.discard(&directory)?;
        }
        durable::rename(&path, &directory).map_err(|source| file("create", &directory, source))?;
        build_directory.path = None;
        Ok(directory)
    }

    /// Removes an unused image.
    pub(super) fn remove(&self, directory: &Path, name: &str) -> Result<(), ImageError> {
        let at = directory.join(RECORD);
        let record = fs_err::File::open(&at).map_err(|source| file("open", &at, source))?;
        let record = record.into_parts().0;
        match record.try_lock() {
            Ok(()) => self.discard(directory),
            Err(TryLockError::WouldBlock) => Err(ImageError::InUse {
                name: name.to_owned(),
            }),
            Err(TryLockError::Error(source)) => Err(file("lock", &at, source)),
        }
    }

    /// Renames a directory, then removes it.
    fn discard(&self, directory: &Path) -> Result<(), ImageError> {
        let unique = uuid::Uuid::new_v4().simple();
        let removing = self.directory.join(format!("{REMOVING}{unique}"));
        durable::rename(directory, &removing)
            .map_err(|source| file("remove", directory, source))?;
        clear(&removing).map_err(|source| file("remove", &removing, source))
    }

    /// Removes leftovers of killed builders of this image. The caller holds its lock.
    pub(super) fn sweep(&self, name: &str) -> Result<usize, ImageError> {
        let mut swept = 0;
        let start = format!("{BUILDING}{name}-");
        for left in self.names(&start) {
            // `debian-12` is not `debian-12-disk`.
            let ours = left[start.len()..]
                .bytes()
                .all(|one| one.is_ascii_hexdigit());
            if ours {
                let path = self.directory.join(left);
                clear(&path).map_err(|source| file("remove", &path, source))?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Removes leftovers of killed builders, except of images that are being built.
    pub(super) fn sweep_all(&self) -> Result<usize, ImageError> {
        let mut swept = 0;
        for lock in self.names(LOCK) {
            let path = self.directory.join(&lock);
            let held = File::options()
                .write(true)
                .open(&path)
                .map_err(|source| file("open", &path, source))?;
            if held.try_lock().is_ok() {
                swept += self.sweep(&lock[LOCK.len()..])?;
            }
        }
        for left in self.names(REMOVING) {
            let path = self.directory.join(left);
            clear(&path).map_err(|source| file("remove", &path, source))?;
            swept += 1;
        }
        Ok(swept)
    }

    fn names(&self, start: &str) -> Vec<String> {
        let entries = fs_err::read_dir(&self.directory).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names
            .filter_map(|name| name.into_string().ok())
            .filter(|name| name.starts_with(start))
            .collect();
        names.sort();
        names
    }

    /// Returns how many bytes are free for images.
    pub(super) fn free(&self) -> u64 {
        rustix::fs::statvfs(&self.directory)
            .map_or(u64::MAX, |room| room.f_bavail.saturating_mul(room.f_frsize))
    }
}

/// A build directory. Removed unless the build is finished.
pub(super) struct BuildDirectory {
    path: Option<PathBuf>,
}

impl BuildDirectory {
    /// Returns where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.path.clone().unwrap_or_default()
    }
}

impl Drop for BuildDirectory {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The next builder finds what could not be removed.
            _ = clear(path);
        }
    }
}

/// Holds an image against removal, for as long as the file is open in any process.
pub(super) fn hold(directory: &Path) -> std::io::Result<File> {
    let at = directory.join(RECORD);
    let record = fs_err::File::open(&at)?.into_parts().0;
    lock_shared(&record, REMOVAL)?;
    // Removed between opening and locking.
    fs_err::symlink_metadata(&at)?;
    Ok(record)
}

/// Returns whether an image is locked.
pub(super) fn held(directory: &Path) -> bool {
    let record = fs_err::File::open(directory.join(RECORD));
    record.is_ok_and(|record| matches!(record.file().try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes a directory with everything in it. Processes that were just killed may still write
/// to it.
fn clear(path: &Path) -> std::io::Result<()> {
    let mut tries = 0;
    loop {
        match fs_err::remove_dir_all(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && tries < 20 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

/// Creates an error about a file.
pub(super) fn file(doing: &'static str, path: &Path, source: std::io::Error) -> ImageError {
    ImageError::File {
        doing,
        path: path.to_owned(),
        // The path is named already; the operating system's words are the rest.
        source: source
            .raw_os_error()
            .map_or(source, std::io::Error::from_raw_os_error),
    }
}
