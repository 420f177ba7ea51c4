//! Runs programs of the machine.
//!
//! In: a program, its arguments, what it reads. Out: what it printed, or why it failed.
//! Never: a shell in between; a secret among the arguments or in the environment.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Stdio};

use homestak_api::environment;

/// Where the machine's programs are.
const PLACES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// It is not there, or cannot be started.
    #[error("`{program}` cannot be started: {error}")]
    NotStarted {
        /// The program.
        program: String,
        /// Why.
        error: std::io::Error,
    },
    /// It said that it failed.
    #[error("`{program}` failed ({status}): {said}")]
    Ended {
        /// The program with its arguments.
        program: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The last it said.
        said: String,
    },
}

/// Makes a command; nothing is started yet.
#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    environment::clean(&mut command, environment::PROXIES);
    // The machine's own programs, wherever whoever runs this looks for theirs.
    command.env("PATH", PLACES);
    // Answers are read by us, in the words we know.
    command.env("LC_ALL", "C");
    command
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn run<A: AsRef<OsStr>>(program: &str, arguments: &[A]) -> Result<String, Failed> {
    run_with(program, arguments, "")
}

/// Runs a program that reads a text, and returns what it printed.
pub(crate) fn run_with<A: AsRef<OsStr>>(
    program: &str,
    arguments: &[A],
    input: &str,
) -> Result<String, Failed> {
    let mut command = command(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    finish(command, program, input)
}

/// Runs a command that was put together elsewhere.
pub(crate) fn finish(mut command: Command, program: &str, input: &str) -> Result<String, Failed> {
    let not_started = |error| Failed::NotStarted {
        program: program.to_owned(),
        error,
    };
    let mut child = command.spawn().map_err(not_started)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read to the end says itself what it misses.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(not_started)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.trim().lines().rev().take(3).collect();
    let said: Vec<&str> = said.into_iter().rev().collect();
    let shown = command.get_args().map(OsStr::to_string_lossy);
    let shown: Vec<_> = shown.take(6).collect();
    Err(Failed::Ended {
        program: format!("{program} {}", shown.join(" ")),
        status: output.status,
        said: said.join(" / "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_given_its_input_and_its_words_come_back() {
        assert_eq!(run_with("cat", &["-"], "hello").expect("cat"), "hello");
    }

    #[test]
    fn a_failure_names_program_and_last_words() {
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
        // Whoever runs tests has set some of its own.
        assert!(!set.contains("CARGO"), "{set}");
    }
}
