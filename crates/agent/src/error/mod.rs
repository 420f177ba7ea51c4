//! What can go wrong, and which exit code it has. Never quotes secrets or the content of files.

mod fetch;

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use homestak_core::converge::{Change, Step};
use homestak_core::error::chain;
use homestak_core::foreign::ForeignText;
use serde_json::{Value, json};

pub(crate) use self::fetch::FetchError;
use crate::process::ProcessError;

/// What a run is called that did everything but what was refused.
pub(crate) const PARTLY: &str = "partly_refused";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// There is no spec.
    #[error("there is no spec at `{path}`")]
    NoSpec {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The spec has faults.
    #[error("the spec is wrong: {}", .0.join("; "))]
    WrongSpec(Vec<String>),
    /// This machine, or what is wanted of it, is not possible.
    #[error("nothing was changed: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// Some of it is not possible, and everything else was done.
    #[error("refused, while everything else is as the spec says: {}", .0.join("; "))]
    Partly(Vec<String>),
    /// Not run by root.
    #[error("only root can converge a machine, or see what it is")]
    NotRoot,
    /// Another one is at it.
    #[error("another run converges this machine")]
    Busy,
    /// There is a watch.
    #[error("this machine is watched already")]
    Watched,
    /// Looking at the machine failed.
    #[error("look at {what}")]
    Look {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Packages cannot be had.
    #[error("packages: {0}")]
    Packages(String),
    /// A file is not sound.
    #[error("`{path}` would be unsound: {said}")]
    Unsound { path: String, said: String },
    /// A file could not be written.
    #[error("write `{path}`")]
    Write {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// A step failed.
    #[error("{step}: {said}")]
    Step { step: String, said: String },
    /// A service does not run with what was written for it.
    #[error("{}", rejected(.unit, .said, .paths, *.runs))]
    Rejected {
        unit: String,
        /// What the service said.
        said: String,
        /// Files that were put back.
        paths: Vec<String>,
        /// Whether it runs again.
        runs: bool,
    },
    /// What was done did not hold.
    #[error("after all steps this still differs: {}", names(.0))]
    Unsettled(Vec<Change>),
    /// A step failed after others were done.
    #[error("{}", halfway(.first, .done, .left))]
    Halfway {
        first: Box<Self>,
        done: Vec<String>,
        left: Vec<String>,
    },
    /// Nobody said that the node can still be reached.
    #[error("nobody confirmed within {within} s that the node can still be reached")]
    Unconfirmed { within: u64 },
    /// Whoever should have waited for that is gone.
    #[error("{0} before anyone confirmed that the node can still be reached")]
    CutOff(&'static str),
    /// What was done was taken back.
    #[error("{}", taken_back(.first, .back, .stuck))]
    TakenBack {
        first: Box<Self>,
        back: Vec<String>,
        stuck: Vec<String>,
    },
    /// Changes of an earlier run wait.
    #[error("changes of the job `{0}` wait for their confirmation")]
    Waiting(String),
    /// A job that nobody knows.
    #[error("there is no job `{0}` here")]
    NoJob(String),
    /// Nothing to go back to.
    #[error("what this machine was before is not recorded here, or it was configured again since")]
    NoEarlierSpec,
    /// A job that is not to be confirmed, or not any more.
    #[error("the job `{job}` is not to be confirmed: {why}")]
    NotAsked { job: String, why: &'static str },
    /// A job that ended without a word.
    #[error("the agent was killed, or the node restarted, while it worked on this")]
    Killed,
    /// A spec could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The same where it only counts that there is none: for scripts, and when this machine and not
    /// the server is why.
    #[error(transparent)]
    NotFetched(Box<Self>),
    /// The state directory.
    #[error("remember in `{path}`")]
    Remember {
        path: String,
        #[source]
        source: std::io::Error,
    },
}

fn names(changes: &[Change]) -> String {
    let names: Vec<String> = changes
        .iter()
        .map(|change| format!("{} (is {})", change.id, first_line(&change.found)))
        .collect();
    names.join(", ")
}

/// Longer lists are cut in a message; events and JSON have all of it.
const LISTED: usize = 3;

fn few(list: &[String]) -> String {
    match list.len() {
        0 => "nothing".to_owned(),
        n if n > LISTED => {
            let rest = n - LISTED;
            format!("{} and {rest} more", list[..LISTED].join(", "))
        }
        _ => list.join(", "),
    }
}

fn halfway(first: &AgentError, done: &[String], left: &[String]) -> String {
    let first = match first {
        // Something was changed by now.
        AgentError::Refused(why) => why.join("; "),
        first => chain(first),
    };
    let mut text = format!("{first}; done before that: {}", few(done));
    if !left.is_empty() {
        text += &format!("; not done: {}", few(left));
    }
    text
}

fn taken_back(first: &AgentError, back: &[String], stuck: &[String]) -> String {
    let mut text = format!("{}; taken back: {}", chain(first), few(back));
    if !stuck.is_empty() {
        text += &format!("; this could not be taken back: {}", stuck.join(", "));
    }
    text + "; packages stay as they are"
}

fn rejected(unit: &str, said: &str, paths: &[String], runs: bool) -> String {
    let paths: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    let were = if paths.len() == 1 { "was" } else { "were" };
    let now = match runs {
        true => "it runs as before",
        false => "it does not run",
    };
    format!(
        "{unit} does not run with its new configuration: {said}; {} {were} put back, and {now}",
        few(&paths)
    )
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

impl AgentError {
    /// Returns the exit code: 1 for what was asked, 2 for what happened.
    pub(crate) fn code(&self) -> u8 {
        self.class().0
    }

    /// Returns a word for programs.
    pub(crate) fn word(&self) -> &'static str {
        self.class().1
    }

    fn class(&self) -> (u8, &'static str) {
        match self {
            Self::NoSpec { .. } => (1, "no_spec"),
            Self::WrongSpec(_) => (1, "wrong_spec"),
            Self::Refused(_) => (2, "refused"),
            Self::Partly(_) => (2, PARTLY),
            Self::NotRoot => (2, "not_root"),
            Self::Busy => (2, "busy"),
            Self::Watched => (2, "watched"),
            Self::Look { .. } => (2, "look"),
            Self::Process(_) => (2, "program"),
            Self::Packages(_) => (2, "packages"),
            Self::Unsound { .. } => (2, "unsound_file"),
            Self::Write { .. } => (2, "write"),
            Self::Step { .. } => (2, "step"),
            Self::Rejected { .. } => (2, "rejected"),
            Self::Unsettled(_) => (2, "unsettled"),
            Self::Halfway { first, .. } | Self::TakenBack { first, .. } => first.class(),
            Self::Fetch(error) => error.class(),
            Self::NotFetched(error) => (1, error.word()),
            Self::Unconfirmed { .. } | Self::CutOff(_) => (2, "reverted"),
            Self::Waiting(_) => (2, "unconfirmed"),
            Self::NoJob(_) => (1, "no_job"),
            Self::NoEarlierSpec => (1, "no_earlier_spec"),
            Self::NotAsked { .. } => (1, "not_asked"),
            Self::Killed => (2, "killed"),
            Self::Remember { .. } => (2, "remember"),
        }
    }

    /// Says what could not be looked at.
    pub(crate) fn look<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: &str,
    ) -> impl Fn(E) -> Self {
        move |source| Self::Look {
            what: what.to_owned(),
            source: source.into(),
        }
    }

    /// Says which file could not be written.
    pub(crate) fn write(path: impl fmt::Display) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Write {
            path: path.to_string(),
            source,
        }
    }

    /// Says which file of the state could not be read or written.
    pub(crate) fn remember(path: PathBuf) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Remember {
            path: path.display().to_string(),
            source,
        }
    }

    /// Returns what a job that failed says at its end.
    pub(crate) fn result(&self) -> Value {
        json!({
            "phase": "config",
            "success": false,
            "error": self.word(),
            "message": self.message(),
            "code": self.code(),
        })
    }

    /// Returns what happened, and what to do about it, for a person.
    pub(crate) fn message(&self) -> String {
        let text = match self.hint() {
            Some(hint) => format!("{} ({hint})", chain(self)),
            None => chain(self),
        };
        ForeignText::line(&text).into()
    }

    /// Returns the unit that could not be started, if it is about one.
    pub(crate) fn unit(&self) -> Option<&str> {
        let Self::Step { step, .. } = self else {
            return None;
        };
        let (verb, unit) = step.split_once(' ')?;
        matches!(verb, "start" | "restart" | "reload").then_some(unit)
    }

    /// Tells whether a step that was done is not done any more.
    pub(crate) fn reverts(&self, step: &Step) -> bool {
        let Self::Rejected { unit, paths, .. } = self else {
            return false;
        };
        match step {
            Step::Write { path, .. } => paths.contains(path),
            Step::Restart { unit: one }
            | Step::Reload { unit: one }
            | Step::Start { unit: one } => one == unit,
            _ => false,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Halfway { first, .. } | Self::TakenBack { first, .. } => first.hint(),
            Self::Fetch(error) => error.hint(),
            Self::NotFetched(error) => error.hint(),
            Self::Write { path, source } | Self::Remember { path, source } => io_hint(path, source),
            Self::Packages(said) => packages_hint(said),
            Self::Step { .. } => self.unit().map(unit_hint),
            Self::Unsettled(changes) => {
                let stopped = |change: &&Change| change.field.ends_with("active");
                let unit = changes.iter().find(stopped)?.resource.split_once(':')?.1;
                Some(unit_hint(unit))
            }
            Self::NotRoot => Some("put `sudo` in front".to_owned()),
            Self::Watched => Some("`systemctl status homestak-agent` shows it".to_owned()),
            Self::Busy => Some("run it again when that has ended".to_owned()),
            Self::Waiting(job) => Some(format!(
                "`homestak-agent job confirm --id {job}` keeps them, or they are taken back soon"
            )),
            Self::Killed => Some("run it again: it goes on from what was done".to_owned()),
            Self::NoSpec { .. }
            | Self::WrongSpec(_)
            | Self::Refused(_)
            | Self::Partly(_)
            | Self::Look { .. }
            | Self::Process(_)
            | Self::Unsound { .. }
            | Self::Rejected { .. }
            | Self::Unconfirmed { .. }
            | Self::CutOff(_)
            | Self::NoJob(_)
            | Self::NoEarlierSpec
            | Self::NotAsked { .. } => None,
        }
    }
}

fn unit_hint(unit: &str) -> String {
    format!("`journalctl -u {unit}` tells why; run it again when that is mended")
}

fn io_hint(path: &str, source: &std::io::Error) -> Option<String> {
    let what = match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space",
        ErrorKind::ReadOnlyFilesystem => "make it writable",
        ErrorKind::PermissionDenied => {
            return Some(format!(
                "root may not write it: `lsattr {path}` may tell why; run it again when that is mended"
            ));
        }
        _ => return None,
    };
    Some(format!(
        "`findmnt -T {path}` shows its file system: {what}, then run it again"
    ))
}

fn packages_hint(said: &str) -> Option<String> {
    let hint = if said.contains(" lock") {
        "another program uses the packages: wait until it has ended, or give it more time with \
         --lock-wait, then run it again"
    } else if said.contains("resolving") || said.contains("resolve") {
        "names of hosts are not found: look at /etc/resolv.conf, then run it again"
    } else if said.contains("Unable to locate package") {
        "look for a mistake in its name, or for an archive that is missing in /etc/apt"
    } else if said.contains("No space left") {
        "free some space under /var, then run it again"
    } else {
        return None;
    };
    Some(hint.to_owned())
}
