//! What can go wrong, and which exit code it has.
//!
//! In: failures of files, programs and checks. Out: [`AgentError`], with words for a person.
//! Never: a secret; content of files is not quoted.

use homestak_core::converge::Change;

use crate::process::ProcessError;

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
    /// Not run by root.
    #[error("only root can converge a machine")]
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
    #[error("`{path}` would be unsound, nothing was written: {said}")]
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
    /// What was done did not hold.
    #[error("after all steps this still differs: {}", names(.0))]
    Unsettled(Vec<Change>),
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

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

impl AgentError {
    /// Returns the exit code: 1 for what was asked, 2 for what happened.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::NoSpec { .. } | Self::WrongSpec(_) => 1,
            Self::Refused(_)
            | Self::NotRoot
            | Self::Busy
            | Self::Watched
            | Self::Look { .. }
            | Self::Process(_)
            | Self::Packages(_)
            | Self::Unsound { .. }
            | Self::Write { .. }
            | Self::Step { .. }
            | Self::Unsettled(_)
            | Self::Remember { .. } => 2,
        }
    }

    /// Returns a word for programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::NoSpec { .. } => "no_spec",
            Self::WrongSpec(_) => "wrong_spec",
            Self::Refused(_) => "refused",
            Self::NotRoot => "not_root",
            Self::Busy => "busy",
            Self::Watched => "watched",
            Self::Look { .. } => "look",
            Self::Process(_) => "program",
            Self::Packages(_) => "packages",
            Self::Unsound { .. } => "unsound_file",
            Self::Write { .. } => "write",
            Self::Step { .. } => "step",
            Self::Unsettled(_) => "unsettled",
            Self::Remember { .. } => "remember",
        }
    }
}
