//! Errors, with exit codes and hints. They quote neither secrets nor the content of files.

mod fetch;
mod pull;

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use homestak_api::v1::AgentFailure;
use homestak_core::converge::{Change, ConvergeStep};
use homestak_core::error::chain;
use homestak_core::foreign::ForeignText;
use serde_json::Value;

pub(crate) use self::fetch::FetchError;
pub(crate) use self::pull::{PullError, StatementError, UpdateError};
use crate::process::ProcessError;

/// The error code of a run that did everything except refused changes.
pub(crate) const PARTLY_REFUSED: &str = "partly_refused";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("no spec found at `{path}`")]
    NoSpec {
        path: String,
        /// Whether it would be the one that the agent stored.
        is_own: bool,
    },
    /// The cause names its path.
    #[error("the spec cannot be read")]
    UnreadableSpec(#[source] std::io::Error),
    #[error("the spec is invalid: {}", .0.join("; "))]
    WrongSpec(Vec<String>),
    /// The spec cannot be applied to this machine.
    #[error("nothing was changed: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// Some changes were refused, and everything else was done.
    #[error("refused (everything else was applied): {}", .0.join("; "))]
    PartlyRefused(Vec<String>),
    #[error("this command must be run as root")]
    NotRoot,
    #[error("another run is in progress on this machine")]
    Busy,
    #[error("this machine is already being watched")]
    Watched,
    /// Observing the machine failed.
    #[error("read {what}")]
    Observe {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Packages could not be installed or removed.
    #[error("packages: {0}")]
    Packages(String),
    /// The program that reads a file rejects its new content.
    #[error("`{path}` would be invalid: {reason}")]
    InvalidFile { path: String, reason: String },
    #[error("write `{path}`")]
    Write {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{step}: {reason}")]
    Step { step: String, reason: String },
    /// A service failed with its new files.
    #[error("{}", rejected(.unit, .reason, .paths, *.runs))]
    Rejected {
        unit: String,
        /// The service's own messages.
        reason: String,
        /// Files that were restored.
        paths: Vec<String>,
        /// Whether it runs again.
        runs: bool,
    },
    /// All steps were done, and there are still differences.
    #[error("still differs after all steps: {}", names(.0))]
    StillDiffers(Vec<Change>),
    /// A step failed after others were done.
    #[error("{}", incomplete(.first, .done, .left))]
    Incomplete {
        first: Box<Self>,
        done: Vec<String>,
        left: Vec<String>,
    },
    #[error("the changes were not confirmed within {within} s")]
    Unconfirmed { within: u64 },
    /// The run ended while it waited for the confirmation.
    #[error("{0} before the changes were confirmed")]
    Interrupted(&'static str),
    /// The changes were reverted.
    #[error("{}", reverted(.first, .steps, .failures))]
    Reverted {
        first: Box<Self>,
        steps: Vec<String>,
        failures: Vec<String>,
    },
    #[error("changes of job `{0}` await confirmation")]
    AwaitingConfirmation(String),
    #[error("no such job: `{0}`")]
    NoJob(String),
    #[error("the previous spec is not recorded here, or another one was applied since")]
    NoEarlierSpec,
    #[error("no changes await confirmation")]
    NothingToConfirm,
    #[error("job `{job}` cannot be confirmed: {why}")]
    NotConfirmable { job: String, why: &'static str },
    #[error("the agent was killed or the node restarted during this run")]
    Killed,
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Pull(#[from] PullError),
    /// No server sent a spec, and the last accepted one could not be applied either.
    #[error("{fetch}; the spec that was accepted last was not applied")]
    NotFetchedNorApplied {
        fetch: String,
        #[source]
        apply: Box<Self>,
    },
    /// The same with exit code 1: for scripts, and for errors of this machine.
    #[error(transparent)]
    NotFetched(Box<Self>),
    /// The same with exit code 2 instead of 1: of a pass.
    #[error(transparent)]
    NotPulled(Box<Self>),
    #[error("access state file `{path}`")]
    StateFile {
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

/// Entries of a list in a message; events and JSON have all of them.
const MAX_LISTED: usize = 3;

fn few(list: &[String]) -> String {
    match list.len() {
        0 => "nothing".to_owned(),
        n if n > MAX_LISTED => {
            let rest = n - MAX_LISTED;
            format!("{} and {rest} more", list[..MAX_LISTED].join(", "))
        }
        _ => list.join(", "),
    }
}

fn incomplete(first: &AgentError, done: &[String], left: &[String]) -> String {
    let first = match first {
        // Without "nothing was changed".
        AgentError::Refused(why) => why.join("; "),
        first => chain(first),
    };
    let mut text = format!("{first}; completed before that: {}", few(done));
    if !left.is_empty() {
        text += &format!("; not done: {}", few(left));
    }
    text
}

fn reverted(first: &AgentError, steps: &[String], failures: &[String]) -> String {
    let mut text = format!("{}; reverted: {}", chain(first), few(steps));
    if !failures.is_empty() {
        text += &format!("; could not be reverted: {}", failures.join(", "));
    }
    text + "; packages are not reverted"
}

fn rejected(unit: &str, reason: &str, paths: &[String], runs: bool) -> String {
    let paths: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    let were = if paths.len() == 1 { "was" } else { "were" };
    let now = match runs {
        true => "the unit is active again",
        false => "the unit is not active",
    };
    format!(
        "{unit} failed with its new configuration: {reason}; {} {were} restored, and {now}",
        few(&paths)
    )
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

impl AgentError {
    /// Returns the exit code: 1 for wrong input, 2 for failures.
    pub(crate) fn code(&self) -> u8 {
        self.codes().0
    }

    /// Returns whether the failure to obtain the spec is permanent: a retry cannot succeed.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::Pull(error) if error.is_permanent())
    }

    /// Returns whether a server refused the token or the certificate of this machine.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(
            self,
            Self::Pull(PullError::Denied(_) | PullError::CertificateDenied(_))
        )
    }

    /// Returns whether changes were reverted because no server was reached after them.
    pub(crate) fn is_cut_off(&self) -> bool {
        match self {
            Self::Reverted { first, .. } => first.is_cut_off(),
            Self::Pull(PullError::CutOff { .. }) => true,
            _ => false,
        }
    }

    /// Returns the error code for programs.
    pub(crate) fn error_code(&self) -> &'static str {
        self.codes().1
    }

    fn codes(&self) -> (u8, &'static str) {
        match self {
            Self::NoSpec { .. } | Self::UnreadableSpec(_) => (1, "no_spec"),
            Self::WrongSpec(_) => (1, "wrong_spec"),
            Self::Refused(_) => (2, "refused"),
            Self::PartlyRefused(_) => (2, PARTLY_REFUSED),
            Self::NotRoot => (2, "not_root"),
            Self::Busy => (2, "busy"),
            Self::Watched => (2, "watched"),
            Self::Observe { .. } => (2, "look"),
            Self::Process(_) => (2, "program"),
            Self::Packages(_) => (2, "packages"),
            Self::InvalidFile { .. } => (2, "unsound_file"),
            Self::Write { .. } => (2, "write"),
            Self::Step { .. } => (2, "step"),
            Self::Rejected { .. } => (2, "rejected"),
            Self::StillDiffers(_) => (2, "unsettled"),
            Self::Incomplete { first, .. } | Self::Reverted { first, .. } => first.codes(),
            Self::NotFetchedNorApplied { apply, .. } => apply.codes(),
            Self::Fetch(error) => error.codes(),
            Self::Pull(error) => error.codes(),
            Self::NotFetched(error) => (1, error.error_code()),
            Self::NotPulled(error) => (error.code().max(2), error.error_code()),
            Self::Unconfirmed { .. } | Self::Interrupted(_) => (2, "reverted"),
            Self::AwaitingConfirmation(_) => (2, "unconfirmed"),
            Self::NoJob(_) => (1, "no_job"),
            Self::NoEarlierSpec => (1, "no_earlier_spec"),
            Self::NothingToConfirm | Self::NotConfirmable { .. } => (1, "not_asked"),
            Self::Killed => (2, "killed"),
            Self::StateFile { .. } => (2, "remember"),
        }
    }

    /// Returns an error about what could not be observed.
    pub(crate) fn observe<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: &str,
    ) -> impl Fn(E) -> Self {
        move |source| Self::Observe {
            what: what.to_owned(),
            source: source.into(),
        }
    }

    /// Returns an error about a file that could not be written.
    pub(crate) fn write(path: impl fmt::Display) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Write {
            path: path.to_string(),
            source,
        }
    }

    /// Returns an error about a state file.
    pub(crate) fn state_file(path: PathBuf) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::StateFile {
            path: path.display().to_string(),
            source,
        }
    }

    /// Returns the result of a failed job.
    pub(crate) fn result(&self) -> Value {
        serde_json::to_value(self.failure()).unwrap_or_default()
    }

    /// Returns it as it is printed.
    pub(crate) fn failure(&self) -> AgentFailure {
        AgentFailure {
            phase: Some("config".to_owned()),
            success: false,
            error: self.error_code().to_owned(),
            message: self.message(),
            code: Some(self.code()),
        }
    }

    /// Returns the error with its causes and a hint.
    pub(crate) fn message(&self) -> String {
        let text = match self.hint() {
            Some(hint) => format!("{} ({hint})", chain(self)),
            None => chain(self),
        };
        ForeignText::line(&text).into()
    }

    /// Returns the unit that failed to start, if any.
    pub(crate) fn unit(&self) -> Option<&str> {
        let Self::Step { step, .. } = self else {
            return None;
        };
        let (verb, unit) = step.split_once(' ')?;
        matches!(verb, "start" | "restart" | "reload").then_some(unit)
    }

    /// Returns whether a completed step was undone because of this error.
    pub(crate) fn reverts(&self, step: &ConvergeStep) -> bool {
        let Self::Rejected { unit, paths, .. } = self else {
            return false;
        };
        match step {
            ConvergeStep::Write { path, .. } => paths.contains(path),
            ConvergeStep::Restart { unit: one }
            | ConvergeStep::Reload { unit: one }
            | ConvergeStep::Start { unit: one } => one == unit,
            _ => false,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Incomplete { first, .. } | Self::Reverted { first, .. } => first.hint(),
            Self::NotFetchedNorApplied { apply, .. } => apply.hint(),
            Self::Fetch(error) => error.hint(),
            Self::Pull(error) => error.hint(),
            Self::NotFetched(error) | Self::NotPulled(error) => error.hint(),
            Self::Write { path, source } | Self::StateFile { path, source } => {
                io_hint(path, source)
            }
            Self::Packages(reason) => packages_hint(reason),
            Self::Step { .. } => self.unit().map(unit_hint),
            Self::StillDiffers(changes) => {
                let stopped = |change: &&Change| change.field.ends_with("active");
                let unit = changes.iter().find(stopped)?.resource.split_once(':')?.1;
                Some(unit_hint(unit))
            }
            Self::NotRoot => Some("use `sudo`".to_owned()),
            Self::Watched => Some("see `systemctl status homestak-agent`".to_owned()),
            Self::Busy => Some("run it again when that run has ended".to_owned()),
            Self::AwaitingConfirmation(job) => Some(format!(
                "confirm them with `homestak-agent job confirm --id {job}`, or wait until they are reverted"
            )),
            Self::Killed => Some("run it again to continue".to_owned()),
            Self::NoSpec { is_own: true, .. } => Some(
                "fetch one with `homestak spec get`, or run `homestak manifest apply` on a driver"
                    .to_owned(),
            ),
            Self::NoSpec { .. }
            | Self::UnreadableSpec(_)
            | Self::WrongSpec(_)
            | Self::Refused(_)
            | Self::PartlyRefused(_)
            | Self::Observe { .. }
            | Self::Process(_)
            | Self::InvalidFile { .. }
            | Self::Rejected { .. }
            | Self::Unconfirmed { .. }
            | Self::Interrupted(_)
            | Self::NoJob(_)
            | Self::NoEarlierSpec
            | Self::NothingToConfirm
            | Self::NotConfirmable { .. } => None,
        }
    }
}

fn unit_hint(unit: &str) -> String {
    format!("see `journalctl -u {unit}`; fix the cause, then run it again")
}

fn io_hint(path: &str, source: &std::io::Error) -> Option<String> {
    let what = match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space",
        ErrorKind::ReadOnlyFilesystem => "make it writable",
        ErrorKind::PermissionDenied => {
            return Some(format!(
                "root may not write it: check its attributes with `lsattr {path}`, then run it again"
            ));
        }
        _ => return None,
    };
    Some(format!(
        "`findmnt -T {path}` shows its file system: {what}, then run it again"
    ))
}

fn packages_hint(reason: &str) -> Option<String> {
    let hint = if reason.contains(" lock") {
        "another program holds the package lock: wait until it has ended, or set a longer \
         --lock-wait, then run it again"
    } else if reason.contains("resolving") || reason.contains("resolve") {
        "host names cannot be resolved: check /etc/resolv.conf, then run it again"
    } else if reason.contains("Unable to locate package") {
        "check its name, and the repositories in /etc/apt"
    } else if reason.contains("No space left") {
        "free some space under /var, then run it again"
    } else {
        return None;
    };
    Some(hint.to_owned())
}
