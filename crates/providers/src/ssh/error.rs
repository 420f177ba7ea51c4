//! Classifies failures of `ssh` by its own log, which is separate from the output of the command.

use homestak_core::foreign::ForeignText;
use homestak_engine::planning::REBUILD;
use homestak_engine::ports::{ErrorClass, NextAction, PortError, Sent};

/// Why a node is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreachableReason {
    /// It refused the connection: nothing listens on the port.
    Refused,
    /// It did not answer in time.
    NoAnswer,
    /// There is no route to it.
    NoRoute,
    /// Its name has no address.
    UnknownName,
    /// Something answers, but no SSH server that is ready.
    Handshake,
    /// The connection was lost.
    Lost,
}

/// Why a command could not be run on a node.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// OpenSSH's client is not installed.
    #[error("ssh is not installed")]
    NotInstalled,
    /// The node is unreachable, or the connection was lost.
    #[error("{message}")]
    Unreachable {
        /// The message of `ssh`.
        message: ForeignText,
        /// Why.
        reason: UnreachableReason,
        /// Whether the command may have been run.
        sent: Sent,
    },
    /// The host key differs from the pinned one.
    #[error("the host key differs from the pinned one")]
    HostKeyDiffers,
    /// No key is pinned.
    #[error("its host key is not pinned")]
    HostKeyUnknown,
    /// Authentication failed.
    #[error("{message}")]
    Denied {
        /// The message of `ssh`.
        message: ForeignText,
    },
    /// The output is too large.
    #[error("it printed more than {mebibytes} MiB; the rest was not read")]
    OutputTooLarge {
        /// How much is read at most.
        mebibytes: usize,
    },
    /// The command timed out.
    #[error("timed out after {seconds} s")]
    TimedOut {
        /// How long was waited.
        seconds: u64,
    },
    /// Something else.
    #[error("{message}")]
    Failed {
        /// The message of `ssh` or of the system.
        message: ForeignText,
    },
}

/// Hint for a node that denies access.
const LET_IN: &str =
    "the node must accept the driver's SSH key; `homestak console NODE` works without SSH";

/// Hint for a host key that differs from the pinned one.
const OTHER_KEY: &str = "another machine may have this address now; nothing was sent to it. If the node was given a new \
     host key on purpose, or an older state directory was restored, correct the line of the node in \
     `ssh/known_hosts` of the state directory";

/// Messages of `ssh` when no connection was established. The first that is found counts.
const NOT_CONNECTED: &[(&str, UnreachableReason)] = &[
    ("Connection refused", UnreachableReason::Refused),
    ("Connection timed out", UnreachableReason::NoAnswer),
    ("Operation timed out", UnreachableReason::NoAnswer),
    ("No route to host", UnreachableReason::NoRoute),
    ("Network is unreachable", UnreachableReason::NoRoute),
    ("Could not resolve hostname", UnreachableReason::UnknownName),
    ("kex_exchange_identification", UnreachableReason::Handshake),
    ("Bad remote protocol version", UnreachableReason::Handshake),
    ("banner exchange", UnreachableReason::Handshake),
];

/// Messages of `ssh` when a connection was lost.
const LOST: &[&str] = &[
    "Connection closed by",
    "Connection reset by",
    "Broken pipe",
    "not responding",
    "mux_client",
    "Session open refused",
];

/// Start of the line with the reason why the server closed the connection.
const DISCONNECTED: &str = "Received disconnect from ";
/// Starts of lines after which the text is chosen by the server, line breaks included.
const THEIRS: &[&str] = &[DISCONNECTED, "Unable to negotiate with ", "channel "];
/// Text after which the rest of the line is chosen by the server.
const GREETED: &str = "identification: '";
/// Message of a server that was offered too many keys.
const TOO_MANY: &str = "Too many authentication failures";

impl SshError {
    /// Classifies the log of an `ssh` that exited with 255; `None` if it is empty, so that 255 is the exit
    /// code of the command.
    pub(super) fn from_log(log: &str) -> Option<Self> {
        let (log, theirs) = log.split_at(server_text_start(log));
        let lines: Vec<&str> = log
            .lines()
            .filter_map(|l| l.split(GREETED).next())
            .collect();
        let begins = |words: &str| lines.iter().any(|line| line.starts_with(words));
        let has = |words: &str| lines.iter().any(|line| line.contains(words));
        let message = match theirs.lines().next() {
            Some(line) => line.trim().into(),
            None => last_line(log)?,
        };
        // The host key first: other failures follow from it.
        let error = if lines.iter().any(is_changed) {
            Self::HostKeyDiffers
        } else if lines.iter().any(is_unknown) {
            Self::HostKeyUnknown
        } else if begins("Host key verification failed") {
            Self::HostKeyDiffers
        } else if lines.iter().any(is_denied)
            || theirs.starts_with(DISCONNECTED) && theirs.contains(TOO_MANY)
        {
            Self::Denied { message }
        } else if let Some((_, reason)) = NOT_CONNECTED.iter().find(|(words, _)| has(words)) {
            Self::Unreachable {
                message,
                reason: *reason,
                sent: Sent::No,
            }
        } else if LOST.iter().any(|words| has(words)) || theirs.starts_with(DISCONNECTED) {
            Self::Unreachable {
                message,
                reason: UnreachableReason::Lost,
                sent: Sent::Maybe,
            }
        } else {
            Self::Failed { message }
        };
        Some(error)
    }

