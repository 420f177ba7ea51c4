//! The one place of the driver that starts other programs: a key command, and this program again.
//!
//! In: a command line. Out: what it printed, or the process that goes on.
//! Never: a secret in an argument; files and pipes carry those.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::{environment, limit};

/// How long a key command may take: a person may have to type a passphrase.
const PATIENCE: Duration = Duration::from_secs(300);

/// Settings that this program passes to itself. Tokens are not among them.
const AGAIN: &[&str] = &[
    "HOMESTAK_ROOT",
    "HOMESTAK_SITE_CONFIG",
    "HOMESTAK_STATE",
    "HOMESTAK_HURRY",
    "NO_COLOR",
];

/// Runs a shell command and returns what it printed, as sops does with `SOPS_AGE_KEY_CMD`.
pub(crate) fn output_of(line: &str) -> io::Result<String> {
    // The command is the user's own and may need any variable, but not the keys themselves.
    let mut command = command("sh");
    command.env_clear();
    let kept = |name: &OsString| !name.to_string_lossy().starts_with("SOPS_AGE_KEY");
    command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
    // In our own process group: it may ask a person at the terminal.
    command
        .arg("-c")
        .arg(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = limit::output(&mut command, b"", PATIENCE)?;
    if !output.status.success() {
        return Err(io::Error::other(format!("it ended with {}", output.status)));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| io::Error::other("it printed something that is not text"))
}

/// Starts this program again, to go on when this one has ended: in a process group of its own, so
/// that an interrupt at the terminal does not reach it, and with a file for what it says.
pub(crate) fn start_again(program: &Path, arguments: &[OsString], log: &Path) -> io::Result<Child> {
    let said = fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)?
        .into_parts()
        .0;
    let mut command = command(program);
    environment::clean(&mut command, AGAIN);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .process_group(0)
        .spawn()
}

#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    environment::clean(&mut command, &[]);
    command
}
