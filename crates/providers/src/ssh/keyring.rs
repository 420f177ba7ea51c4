//! SSH keys: that of the driver, and one host key per guest, pinned in `known_hosts` by UUID.
//!
//! Safe for concurrent use. Private keys are readable by their owner only and never overwritten.

use std::io;
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::durable::{self, Access};
use homestak_api::lock;
use homestak_core::doc::timeouts::{Limit, Timeouts};
use homestak_engine::context::report_waiting;
use homestak_engine::ports::{GuestUuid, HostKey, PortError};

use super::{INSTALL, multiplex, process};

/// First line of a private key of `ssh-keygen`.
const HEAD: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\n";
const TAIL: &str = "-----END OPENSSH PRIVATE KEY-----\n";

/// The keys in a directory.
#[derive(Clone, Debug)]
pub struct Keyring {
    directory: PathBuf,
    /// Timeout of OpenSSH programs and of the lock.
    timeouts: Timeouts,
}

impl Keyring {
    /// Keeps keys in a directory, which is created when it is needed.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            timeouts: Timeouts::default(),
        }
    }

    /// Sets the timeout.
    #[must_use]
    pub fn with_timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// Returns the file with the driver's private key.
    pub fn driver_key_file(&self) -> PathBuf {
        self.directory.join("id_ed25519")
    }

    /// Returns the known-hosts file with the pinned keys of guests, by UUID.
    pub fn known_hosts(&self) -> PathBuf {
        self.directory.join("known_hosts")
    }

    /// Returns the known-hosts file with keys that the user confirmed, by UUID.
    pub fn seen_hosts(&self) -> PathBuf {
        self.directory.join("seen_hosts")
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the driver's public key. Makes the pair when there is none.
    pub fn driver_key(&self) -> Result<String, PortError> {
        let doing = "create the driver's SSH key";
        let file = self.driver_key_file();
        self.ensure(&file, "homestak", doing)?;
        public_of(&file).map_err(|error| failed(doing, &error))
    }

    /// Returns the key pair that a guest proves itself with, and pins it. Makes the pair when there
    /// is none.
    pub fn host_key(&self, guest: &GuestUuid) -> Result<HostKey, PortError> {
        let doing = format!("create the SSH host key of guest {guest}");
        let file = self.file_of(guest);
        self.ensure(&file, guest.as_str(), &doing)?;
        let made = || -> io::Result<HostKey> {
            let public = public_of(&file)?;
            self.pin(&self.known_hosts(), guest, Some(&public))?;
            let private = fs_err::read_to_string(&file)?;
            Ok(HostKey { private, public })
        };
        made().map_err(|error| failed(&doing, &error))
    }

    /// Returns whether a guest's key is pinned.
    pub fn is_pinned(&self, guest: &GuestUuid) -> Result<bool, PortError> {
        let read = || -> io::Result<bool> {
            let known = read_or_empty(&self.known_hosts())?;
            Ok(known.lines().any(|line| is_of(line, guest)))
        };
        read().map_err(|error| failed("read known_hosts", &error))
    }

    /// Keeps the keys of a guest under another identity as well. Repeating it changes nothing.
    pub fn rename(&self, from: &GuestUuid, to: &GuestUuid) -> Result<(), PortError> {
        let (old, new) = (self.file_of(from), self.file_of(to));
        let rename = || -> io::Result<()> {
            if is_whole(&old) && !is_whole(&new) {
                let _turn = self.lock()?;
                let (public, private) = (fs_err::read(public_file(&old))?, fs_err::read(&old)?);
                durable::write(&public_file(&new), &public, Access::PUBLIC)?;
                durable::write(&new, &private, Access::PRIVATE)?;
            }
            for file in [self.known_hosts(), self.seen_hosts()] {
                let known = read_or_empty(&file)?;
                let public = |guest: &GuestUuid| {
                    let line = known.lines().find(|line| is_of(line, guest))?;
                    line.split_once(' ').map(|(_, public)| public)
                };
                if let (Some(public), None) = (public(from), public(to)) {
                    self.pin(&file, to, Some(public))?;
                }
            }
            Ok(())
        };
        let doing = format!("keep the SSH host key of guest {to}");
        rename().map_err(|error| failed(&doing, &error))
    }

    /// Deletes the keys of a guest and closes connections to it. Idempotent.
    pub fn forget(&self, guest: &GuestUuid) -> Result<(), PortError> {
        let file = self.file_of(guest);
        let forget = || -> io::Result<()> {
            if !self.directory.exists() {
                return Ok(());
            }
            self.disconnect(guest.as_str());
            self.pin(&self.known_hosts(), guest, None)?;
            self.pin(&self.seen_hosts(), guest, None)?;
            remove_if_exists(&file)?;
            remove_if_exists(&public_file(&file))
        };
        let doing = format!("delete the SSH host key of guest {guest}");
        forget().map_err(|error| failed(&doing, &error))
    }

    /// Ends the connections to a guest that commands share.
    pub(super) fn disconnect(&self, alias: &str) {
        multiplex::close(&self.directory, alias, self.timeouts.of(Limit::Ssh));
    }

    fn file_of(&self, guest: &GuestUuid) -> PathBuf {
        self.directory.join("host-keys").join(guest.as_str())
    }

    /// Creates a key pair in a file where there is none yet.
    fn ensure(&self, file: &Path, comment: &str, doing: &str) -> Result<(), PortError> {
        if is_whole(file) {
            return Ok(());
        }
        let broken = |error: io::Error| failed(doing, &error);
        let directory = file.parent().unwrap_or(&self.directory);
        durable::create_private(&self.directory).map_err(broken)?;
        durable::create_private(directory).map_err(broken)?;
        // In the same directory, so that it is moved atomically.
        let new = tempfile::Builder::new()
            .prefix(".new-")
            .tempdir_in(directory)
            .map_err(broken)?;
        let made = new.path().join("key");
        let output = process::create_key(&made, comment, self.timeouts.of(Limit::Ssh));
        let output = output.map_err(|error| missing(doing, &error))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let detail = format!("ssh-keygen failed: {}", stderr.trim());
            return Err(refused(doing, detail));
        }
        self.install(&made, file).map_err(broken)
    }

    /// Moves a key pair into place, unless another process was faster. The private key is moved last, so
    /// that it never exists without the public one.
    fn install(&self, made: &Path, file: &Path) -> io::Result<()> {
        let _turn = self.lock()?;
        if is_whole(file) {
            return Ok(());
        }
        for part in [public_file(made), made.to_owned()] {
            fs_err::File::open(part)?.sync_all()?;
        }
        durable::rename(&public_file(made), &public_file(file))?;
        durable::rename(made, file)
    }

    /// Sets the only public key of a guest in a known-hosts file, or removes it.
    fn pin(&self, file: &Path, guest: &GuestUuid, public: Option<&str>) -> io::Result<()> {
        let _turn = self.lock()?;
        let known = read_or_empty(file)?;
        let mut kept: Vec<&str> = known.lines().filter(|line| !is_of(line, guest)).collect();
        let line = public.map(|public| format!("{guest} {}", without_comment(public)));
        kept.extend(line.as_deref());
        let mut text = kept.join("\n");
        if !text.is_empty() {
            text.push('\n');
        }
        if text == known {
            return Ok(());
        }
        durable::write(file, text.as_bytes(), Access::PRIVATE)
    }

    /// Locks the keyring.
    fn lock(&self) -> io::Result<fs_err::File> {
        let file = fs_err::OpenOptions::new()
            .create(true)
            .mode(0o600)
            .truncate(false)
            .write(true)
            .open(self.directory.join("lock"))?;
        lock::lock(file.file(), self.timeouts.of(Limit::Lock), report_waiting)?;
        Ok(file)
    }
}

