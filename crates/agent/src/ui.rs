//! The terminal: data goes to stdout, messages to stderr.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use homestak_api::v1::{AgentFailure, AgentOutput, Kind};
use homestak_core::foreign::{ForeignText, escape, escape_json};
use serde::Serialize;

/// The first error of a write of results to stdout.
static WRITE_ERROR: OnceLock<std::io::Error> = OnceLock::new();

/// Returns the first error of a write of results to stdout.
pub(crate) fn write_error() -> Option<&'static std::io::Error> {
    WRITE_ERROR.get()
}

/// Remembers a failed write.
fn remember(written: std::io::Result<()>) {
    if let Err(error) = written {
        _ = WRITE_ERROR.set(error);
    }
}

/// Prints a usage error, or the requested help.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if let Err(lost) = error.print()
        && !error.use_stderr()
        && lost.kind() != std::io::ErrorKind::BrokenPipe
    {
        message(&format!("error: cannot write the output: {lost}"));
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Prints data without control characters. A failed write is reported when the command ends.
pub(crate) fn data(text: &str) {
    remember(write_all(&escape(text)));
}

/// Prints data unchanged. A closed pipe is not an error.
pub(crate) fn write_all(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Prints the result of a command as JSON.
pub(crate) fn json<T: Serialize>(kind: &Kind<AgentOutput<T>>, result: T) {
    output(kind, &AgentOutput::Result(result));
}

/// Prints the result of a command, or why it failed, as JSON.
pub(crate) fn output<T: Serialize>(kind: &Kind<AgentOutput<T>>, output: &AgentOutput<T>) {
    document(&kind.document(output));
}

/// Prints why a command failed as JSON.
pub(crate) fn json_failure(kind: &Kind<AgentFailure>, failure: &AgentFailure) {
    document(&kind.document(failure));
}

fn document(document: &impl Serialize) {
    let mut whole = serde_json::to_value(document).unwrap_or_default();
    escape_json(&mut whole, ForeignText::lines);
    remember(write_all(&format!("{whole:#}\n")));
}

/// Reads a file, or standard input for `-`.
pub(crate) fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        return std::io::stdin().read_to_string(&mut text).map(|_| text);
    }
    fs_err::read_to_string(path)
}

/// Prints a message to stderr.
pub(crate) fn message(text: &str) {
    let mut out = std::io::stderr().lock();
    _ = writeln!(out, "{}", escape(text));
}

/// Prints a line of data. Returns false if the pipe is closed.
pub(crate) fn line(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}