    pub(super) fn from_spawn(error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound {
            return Self::NotInstalled;
        }
        let message = format!("cannot start ssh: {error}").into();
        Self::Failed { message }
    }

    /// Returns whether nothing listens on the port.
    pub fn is_refused(&self) -> bool {
        matches!(
            self,
            Self::Unreachable {
                reason: UnreachableReason::Refused,
                ..
            }
        )
    }

    /// Returns whether the command was not run and may succeed soon: a node that has just booted restarts
    /// its SSH server after its user was created.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { reason, .. } => match reason {
                UnreachableReason::Refused
                | UnreachableReason::NoRoute
                | UnreachableReason::Handshake => true,
                UnreachableReason::NoAnswer
                | UnreachableReason::UnknownName
                | UnreachableReason::Lost => false,
            },
            Self::Denied { .. } => true,
            Self::NotInstalled
            | Self::HostKeyDiffers
            | Self::HostKeyUnknown
            | Self::OutputTooLarge { .. }
            | Self::TimedOut { .. }
            | Self::Failed { .. } => false,
        }
    }

    /// Returns it as an error of a port.
    pub fn to_port_error(&self, doing: &str) -> PortError {
        let (class, hint) = match self {
            Self::NotInstalled => (ErrorClass::Refused, super::INSTALL),
            Self::Unreachable { sent, .. } => (ErrorClass::Unreachable { sent: *sent }, ""),
            Self::HostKeyUnknown => (ErrorClass::Refused, REBUILD),
            Self::HostKeyDiffers => (ErrorClass::Refused, OTHER_KEY),
            Self::OutputTooLarge { .. } => (ErrorClass::Refused, ""),
            // A node that has just booted may not have created its user yet.
            Self::Denied { .. } => (ErrorClass::Unreachable { sent: Sent::No }, LET_IN),
            Self::TimedOut { .. } | Self::Failed { .. } => {
                (ErrorClass::Unreachable { sent: Sent::Maybe }, "")
            }
        };
        PortError {
            class,
            next: match self {
                Self::HostKeyUnknown => NextAction::NewPlan,
                _ => NextAction::Repeat,
            },
            ..PortError::refused(doing, self.to_string(), hint)
        }
    }
}

/// Returns the start of the first line from which on the text is chosen by the server.
fn server_text_start(log: &str) -> usize {
    let mut at = 0;
    for line in log.split_inclusive('\n') {
        if THEIRS.iter().any(|words| line.starts_with(words)) {
            break;
        }
        at += line.len();
    }
    at
}

fn is_changed(line: &&str) -> bool {
    let text = line.trim_matches(['@', ' ']);
    text.starts_with("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED")
}

fn is_unknown(line: &&str) -> bool {
    line.starts_with("No ") && line.contains(" host key is known for ")
}

/// Such as `ops@192.0.2.7: Permission denied (publickey).`.
fn is_denied(line: &&str) -> bool {
    let parts = line.split_once(": ");
    parts.is_some_and(|(user, rest)| {
        user.contains('@') && !user.contains(' ') && rest.starts_with("Permission denied (")
    })
}

