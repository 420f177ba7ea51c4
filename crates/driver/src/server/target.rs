//! The directory that a permanent server reads: on this machine, or on another one over SSH.
//!
//! Flow: everything is published to the state directory of the driver first and copied from there.
//! Guarantees: each file is replaced whole; what is copied last is the newest, since copies wait for
//! each other; only the owner and the group of the directory can read the files.
//! Assumptions: the directory exists, belongs to the driver's user or root, and it has the setgid bit with the
//! group of the server when the server has a user of its own.
//! When it goes wrong: some files are the new ones, the others are copied by the next command.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::lock;
use homestak_api::publication::{PublishDirectory, sha256};
use homestak_core::doc::scalar::PublishTarget as TargetText;
use homestak_core::doc::timeouts::Limit;
use homestak_providers::ssh::{Output, Ssh, SshError, quote};

use crate::error::DriverError;
use crate::seed_source::keyring;
use crate::session::Session;
use crate::settings::DriverSettings;

/// How long one command on the other machine may take: the agent's program is sent in one.
const COMMAND_TIME: Duration = Duration::from_secs(300);

/// The largest file that is sent: it is in memory meanwhile.
const FILE_BYTES: u64 = 256 << 20;

/// Lists all files but those that are being written, with their SHA-256.
const LIST: &str = "find . -type f ! -name '.*' -exec sha256sum {} +";

/// Replaces FILE by standard input. Only the owner can read it; in a directory with the setgid bit,
/// its group can as well. An input that was cut off is not taken for the file.
const WRITE: &str = "set -e; umask 077; file=FILE; \
    case $file in */*) directory=${file%/*} ;; *) directory=. ;; esac; \
    if [ ! -d \"$directory\" ]; then \
    if [ -g . ]; then (umask 027; mkdir -p \"$directory\"); else mkdir -p \"$directory\"; fi; fi; \
    new=$directory/.${file##*/}.$$.homestak-new; trap 'rm -f \"$new\"' EXIT; cat >\"$new\"; \
    echo \"DIGEST  $new\" | sha256sum --check --status; \
    if [ -g . ]; then chgrp --reference=. \"$new\"; chmod 640 \"$new\"; fi; \
    sync \"$new\"; mv -f \"$new\" \"$file\"; sync \"$directory\"";

/// Where a permanent server reads what is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishTarget {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A directory of another machine.
    Remote {
        /// The user who writes it.
        user: String,
        /// The machine, as an argument of `ssh`.
        host: String,
        /// The directory there.
        path: String,
    },
}

impl std::fmt::Display for PublishTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Remote { user, host, path } => write!(f, "{user}@{host}:{path}"),
        }
    }
}

impl PublishTarget {
    /// Returns the target of the settings, else of the site.
    pub fn of_site(session: &Session, settings: &DriverSettings) -> Option<Self> {
        let of_site = || {
            let target = session.catalog.defaults()?.publish_to.as_ref()?;
            Some(target.value.clone())
        };
        let text = settings.publish_to.clone().or_else(of_site)?;
        Some(Self::parse(&text))
    }

    fn parse(text: &TargetText) -> Self {
        let text = text.as_str();
        let (place, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        let place = place.strip_suffix(':');
        let Some((user, host)) = place.and_then(|place| place.split_once('@')) else {
            return Self::Directory(path.into());
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Self::Remote {
            user: user.to_owned(),
            host: host.to_owned(),
            path: path.to_owned(),
        }
    }

    /// Makes the target equal to a directory of this driver. Blocks on disk I/O and on the other
    /// machine.
    pub(super) fn copy(
        &self,
        from: &PublishDirectory,
        turn: &Path,
        settings: &DriverSettings,
    ) -> Result<(), DriverError> {
        let file = super::lease::open_lock(turn)?;
        lock::lock(&file, settings.timeouts.of(Limit::Lock), |_| ())
            .map_err(|error| DriverError::file("lock", turn, &error))?;
        match self {
            Self::Directory(path) if !path.is_dir() => {
                let message = format!("The directory `{}` does not exist.", path.display());
                Err(DriverError::failed(message).hint(CREATE))
            }
            Self::Directory(path) => {
                let copied = PublishDirectory::new(path).copy_from(from);
                copied.map(drop).map_err(|error| {
                    DriverError::file("publish to", path, &error).hint(
                        "run it as the owner of the directory; for root, it must belong to root",
                    )
                })
            }
            Self::Remote { user, host, path } => {
                let ssh = Ssh::to_machine(&keyring(settings), host, user)
                    .with_connect_timeout(settings.timeouts.of(Limit::Ssh))
                    .with_timeout(COMMAND_TIME)
                    .with_config_file(settings.ssh_config.clone());
                let remote = Remote {
                    target: self,
                    ssh,
                    path,
                };
                remote.copy(from)
            }
        }
    }
}

/// How the directory of a server is created.
const CREATE: &str = "`systemd-tmpfiles --create` creates the one of the systemd unit; \
    for another: install -d -m 2750 -g GROUP_OF_THE_SERVER DIRECTORY";

/// A directory of another machine.
struct Remote<'a> {
    target: &'a PublishTarget,
    ssh: Ssh,
    path: &'a str,
}

impl Remote<'_> {
    fn copy(&self, from: &PublishDirectory) -> Result<(), DriverError> {
        let failed = |error: io::Error| DriverError::file("read", from.path(), &error);
        let mut there = self.list()?;
        for file in from.all_files().map_err(failed)? {
            let size = fs_err::metadata(from.path().join(&file)).map_err(failed)?;
            if size.len() > FILE_BYTES {
                return Err(DriverError::failed(format!(
                    "Cannot publish to `{}`: `{}` is larger than {FILE_BYTES} bytes.",
                    self.target,
                    file.display()
                ))
                .hint("a repository of this size is served on this machine only (--exclude)"));
            }
            let content = fs_err::read(from.path().join(&file)).map_err(failed)?;
            let content = zeroize::Zeroizing::new(content);
            let (name, digest) = (file.to_string_lossy().into_owned(), sha256(&content));
            if there.remove(&name).as_ref() == Some(&digest) {
                continue;
            }
            let script = WRITE.replace("FILE", &quote(&name));
            self.run(&script.replace("DIGEST", &digest), &content)?;
        }
        for name in there.keys() {
            self.run(&format!("rm -f -- {}", quote(name)), b"")?;
        }
        Ok(())
    }

