//! The one place of the command line that starts other programs: the editor, and a key command.
//!
//! In: a command line as the environment gives it. Out: how it ended, or what it printed.
//! Never: a secret in an argument; files and pipes carry those.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

/// Runs the person's editor on a file. The editor's words may hold arguments, as `code --wait`.
pub(crate) fn edit(editor: &str, file: &Path) -> io::Result<ExitStatus> {
    let mut words = editor.split_whitespace();
    let program = words
        .next()
        .ok_or_else(|| io::Error::other("no editor is set"))?;
    command(program).args(words).arg(file).status()
}

/// Runs a shell command and returns what it printed, as sops does with `SOPS_AGE_KEY_CMD`.
pub(crate) fn output_of(line: &str) -> io::Result<String> {
    let output = command("sh")
        .arg("-c")
        .arg(line)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("it ended with {}", output.status)));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| io::Error::other("it printed something that is not text"))
}

#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
fn command(program: &str) -> std::process::Command {
    std::process::Command::new(program)
}
