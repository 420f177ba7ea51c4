//! The agent binary and its installation on nodes, under a name with its digest.
//!
//! A binary is verified before it is moved into place.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use homestak_api::durable::{self, Access};
use homestak_api::runtime::{Clock as _, WallClock};
use homestak_core::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::PushError;
use crate::ssh::Ssh;

/// Where nodes keep it.
const PLACE: &str = "/usr/local/lib/homestak";
/// While this exists, an older agent may still have to revert changes.
const UNCONFIRMED: &str = "/usr/local/etc/homestak/state/unconfirmed";
/// The exit code for a missing agent.
pub(super) const MISSING: i32 = 96;
/// The exit code for a digest mismatch.
const BROKEN: i32 = 97;
/// How old a program must be to be remembered, in seconds.
const SETTLED: i64 = 2;
/// Becomes root without a prompt.
pub(super) const AS_ROOT: &str = "$([ \"$(id -u)\" = 0 ] || echo sudo -n)";

/// The agent's program.
#[derive(Clone, Debug)]
pub struct AgentBinary {
    file: PathBuf,
    digest: String,
}

/// The digest of a file and the metadata that shows whether it has changed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CachedDigest {
    file: PathBuf,
    bytes: u64,
    inode: u64,
    changed: (i64, i64),
    digest: String,
}

impl AgentBinary {
    /// Computes the digest of the program: reads it, unless `cache` has the digest of the same
    /// file. Each node verifies the digest during installation, so a wrong cache is detected.
    pub fn read(file: &Path, cache: &Path) -> Result<Self, PushError> {
        let no_agent = |error: std::io::Error| PushError::NoAgent {
            message: error.to_string(),
        };
        let now = fs_err::metadata(file).map_err(no_agent)?;
        let with = |digest| CachedDigest {
            file: file.to_owned(),
            bytes: now.len(),
            inode: now.ino(),
            changed: (now.ctime(), now.ctime_nsec()),
            digest,
        };
        let known = fs_err::read(cache).ok();
        let known = known.and_then(|text| serde_json::from_slice::<CachedDigest>(&text).ok());
        if let Some(known) = known.filter(|known| *known == with(known.digest.clone())) {
            return Ok(Self {
                file: known.file,
                digest: known.digest,
            });
        }
        let digest = Sha256::digest(fs_err::read(file).map_err(no_agent)?);
        let digest = hex::encode(&digest);
        // A file that was just written may change again within the resolution of its time, so it is not
        // cached.
        let known = with(digest.clone());
        let is_old = WallClock.now().as_second() - known.changed.0 > SETTLED;
        if let (true, Ok(text)) = (is_old, serde_json::to_vec(&known)) {
            _ = durable::write(cache, &text, Access::PRIVATE);
        }
        Ok(Self {
            file: file.to_owned(),
            digest,
        })
    }

    /// Returns its SHA-256 in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns its path on nodes.
    pub(super) fn path(&self) -> String {
        format!("{PLACE}/agent-{}", &self.digest[..16])
    }

    /// Installs it on a node, removes older versions and updates the links in `/usr/local/bin`.
    pub(super) fn install(&self, ssh: &Ssh) -> Result<(), PushError> {
        let bytes = fs_err::read(&self.file).map_err(|error| PushError::NoAgent {
            message: error.to_string(),
        })?;
        let (path, digest) = (self.path(), &self.digest);
        tracing::debug!(path, bytes = bytes.len(), "copy the agent to the node");
        let script = format!(
            "set -e; umask 022; mkdir -p {PLACE}; new={PLACE}/.new.$$; trap 'rm -f $new' EXIT; \
             cat >$new; echo \"{digest}  $new\" | sha256sum --check --status || exit {BROKEN}; \
             chmod 755 $new; mv -f $new {path}; \
             [ -e {UNCONFIRMED} ] || for old in {PLACE}/agent-*; do [ $old = {path} ] || rm -f $old; done; \
             ln -sfn {path} /usr/local/bin/homestak-agent; \
             if [ -L /usr/local/bin/homestak ] || [ ! -e /usr/local/bin/homestak ]; then \
             ln -sfn {path} /usr/local/bin/homestak; fi"
        );
        let line = format!("{AS_ROOT} sh -c {}", crate::ssh::quote(&script));
        let output = ssh.run(&line, &bytes)?;
        match output.status {
            0 => Ok(()),
            BROKEN => Err(PushError::Corrupted),
            _ => Err(PushError::from_output(&output)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::{AgentBinary, CachedDigest};

    #[test]
    fn the_digest_of_an_unchanged_agent_is_cached() {
        let place = tempfile::tempdir().expect("a directory");
        let (file, cache) = (place.path().join("agent"), place.path().join("agent.json"));
        let read = || AgentBinary::read(&file, &cache).expect("an agent").digest;
        fs_err::write(&file, "one").expect("written");
        let one = read();
        // It is too young to be remembered.
        assert!(!cache.exists());
        fs_err::write(&file, "two").expect("written");
        let two = read();
        assert_ne!(two, one);

        let now = fs_err::metadata(&file).expect("a file");
        let mut known = CachedDigest {
            file: file.clone(),
            bytes: 3,
            inode: now.ino(),
            changed: (now.ctime(), now.ctime_nsec()),
            digest: "remembered".to_owned(),
        };
        let remember = |known: &CachedDigest| {
            let text = serde_json::to_vec(known).expect("JSON");
            fs_err::write(&cache, text).expect("written");
        };
        remember(&known);
        assert_eq!(read(), "remembered");
        known.changed.1 += 1;
        remember(&known);
        assert_eq!(read(), two);
        fs_err::write(&cache, "garbage").expect("written");
        assert_eq!(read(), two);
        fs_err::remove_file(&file).expect("removed");
        assert!(AgentBinary::read(&file, &cache).is_err());
    }
}
