//! The agent, and how a node gets it: once for each version, and only whole.
//!
//! In: the program's file. Out: its place on nodes, named after what it adds up to.
//! Never: a program in its place that does not add up; a driver replaced that lives on the node.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::fault::PushError;
use crate::ssh::Ssh;

/// Where nodes keep it.
const PLACE: &str = "/usr/local/lib/homestak";
/// While this is there, an older one may still have to take changes back.
const UNCONFIRMED: &str = "/usr/local/etc/homestak/state/unconfirmed";
/// The code with which a node says that it has not got it.
pub(super) const MISSING: i32 = 96;
/// The code with which a node says that what came does not add up.
const BROKEN: i32 = 97;
/// Becomes root, and asks nobody.
pub(super) const AS_ROOT: &str = "$([ \"$(id -u)\" = 0 ] || echo sudo -n)";

/// The agent's program.
#[derive(Clone, Debug)]
pub struct Agent {
    file: PathBuf,
    digest: String,
}

impl Agent {
    /// Reads the program once, to know what it adds up to.
    pub fn read(file: &Path) -> Result<Self, PushError> {
        let bytes = fs_err::read(file).map_err(|error| PushError::NoAgent {
            said: error.to_string(),
        })?;
        let digest = Sha256::digest(&bytes);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            file: file.to_owned(),
            digest,
        })
    }

    /// Returns its place on nodes.
    pub(super) fn path(&self) -> String {
        format!("{PLACE}/agent-{}", &self.digest[..16])
    }

    /// Brings it to a node. Older ones go; a link that a person types leads to this one.
    pub(super) fn install(&self, ssh: &Ssh) -> Result<(), PushError> {
        let bytes = fs_err::read(&self.file).map_err(|error| PushError::NoAgent {
            said: error.to_string(),
        })?;
        let (path, digest) = (self.path(), &self.digest);
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
            BROKEN => Err(PushError::Broken),
            _ => Err(PushError::of_output(&output)),
        }
    }
}
