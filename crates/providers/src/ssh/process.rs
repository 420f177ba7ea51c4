//! The one place that starts programs of OpenSSH.
//!
//! In: arguments. Out: what came of it.
//! Never: a secret in an argument; files and pipes carry those.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Output, Stdio};

/// Makes a key pair of type ed25519 without a passphrase at a path, and beside it with `.pub`.
pub(super) fn make_key(path: &Path, comment: &str) -> io::Result<Output> {
    command("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
}

#[expect(clippy::disallowed_methods, reason = "this is the module's process.rs")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    std::process::Command::new(program)
}