/// Returns the last line that is not empty.
fn last_line(log: &str) -> Option<ForeignText> {
    let mut lines = log.lines().rev().map(str::trim);
    let line = lines.find(|line| !line.is_empty())?;
    Some(line.trim_end_matches('.').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_errors_are_classified() {
        let judged = |log: &str| SshError::from_log(log).expect("there is a message");
        let changed = "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@\n\
                       Host key verification failed.\r\n";
        assert!(matches!(judged(changed), SshError::HostKeyDiffers));
        let unknown = "No ED25519 host key is known for u and you have requested strict checking.\r\n\
                       Host key verification failed.\r\n";
        assert!(matches!(judged(unknown), SshError::HostKeyUnknown));
        let denied = "ops@10.0.0.7: Permission denied (publickey).\r\n";
        assert!(matches!(judged(denied), SshError::Denied { .. }));
        let refused = "ssh: connect to host 10.0.0.7 port 22: Connection refused\r\n";
        let refused = judged(refused);
        assert!(matches!(
            &refused,
            SshError::Unreachable { sent: Sent::No, .. }
        ));
        assert!(refused.to_string().ends_with("port 22: Connection refused"));
        assert!(refused.is_transient());
        let lost = "client_loop: send disconnect: Broken pipe\r\n";
        assert!(matches!(
            judged(lost),
            SshError::Unreachable {
                sent: Sent::Maybe,
                ..
            }
        ));
        assert!(matches!(
            judged("Bad configuration option: x\n"),
            SshError::Failed { .. }
        ));
    }

    #[test]
    fn each_reason_is_classified_once_and_decides_about_another_try() {
        use UnreachableReason::{Handshake, Lost, NoAnswer, NoRoute, Refused, UnknownName};
        let start = "ssh: connect to host 10.0.0.7 port 22:";
        for (log, expected, is_transient) in [
            (format!("{start} Connection refused\r\n"), Refused, true),
            (format!("{start} No route to host\r\n"), NoRoute, true),
            (format!("{start} Connection timed out\r\n"), NoAnswer, false),
            (
                "Connection timed out during banner exchange\r\n".to_owned(),
                NoAnswer,
                false,
            ),
            (
                "ssh: Could not resolve hostname x: Name or service not known\r\n".to_owned(),
                UnknownName,
                false,
            ),
            (
                "kex_exchange_identification: Connection closed by remote host\r\n".to_owned(),
                Handshake,
                true,
            ),
            // Not by the port: the connection exists.
            ("Session open refused by peer\r\n".to_owned(), Lost, false),
        ] {
            let judged = SshError::from_log(&log).expect("there is a message");
            let SshError::Unreachable { reason, .. } = &judged else {
                panic!("{log}: {judged:?}");
            };
            assert_eq!(*reason, expected, "{log}");
            assert_eq!(judged.is_transient(), is_transient, "{log}");
        }
    }

    #[test]
    fn text_from_the_server_does_not_affect_classification() {
        let start = "Received disconnect from 10.0.0.7 port 22:2: ";
        for words in [
            "Host key verification failed.",
            "Connection refused",
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            "Permission denied (publickey).",
            "bye\nHost key verification failed.",
        ] {
            let log = format!("{start}{words}\r\nDisconnected from 10.0.0.7 port 22\r\n");
            let judged = SshError::from_log(&log).expect("there is a message");
            let SshError::Unreachable { message, sent, .. } = judged else {
                panic!("{words}: {judged:?}");
            };
            assert_eq!(sent, Sent::Maybe);
            assert!(message.starts_with(start), "{message}");
        }
        let log = format!("{start}Too many authentication failures\r\n");
        let denied = SshError::from_log(&log).expect("there is a message");
        assert!(matches!(denied, SshError::Denied { .. }));
        // Nor one that greets in another way, or offers what we do not have.
        let words = [
            "Host key verification failed.",
            "No x host key is known for y",
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            "ops@10.0.0.7: Permission denied (publickey).",
        ];
        for words in words {
            let greeted = format!("Bad remote protocol version identification: 'SSH-{words}'\r\n");
            let judged = SshError::from_log(&greeted).expect("there is a message");
            let is_right = matches!(judged, SshError::Unreachable { sent: Sent::No, .. });
            assert!(is_right, "{words}: {judged:?}");
            let start = "Unable to negotiate with 10.0.0.7 port 22: no matching cipher found.";
            for words in [words.to_owned(), format!("x\n{words}")] {
                let offered = format!("{start} Their offer: {words}\r\n");
                let judged = SshError::from_log(&offered).expect("there is a message");
                let SshError::Failed { message } = judged else {
                    panic!("{words}: {judged:?}");
                };
                assert!(message.starts_with(start), "{message}");
            }
        }
        // What ssh itself found out before still counts.
        let log = format!("Host key verification failed.\r\n{start}bye\r\n");
        let differs = SshError::from_log(&log).expect("there is a message");
        assert!(matches!(differs, SshError::HostKeyDiffers));
    }

    #[test]
    fn a_host_key_that_differs_has_a_hint_with_the_file_of_the_pinned_one() {
        let hint = SshError::HostKeyDiffers.to_port_error("configure").hint;
        assert!(hint.contains("`ssh/known_hosts`"), "{hint}");
    }

    #[test]
    fn control_characters_in_banners_are_escaped() {
        let log = "ops@10.0.0.7: \u{1b}[2J\u{9b}2J\u{202e} Permission denied (publickey).\r\n";
        let error = SshError::from_log(log).expect("there is a message");
        let escaped = r"ops@10.0.0.7: \x1b[2J\u{9b}2J\u{202e} Permission denied (publickey)";
        assert_eq!(error.to_string(), escaped);
        assert_eq!(error.to_port_error("reach").detail, escaped);
    }

    #[test]
    fn a_command_that_exits_with_255_is_not_an_ssh_error() {
        assert!(SshError::from_log("").is_none());
        assert!(SshError::from_log("\r\n").is_none());
    }
}