/// Returns whether a private key is complete: it may be truncated after a power failure.
fn is_whole(file: &Path) -> bool {
    let text = fs_err::read_to_string(file).unwrap_or_default();
    text.starts_with(HEAD) && text.ends_with(TAIL) && public_file(file).exists()
}

fn public_file(file: &Path) -> PathBuf {
    file.with_added_extension("pub")
}

fn public_of(file: &Path) -> io::Result<String> {
    Ok(fs_err::read_to_string(public_file(file))?.trim().to_owned())
}

/// Returns whether a line of `known_hosts` is about a guest.
fn is_of(line: &str, guest: &GuestUuid) -> bool {
    line.split(' ').next() == Some(guest.as_str())
}

fn without_comment(public: &str) -> String {
    let words: Vec<&str> = public.split_whitespace().take(2).collect();
    words.join(" ")
}

fn read_or_empty(file: &Path) -> io::Result<String> {
    match fs_err::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

fn remove_if_exists(file: &Path) -> io::Result<()> {
    match fs_err::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn refused(doing: &str, detail: String) -> PortError {
    PortError::refused(doing, detail, "")
}

fn failed(doing: &str, error: &io::Error) -> PortError {
    refused(doing, error.to_string())
}

/// Returns the error for a missing program.
fn missing(doing: &str, error: &io::Error) -> PortError {
    let mut made = failed(doing, error);
    if error.kind() == io::ErrorKind::NotFound {
        made.detail = "ssh-keygen is not installed".into();
        made.hint = INSTALL.to_owned();
    }
    made
}