    /// Returns the SHA-256 of all files by their paths.
    fn list(&self) -> Result<BTreeMap<String, String>, DriverError> {
        let output = self.run(LIST, b"")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let of_line = |line: &str| {
            let (digest, name) = line.split_once("  ./")?;
            Some((name.to_owned(), digest.to_owned()))
        };
        Ok(text.lines().filter_map(of_line).collect())
    }

    /// Runs a script in the directory.
    fn run(&self, script: &str, stdin: &[u8]) -> Result<Output, DriverError> {
        let line = format!("cd -- {} && {{ {script}; }}", quote(self.path));
        // A shell that every machine has, whatever the login shell of the user is.
        let line = format!("/bin/sh -c {}", quote(&line));
        let output = self.ssh.run(&line, stdin);
        let output = output.map_err(|error| self.failed(&error))?;
        if output.status == 0 {
            return Ok(output);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().last().unwrap_or_default().trim();
        let why = match line {
            "" => format!("the command ended with code {}", output.status),
            line => line.to_owned(),
        };
        let message = format!("Cannot publish to `{}`: {why}.", self.target);
        Err(DriverError::failed(message).hint(CREATE))
    }

    fn failed(&self, error: &SshError) -> DriverError {
        let port = error.to_port_error("publish");
        let failed = DriverError::failed(format!("Cannot publish to `{}`: {error}.", self.target));
        let place = self.target.to_string();
        let place = place.split_once(":/").map_or("", |(place, _)| place);
        let failed = DriverError {
            class: Some(port.class),
            ..failed
        };
        match error {
            SshError::HostKeyUnknown | SshError::HostKeyDiffers => failed.hint(format!(
                "`ssh {place} true` must work without prompting: confirm the host key there"
            )),
            _ => failed.hint(format!("`ssh {place} true` must work without prompting")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> PublishTarget {
        let text = TargetText::new(text).expect("valid");
        PublishTarget::parse(&text)
    }

    #[test]
    fn a_path_is_here_and_a_host_with_a_path_elsewhere() {
        let remote = |user: &str, host: &str| PublishTarget::Remote {
            user: user.to_owned(),
            host: host.to_owned(),
            path: "/srv/a:b@c".to_owned(),
        };
        assert_eq!(target("/srv/x"), PublishTarget::Directory("/srv/x".into()));
        assert_eq!(target("a@b.example:/srv/a:b@c"), remote("a", "b.example"));
        assert_eq!(target("a@10.0.0.1:/srv/a:b@c"), remote("a", "10.0.0.1"));
        assert_eq!(target("a@[fd00::1]:/srv/a:b@c"), remote("a", "fd00::1"));
        for wrong in [
            "",
            "/",
            "srv",
            "b:srv",
            "b:",
            ":/srv",
            "@b:/srv",
            "-oX@b:/srv",
            "a@-oX:/srv",
            "a@b:/s rv",
            "a b:/srv",
            "a@b c:/srv",
            "a@[x]:/srv",
            "./srv",
            "b:/srv",
        ] {
            assert_eq!(TargetText::new(wrong), None, "{wrong}");
        }
    }
}
