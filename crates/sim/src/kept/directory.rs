//! The files of a kept World, and whose they are.
//!
//! In: a directory. Out: what is in it, written whole or not at all, readable by its owner only.
//! Never: two servers with one directory.
//!
//! `world.json` the World; `secrets.json` token, certificate and port; `endpoint.json` where it is
//! served now; `lock` held by the server; `stop` asks the server to end.

use std::fs::TryLockError;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::durable::{self, Access};
use homestak_api::lock;
use serde::{Deserialize, Serialize};

use super::inside::Inside;
use super::{KeepError, TOKEN};
use crate::serve::{Identity, ServeError};
use crate::world::RestoreError;

const WORLD: &str = "world.json";
const SECRETS: &str = "secrets.json";
const ENDPOINT: &str = "endpoint.json";
const LOCK: &str = "lock";
const STOP: &str = "stop";

/// Where a kept World is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// The address of the API.
    pub url: String,
    /// The SHA-256 fingerprint of its certificate, as `AA:BB:...`.
    pub fingerprint: String,
    /// Its certificate, which signs itself.
    pub certificate: String,
    /// The token that may do everything, `user@realm!name=secret`.
    pub token: String,
    /// The process of the server.
    pub pid: u32,
    /// Hypervisors that run inside, each with an API of its own.
    pub inside: Vec<Inside>,
}

impl Endpoint {
    /// Reads what a server wrote. `None` is a directory that nobody serves.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        let Some(text) = read(&directory.join(ENDPOINT))? else {
            return Ok(None);
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(io::Error::other)
    }
}

/// What a kept World keeps besides itself, so that clients find the same server again.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Secrets {
    pub(super) token: String,
    pub(super) identity: Identity,
    pub(super) port: u16,
}

/// The right to a directory. Dropping it gives it up.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: fs_err::File,
}

impl Lock {
    /// Takes a lock file when it is free.
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

    /// Waits for a lock file, as long as is allowed.
    pub fn take(path: &Path, within: Duration) -> io::Result<Self> {
        let file = open(path)?;
        lock::lock(file.file(), within, |_| ())?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Whether the file that is held is still the one that others find.
    fn is_in_place(&self) -> bool {
        let own = self.file.metadata().map(|data| (data.dev(), data.ino()));
        let found = fs_err::metadata(&self.path).map(|data| (data.dev(), data.ino()));
        matches!((own, found), (Ok(own), Ok(found)) if own == found)
    }
}

/// Takes the lock, which someone who only looks may have for a moment.
fn lock_soon(path: &Path) -> io::Result<Option<Lock>> {
    const LOOKS: u32 = 10;
    const BETWEEN: Duration = Duration::from_millis(50);
    for _ in 1..LOOKS {
        if let Some(lock) = Lock::try_take(path)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(BETWEEN);
    }
    Lock::try_take(path)
}

fn open(path: &Path) -> io::Result<fs_err::File> {
    let mut options = fs_err::OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path)
}

/// Makes the directory, for its owner only, unless it is there.
pub fn create(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs_err::create_dir_all(directory)?;
    fs_err::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
}

/// Whether a server has the directory now.
pub fn is_served(directory: &Path) -> io::Result<bool> {
    if !directory.is_dir() {
        return Ok(false);
    }
    Ok(Lock::try_take(&directory.join(LOCK))?.is_none())
}

/// Asks the server of a directory to end. It does within a moment.
pub fn request_stop(directory: &Path) -> io::Result<()> {
    open(&directory.join(STOP)).map(|_| ())
}

/// Forgets the World of a directory that nobody serves. Returns whether there was one.
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

/// A directory that is this server's.
pub(super) struct Directory {
    path: PathBuf,
    lock: Lock,
}

impl Directory {
    pub(super) fn take(path: &Path) -> Result<Self, KeepError> {
        let failed = |source| failed("open", path, source);
        create(path).map_err(failed)?;
        let lock = lock_soon(&path.join(LOCK)).map_err(failed)?;
        let lock = lock.ok_or_else(|| KeepError::Held {
            directory: path.display().to_string(),
        })?;
        // A wish of before was for another server, and so was what it wrote.
        for name in [STOP, ENDPOINT] {
            _ = fs_err::remove_file(path.join(name));
        }
        Ok(Self {
            path: path.to_owned(),
            lock,
        })
    }

    pub(super) fn world(&self) -> Result<Option<Vec<u8>>, KeepError> {
        read(&self.path.join(WORLD)).map_err(|source| failed("read", &self.path, source))
    }

    pub(super) fn not_a_world(&self, source: RestoreError) -> KeepError {
        KeepError::Restore {
            directory: self.path.display().to_string(),
            source,
        }
    }

    /// Returns the secrets of last time, or new ones.
    pub(super) fn secrets(&self) -> Result<Secrets, KeepError> {
        let text =
            read(&self.path.join(SECRETS)).map_err(|source| failed("read", &self.path, source))?;
        // Secrets that cannot be read lose nothing: a World is reached by new ones as well.
        let kept: Option<Secrets> = text.and_then(|text| serde_json::from_slice(&text).ok());
        match kept {
            Some(kept) => Ok(kept),
            None => Secrets::make().map_err(KeepError::Serve),
        }
    }

    pub(super) fn write_secrets(&self, secrets: &Secrets) -> Result<(), KeepError> {
        self.write(SECRETS, &serde_json::to_vec(secrets).unwrap_or_default())
    }

    pub(super) fn write_world(&self, text: &[u8]) -> Result<(), KeepError> {
        self.write(WORLD, text)
    }

    pub(super) fn write_endpoint(&self, endpoint: &Endpoint) -> Result<(), KeepError> {
        let text = serde_json::to_vec_pretty(endpoint).unwrap_or_default();
        self.write(ENDPOINT, &text)
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<(), KeepError> {
        write(&self.path.join(name), text).map_err(|source| failed("write", &self.path, source))
    }

    /// Whether the directory is there and still this server's.
    pub(super) fn is_ours(&self) -> bool {
        self.lock.is_in_place()
    }

    pub(super) fn stop_is_wanted(&self) -> bool {
        self.path.join(STOP).exists()
    }

    /// Removes what is only true while it is served.
    pub(super) fn leave(&self) {
        for name in [ENDPOINT, STOP] {
            _ = fs_err::remove_file(self.path.join(name));
        }
    }
}

impl Secrets {
    fn make() -> Result<Self, ServeError> {
        Ok(Self {
            token: format!("{TOKEN}={}", uuid::Uuid::new_v4()),
            identity: Identity::make(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?,
            port: 0,
        })
    }
}

fn failed(doing: &'static str, directory: &Path, source: io::Error) -> KeepError {
    KeepError::File {
        doing,
        directory: directory.display().to_string(),
        source,
    }
}
