//! Starts other programs: a key command, and this program itself. Secrets are passed in files and
//! pipes, never in arguments.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::{environment, limit};

/// Timeout of a key command: the user may have to enter a passphrase.
const PATIENCE: Duration = Duration::from_secs(300);

/// Variables that are passed on to this program. Tokens are not among them.
const AGAIN: &[&str] = &[
    "HOMESTAK_ROOT",
    "HOMESTAK_SITE_CONFIG",
    "HOMESTAK_STATE",
    "HOMESTAK_HURRY",
    "NO_COLOR",
];

/// Runs a shell command and returns its output, as SOPS does with `SOPS_AGE_KEY_CMD`.
pub(crate) fn output_of(line: &str) -> io::Result<String> {
    // The command may need any variable, except the keys themselves.
    let mut command = command("sh");
    command.env_clear();
    let kept = |name: &OsString| !name.to_string_lossy().starts_with("SOPS_AGE_KEY");
    command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
    // In the same process group: it may ask at the terminal.
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

/// Starts this program in the background: in a process group of its own, so that an interrupt at
/// the terminal does not reach it, with its output in a log file.
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
