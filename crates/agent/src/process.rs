//! Programs of this machine, run to their end.
//!
//! In: words. Out: what they printed, and their exit code.
//! Never: a shell; an environment that depends on who started us; a wait without an end.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use homestak_core::foreign::ForeignText;
use rustix::process::{Pid, Signal, kill_process_group};

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    /// Whether it was ended because it took too long.
    pub(crate) too_long: bool,
}

/// A program could not be run, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("run `{program}`")]
    Start {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("`{command}` failed: {said}")]
    Failed { command: String, said: String },
}

/// How long a program may take: longer than any of them needs, so that one that hangs is ended
/// some day. Packages may come over slow lines.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How long a program may take to end when it is asked to.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Runs a program.
pub(crate) fn run(words: &[&str]) -> Result<Ended, ProcessError> {
    let failed = |source| ProcessError::Start {
        program: words.first().unwrap_or(&"").to_string(),
        source,
    };
    let (program, rest) = words.split_first().unwrap_or((&"", &[]));
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where processes are started"
    )]
    let mut command = Command::new(program);
    let child = command
        .args(rest)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("APT_LISTCHANGES_FRONTEND", "none")
        .env("NEEDRESTART_SUSPEND", "1")
        .env("SYSTEMD_PAGER", "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, so that all of it can be ended.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let group = Pid::from_child(&child);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let waits = [PATIENCE, LAST_WORDS, LAST_WORDS];
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    let mut too_long = false;
    for wait in waits {
        if let Ok(output) = receiver.recv_timeout(wait) {
            let output = output.map_err(failed)?;
            return Ok(Ended {
                code: output.status.code(),
                out: String::from_utf8_lossy(&output.stdout).into_owned(),
                err: String::from_utf8_lossy(&output.stderr).into_owned(),
                too_long,
            });
        }
        too_long = true;
        if let Some(signal) = signals.next() {
            _ = kill_process_group(group, signal);
        }
    }
    Ok(Ended {
        code: None,
        out: String::new(),
        err: String::new(),
        too_long,
    })
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn must(words: &[&str]) -> Result<String, ProcessError> {
    let ended = run(words)?;
    if ended.code == Some(0) {
        return Ok(ended.out);
    }
    Err(ProcessError::Failed {
        command: words.join(" "),
        said: ended.said(),
    })
}

impl Ended {
    /// Returns what a failing program said last, in one line.
    pub(crate) fn said(&self) -> String {
        if self.too_long {
            return "it took too long".to_owned();
        }
        let text = if self.err.trim().is_empty() {
            &self.out
        } else {
            &self.err
        };
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        if last.is_empty() {
            return match self.code {
                Some(code) => format!("exit code {code}"),
                None => "ended by a signal".to_owned(),
            };
        }
        ForeignText::line(&last.join("; ")).into()
    }
}
