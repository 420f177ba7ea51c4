//! Runs programs of the machine and returns their output or an error. No shell is involved, and
//! secrets are not passed in arguments or the environment.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use homestak_api::{environment, limit};

/// How long a program may take: longer than any of them needs. Package downloads may be slow.
const TIMEOUT: Duration = Duration::from_secs(1_800);

/// The search path for programs, independent of the caller's.
const SEARCH_PATH: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Returns where a program is.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let mut places = SEARCH_PATH
        .iter()
        .map(|place| Path::new(place).join(program));
    places.find(|path| path.is_file())
}

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// It timed out and was killed.
    #[error("{0}")]
    TimedOut(std::io::Error),
    /// It cannot be started.
    #[error("cannot start `{program}`: {error}")]
    NotStarted {
        /// The program.
        program: String,
        /// Why.
        error: std::io::Error,
    },
    /// It failed.
    #[error("`{program}` failed ({status}): {stderr}")]
    Failed {
        /// The program with its arguments.
        program: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The last lines of stderr.
        stderr: String,
    },
}

/// Creates a command; nothing is started yet.
#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    environment::clean(&mut command, environment::PROXIES);
    command.env("PATH", SEARCH_PATH.join(":"));
    // Output is parsed, so it must not be translated.
    command.env("LC_ALL", "C");
    command
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn run<A: AsRef<OsStr>>(program: &str, arguments: &[A]) -> Result<String, ProgramError> {
    run_with(program, arguments, "")
}

/// Runs a program that reads a text, and returns what it printed.
pub(crate) fn run_with<A: AsRef<OsStr>>(
    program: &str,
    arguments: &[A],
    input: &str,
) -> Result<String, ProgramError> {
    let mut command = command(program);
    command
        .args(arguments)
        // Its own process group: Ctrl-C goes to this program only, and the child can finish.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    finish(command, program, input)
}

/// Runs a command that was put together elsewhere.
pub(crate) fn finish(
    mut command: Command,
    program: &str,
    input: &str,
) -> Result<String, ProgramError> {
    tracing::debug!(program, "start");
    let ran = limit::output(&mut command, input.as_bytes(), TIMEOUT);
    let output = ran.map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => ProgramError::TimedOut(error),
        _ => ProgramError::NotStarted {
            program: program.to_owned(),
            error,
        },
    })?;
    // Its arguments and output may contain secrets, and are not logged.
    tracing::debug!(program, status = %output.status, "ended");
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr: Vec<&str> = stderr.trim().lines().rev().take(3).collect();
    let stderr: Vec<&str> = stderr.into_iter().rev().collect();
    let shown = command.get_args().map(OsStr::to_string_lossy);
    let shown: Vec<_> = shown.take(6).collect();
    Err(ProgramError::Failed {
        program: format!("{program} {}", shown.join(" ")),
        status: output.status,
        stderr: stderr.join(" / "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_its_input_and_returns_its_output() {
        assert_eq!(run_with("cat", &["-"], "hello").expect("cat"), "hello");
    }

    #[test]
    fn a_failure_names_the_program_and_its_last_output() {
        let error = run("sh", &["-c", "echo no such luck >&2; exit 3"]).expect_err("it fails");
        let text = error.to_string();
        assert!(
            text.contains("sh -c") && text.contains("no such luck"),
            "{text}"
        );
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let error = run::<&str>("homestak-no-such-program", &[]).expect_err("it is missing");
        assert!(error.to_string().contains("homestak-no-such-program"));
    }

    #[test]
    fn a_program_gets_the_variables_it_needs_and_no_others() {
        let set = run::<&str>("env", &[]).expect("env");
        let name = |line: &str| line.split('=').next().unwrap_or_default().to_owned();
        let names: Vec<String> = set.lines().map(name).collect();
        assert!(names.contains(&"PATH".to_owned()), "{set}");
        // The test runner has set variables of its own.
        assert!(!set.contains("CARGO"), "{set}");
    }
}
