//! Starts programs of OpenSSH. Secrets are never passed as arguments.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use homestak_api::{environment, limit};

/// Creates an ed25519 key pair without a passphrase: the private key at `path`, the public key at
/// the same path with `.pub`.
pub(super) fn create_key(path: &Path, comment: &str, timeout: Duration) -> io::Result<Output> {
    let mut keygen = command("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]);
    tracing::debug!(program = "ssh-keygen", "start");
    limit::output(keygen.arg(path), b"", timeout)
}

/// Creates the command `ssh`; nothing is started yet.
pub(super) fn ssh() -> std::process::Command {
    let mut ssh = command("ssh");
    // `SendEnv LC_*` is common in configurations, and nodes often lack the locale of the user.
    ssh.env("LC_ALL", "C.UTF-8");
    ssh
}

/// Ends a shared connection: asks its master process to exit (`ssh -O exit`).
pub(super) fn exit_master(socket: &Path, timeout: Duration) -> io::Result<Output> {
    let mut ssh = command("ssh");
    ssh.args(["-F", "/dev/null", "-O", "exit", "-S"]);
    tracing::debug!(?socket, "close shared SSH connection");
    limit::output(ssh.arg(socket).arg("node"), b"", timeout)
}

#[expect(clippy::disallowed_methods, reason = "this is the module's process.rs")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    environment::clean(&mut command, environment::SSH);
    command
        // In its own process group, Ctrl-C does not reach it; the caller ends it.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
