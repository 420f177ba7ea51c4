//! Errors of converging a node. They contain no part of a spec.

use homestak_core::foreign::ForeignText;
use homestak_engine::ports::{ErrorClass, NextAction, PortError, Sent};

use crate::ssh::{Output, SshError};

/// An error of converging a node.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The agent's program is not here.
    #[error("cannot read the program homestak-agent: {message}")]
    NoAgent {
        /// The error of the system.
        message: String,
    },
    /// The digest of the installed agent does not match.
    #[error("the agent was corrupted in transit")]
    Corrupted,
    /// An SSH error.
    #[error(transparent)]
    Ssh(#[from] SshError),
    /// The user cannot become root.
    #[error("cannot become root on the node: {message}")]
    NotRoot {
        /// Its message.
        message: ForeignText,
    },
    /// An error of the agent.
    #[error("{message}")]
    Agent {
        /// A word for programs, such as `packages`.
        word: String,
        /// For a person.
        message: ForeignText,
    },
    /// The connection was lost, and could not be re-established.
    #[error("the connection was lost and could not be restored in {tries} tries")]
    Lost {
        /// How often it was tried.
        tries: u32,
    },
    /// Following was stopped.
    #[error("the job is no longer followed; the node continues on its own")]
    Abandoned,
    /// A limit was exceeded.
    #[error("the job is no longer followed: {what}")]
    LimitExceeded {
        /// What there is too much of.
        what: String,
    },
    /// The agent sends nothing.
    #[error("the node is connected, but its agent has not reported for {seconds} s")]
    Silent {
        /// How long.
        seconds: u64,
    },
    /// An unexpected exit.
    #[error("the agent exited with {status}: {message}")]
    UnexpectedExit {
        /// Its code.
        status: i32,
        /// Its last line of output.
        message: ForeignText,
    },
}

impl PushError {
    /// Classifies unexpected output of a command.
    pub(super) fn from_output(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stderr);
        let message = text.trim().lines().last().unwrap_or("no output");
        let message = ForeignText::line(message);
        if message.starts_with("sudo:") {
            return Self::NotRoot { message };
        }
        let status = output.status;
        Self::UnexpectedExit { status, message }
    }

    /// Returns it as an error of a port.
    pub fn to_port_error(&self, doing: &str) -> PortError {
        let repeat = |class, hint| (class, hint, NextAction::Repeat);
        let (class, hint, next) = match self {
            Self::Ssh(error) => return error.to_port_error(doing),
            Self::NoAgent { .. } => repeat(
                ErrorClass::Refused,
                "it is installed next to homestak; `cargo build --release --package homestak-agent` builds it",
            ),
            Self::Corrupted | Self::UnexpectedExit { .. } => repeat(ErrorClass::Broken, ""),
            Self::NotRoot { .. } => repeat(
                ErrorClass::Refused,
                "the driver's user needs the sudo rule `NOPASSWD: ALL` on the node",
            ),
            Self::Agent { word, .. } => class_of(word),
            Self::Lost { .. } => repeat(ErrorClass::Unreachable { sent: Sent::Maybe }, LEARN),
            // Another try would take as long.
            Self::Abandoned | Self::LimitExceeded { .. } | Self::Silent { .. } => {
                repeat(ErrorClass::Refused, LEARN)
            }
        };
        PortError {
            class,
            next,
            ..PortError::refused(doing, self.to_string(), hint)
        }
    }
}

/// What to do about a job whose end is not known.
const LEARN: &str = "the node continues on its own; `homestak manifest resume` fetches the result";

/// What can be done about an error of the agent.
fn class_of(word: &str) -> (ErrorClass, &'static str, NextAction) {
    let (class, hint) = match word {
        "busy" | "unconfirmed" => return (ErrorClass::Busy, "", NextAction::Repeat),
        // Its server, or its agent that was killed.
        "unreachable" => {
            let class = ErrorClass::Unreachable { sent: Sent::Maybe };
            return (class, "", NextAction::Repeat);
        }
        "partly_refused" => (
            ErrorClass::Partly,
            "correct it on the node or in the spec, then apply again",
        ),
        "no_earlier_spec" => (
            ErrorClass::Refused,
            "restore the spec in the site, then apply again",
        ),
        "reverted" => (
            ErrorClass::Refused,
            "the changes were reverted; correct the spec, then apply again",
        ),
        _ => (
            ErrorClass::Refused,
            "correct the spec or the node, then apply again; completed steps are not repeated",
        ),
    };
    (class, hint, NextAction::NewPlan)
}

#[cfg(test)]
mod tests {
    use homestak_engine::journal::StepError;

    use super::*;

    #[test]
    fn a_spec_to_be_corrected_needs_a_new_plan() {
        let step_error = |word: &str| {
            let error = PushError::Agent {
                word: word.to_owned(),
                message: "no".into(),
            };
            StepError::from(&error.to_port_error("configure `web`"))
        };
        for word in ["packages", "reverted", "no_earlier_spec"] {
            assert!(step_error(word).needs_new_plan(), "{word}");
        }
        assert!(!step_error("busy").needs_new_plan());
        let unknown = PushError::Ssh(SshError::HostKeyUnknown).to_port_error("configure `web`");
        assert!(StepError::from(&unknown).needs_new_plan());
    }

    #[test]
    fn output_of_a_failed_agent_is_escaped_and_truncated() {
        let mut stderr = b"hello\n\x1b]0;title\x07 \xff ".to_vec();
        stderr.extend(std::iter::repeat_n(b'x', 1 << 20));
        let output = Output {
            status: 1,
            stdout: Vec::new(),
            stderr,
        };
        let text = PushError::from_output(&output)
            .to_port_error("configure")
            .to_string();
        assert!(text.contains(r"\x1b]0;title\x07"), "{}", &text[..200]);
        assert!(
            text.len() < 20_000 && text.contains(" more bytes)"),
            "{}",
            text.len()
        );
        assert!(!text.chars().any(char::is_control));
    }

    #[test]
    fn partly_refused_is_distinguished_from_refused() {
        let class = |word: &str| {
            let error = PushError::Agent {
                word: word.to_owned(),
                message: "keys:alice: `.ssh` should be a directory".into(),
            };
            error.to_port_error("configure").class
        };
        assert_eq!(class("partly_refused"), ErrorClass::Partly);
        assert_eq!(class("refused"), ErrorClass::Refused);
    }
}
