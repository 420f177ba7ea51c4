//! Programs of this machine, run to their end.
//!
//! In: words. Out: what they printed, and their exit code.
//! Never: a shell; an environment that depends on who started us; a wait without an end.

use std::process::{Command, Stdio};

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
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

/// How long a program may take, in seconds: longer than any of them needs, so that one that hangs
/// is ended some day. Packages may come over slow lines.
const PATIENCE: &str = "1800";

/// Runs a program.
pub(crate) fn run(words: &[&str]) -> Result<Ended, ProcessError> {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where processes are started"
    )]
    let mut command = Command::new("timeout");
    let output = command
        .args(["--kill-after=10", PATIENCE])
        .args(words)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("APT_LISTCHANGES_FRONTEND", "none")
        .env("NEEDRESTART_SUSPEND", "1")
        .env("SYSTEMD_PAGER", "")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ProcessError::Start {
            program: words.first().unwrap_or(&"").to_string(),
            source,
        })?;
    Ok(Ended {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
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
        if self.code == Some(124) {
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
        last.join("; ")
    }
}
