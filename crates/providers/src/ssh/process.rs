//! Starts programs of OpenSSH. Secrets are never passed as arguments.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use homestak_api::{environment, limit};

/// Creates a key pair of type ed25519 without a passphrase at a path, and beside it with `.pub`.
pub(super) fn make_key(path: &Path, comment: &str, within: Duration) -> io::Result<Output> {
    let mut keygen = command("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]);
    limit::output(keygen.arg(path), b"", within)
}

/// Creates the command `ssh`; nothing is started yet.
pub(super) fn ssh() -> std::process::Command {
    let mut ssh = command("ssh");
    // Configurations often send the locale along, and a node rarely has the person's.
    ssh.env("LC_ALL", "C.UTF-8");
    ssh
}

/// Asks the holder of a shared connection to end it.
pub(super) fn end_master(socket: &Path, within: Duration) -> io::Result<Output> {
    let mut ssh = command("ssh");
    ssh.args(["-F", "/dev/null", "-O", "exit", "-S"]);
    limit::output(ssh.arg(socket).arg("node"), b"", within)
}

#[expect(clippy::disallowed_methods, reason = "this is the module's process.rs")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    environment::clean(&mut command, environment::SSH);
    command
        // A group of its own: an interrupt at the terminal is for us, and we end it.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
