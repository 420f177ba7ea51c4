//! The one place of the command line that starts other programs: the editor, a key command, `ssh`,
//! and this program again.
//!
//! In: a command line as the environment gives it. Out: how it ended, or what it printed.
//! Never: a secret in an argument; files and pipes carry those.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Output, Stdio};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::environment;
use homestak_providers::ssh::LARGEST;

/// Settings that this program passes to itself. Tokens are not among them.
const AGAIN: &[&str] = &[
    "HOMESTAK_ROOT",
    "HOMESTAK_SITE_CONFIG",
    "HOMESTAK_STATE",
    "HOMESTAK_HURRY",
    "NO_COLOR",
];

/// Runs the person's editor on a file. The editor's words may hold arguments, as `code --wait`.
pub(crate) fn edit(editor: &str, file: &Path) -> io::Result<ExitStatus> {
    let mut words = editor.split_whitespace();
    let program = words
        .next()
        .ok_or_else(|| io::Error::other("no editor is set"))?;
    let mut command = command(program);
    environment::clean(&mut command, environment::DESKTOP);
    command.args(words).arg(file).status()
}

/// Runs a shell command and returns what it printed, as sops does with `SOPS_AGE_KEY_CMD`.
pub(crate) fn output_of(line: &str) -> io::Result<String> {
    // The command is the user's own and may need any variable, but not the keys themselves.
    let mut command = command("sh");
    command.env_clear();
    let kept = |name: &OsString| !name.to_string_lossy().starts_with("SOPS_AGE_KEY");
    command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
    let output = command.arg("-c").arg(line).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("it ended with {}", output.status)));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| io::Error::other("it printed something that is not text"))
}

/// Starts this program again, to go on when this one has ended: in a process group of its own, so
/// that an interrupt at the terminal does not reach it, and with a file for what it says.
pub(crate) fn start_again(arguments: &[OsString], log: &Path) -> io::Result<Child> {
    let said = fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)?
        .into_parts()
        .0;
    let program = std::env::current_exe()?;
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

/// Runs a program and returns what it printed, as far as a node may print.
pub(crate) fn output(program: &str, arguments: &[OsString]) -> io::Result<Output> {
    let mut child = command(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = std::thread::scope(|scope| {
        let stderr = scope.spawn(|| read(err));
        (read(out), stderr.join().unwrap_or_default())
    });
    let status = child.wait()?;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

fn read(from: Option<impl io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        _ = from.take(LARGEST as u64).read_to_end(&mut bytes);
    }
    bytes
}

/// Returns how the terminal takes keys now, in words for [`set_terminal`].
pub(crate) fn terminal() -> Option<String> {
    let output = command("stty")
        .arg("-g")
        .stdin(Stdio::inherit())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Changes how the terminal takes keys.
pub(crate) fn set_terminal(words: &[&str]) -> io::Result<ExitStatus> {
    command("stty").args(words).status()
}

/// Becomes another program, with the same terminal; returns only when that fails.
pub(crate) fn become_program(program: &str, arguments: &[OsString]) -> io::Error {
    let mut command = command(program);
    if program == "ssh" {
        environment::clean(&mut command, environment::SSH);
    }
    command.args(arguments).exec()
}

#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    environment::clean(&mut command, &[]);
    command
}
