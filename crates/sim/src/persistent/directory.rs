//! The state directory of a simulator. A lock allows one server per directory; files are written
//! atomically and readable by their owner only.
//!
//! `world.json`: the state; `secrets.json`: token, certificate and port; `endpoint.json`: where it
//! is served now; `lock`: held by the server; `stop`: requests the server to stop.

use std::fs::TryLockError;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::durable::{self, Access};
use homestak_api::lock;
use homestak_api::v1::SimEndpoint;
use serde::{Deserialize, Serialize};

use super::{PersistenceError, TOKEN};
use crate::serve::{Identity, ServeError};
use crate::world::RestoreError;

const WORLD: &str = "world.json";
const SECRETS: &str = "secrets.json";
const ENDPOINT: &str = "endpoint.json";
const LOCK: &str = "lock";
const STOP: &str = "stop";

/// Reads where the simulator of a directory is served; `None` if no server has written it.
pub fn endpoint(directory: &Path) -> io::Result<Option<SimEndpoint>> {
    let Some(text) = read(&directory.join(ENDPOINT))? else {
        return Ok(None);
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(io::Error::other)
}

/// What a restarted server reuses, so that clients find it unchanged.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Secrets {
    pub(super) token: String,
    pub(super) identity: Identity,
    pub(super) port: u16,
}

/// An exclusive lock file, released on drop.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: fs_err::File,
}

impl Lock {
    /// Locks a file if it is free.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = open(path)?;
        match file.file().try_lock() {
            Ok(()) => Ok(Some(Self {
                path: path.to_owned(),
                file,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Locks a file, waiting at most `within`.
    pub fn take(path: &Path, within: Duration) -> io::Result<Self> {
        let file = open(path)?;
        lock::lock(file.file(), within, |_| ())?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Whether the locked file still exists at its path.
    fn is_in_place(&self) -> bool {
        let own = self.file.metadata().map(|data| (data.dev(), data.ino()));
        let found = fs_err::metadata(&self.path).map(|data| (data.dev(), data.ino()));
        matches!((own, found), (Ok(own), Ok(found)) if own == found)
    }
}

/// Locks a file, with retries because [`is_served`] holds the lock for a short time.
fn lock_with_retries(path: &Path) -> io::Result<Option<Lock>> {
    const ATTEMPTS: u32 = 10;
    const INTERVAL: Duration = Duration::from_millis(50);
    for _ in 1..ATTEMPTS {
        if let Some(lock) = Lock::try_take(path)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(INTERVAL);
    }
    Lock::try_take(path)
}

fn open(path: &Path) -> io::Result<fs_err::File> {
    let mut options = fs_err::OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path)
}

/// Creates the directory, accessible by its owner only, unless it exists.
pub fn create(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs_err::create_dir_all(directory)?;
    fs_err::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
}

/// Whether a server uses the directory.
pub fn is_served(directory: &Path) -> io::Result<bool> {
    if !directory.is_dir() {
        return Ok(false);
    }
    Ok(Lock::try_take(&directory.join(LOCK))?.is_none())
}

/// Requests the server of a directory to stop, which it does shortly after.
pub fn request_stop(directory: &Path) -> io::Result<()> {
    open(&directory.join(STOP)).map(|_| ())
}

/// Deletes the state in a directory without a server. Returns whether there was one.
pub fn reset(directory: &Path) -> io::Result<bool> {
    let mut found = false;
    for name in [WORLD, ENDPOINT, SECRETS, STOP] {
        match fs_err::remove_file(directory.join(name)) {
            Ok(()) => found |= name == WORLD,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs_err::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    durable::write(path, text, Access::PRIVATE)
}

/// A directory that this server has locked.
pub(super) struct Directory {
    path: PathBuf,
    lock: Lock,
}

impl Directory {
    pub(super) fn take(path: &Path) -> Result<Self, PersistenceError> {
        let failed = |source| failed("open", path, source);
        create(path).map_err(failed)?;
        let lock = lock_with_retries(&path.join(LOCK)).map_err(failed)?;
        let lock = lock.ok_or_else(|| PersistenceError::Locked {
            directory: path.display().to_string(),
        })?;
        // These files are from an earlier server.
        for name in [STOP, ENDPOINT] {
            _ = fs_err::remove_file(path.join(name));
        }
        Ok(Self {
            path: path.to_owned(),
            lock,
        })
    }

    pub(super) fn world(&self) -> Result<Option<Vec<u8>>, PersistenceError> {
        read(&self.path.join(WORLD)).map_err(|source| failed("read", &self.path, source))
    }

    pub(super) fn restore_error(&self, source: RestoreError) -> PersistenceError {
        PersistenceError::Restore {
            directory: self.path.display().to_string(),
            source,
        }
    }

    /// Returns the stored secrets, or new ones.
    pub(super) fn secrets(&self) -> Result<Secrets, PersistenceError> {
        let text =
            read(&self.path.join(SECRETS)).map_err(|source| failed("read", &self.path, source))?;
        // Unreadable secrets can be replaced: the state does not depend on them.
        let stored: Option<Secrets> = text.and_then(|text| serde_json::from_slice(&text).ok());
        match stored {
            Some(stored) => Ok(stored),
            None => Secrets::generate().map_err(PersistenceError::Serve),
        }
    }

    pub(super) fn write_secrets(&self, secrets: &Secrets) -> Result<(), PersistenceError> {
        self.write(SECRETS, &serde_json::to_vec(secrets).unwrap_or_default())
    }

    pub(super) fn write_world(&self, text: &[u8]) -> Result<(), PersistenceError> {
        self.write(WORLD, text)
    }

    pub(super) fn write_endpoint(&self, endpoint: &SimEndpoint) -> Result<(), PersistenceError> {
        let text = serde_json::to_vec_pretty(endpoint).unwrap_or_default();
        self.write(ENDPOINT, &text)
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<(), PersistenceError> {
        write(&self.path.join(name), text).map_err(|source| failed("write", &self.path, source))
    }

    /// Whether the directory exists and is still locked by this server.
    pub(super) fn is_owned(&self) -> bool {
        self.lock.is_in_place()
    }

    pub(super) fn stop_requested(&self) -> bool {
        self.path.join(STOP).exists()
    }

    /// Removes the files that are only valid while the server runs.
    pub(super) fn remove_runtime_files(&self) {
        for name in [ENDPOINT, STOP] {
            _ = fs_err::remove_file(self.path.join(name));
        }
    }
}

impl Secrets {
    fn generate() -> Result<Self, ServeError> {
        Ok(Self {
            token: format!("{TOKEN}={}", uuid::Uuid::new_v4()),
            identity: Identity::generate(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?,
            port: 0,
        })
    }
}

fn failed(doing: &'static str, directory: &Path, source: io::Error) -> PersistenceError {
    PersistenceError::File {
        doing,
        directory: directory.display().to_string(),
        source,
    }
}
