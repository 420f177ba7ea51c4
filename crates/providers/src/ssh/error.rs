//! Classifies failures of `ssh` by its own log, which is separate from the output of the command.

use homestak_core::foreign::ForeignText;
use homestak_engine::planning::REBUILD;
use homestak_engine::ports::{ErrorClass, NextAction, PortError, Sent};

/// Why a command could not be run on a node.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// OpenSSH's client is not there.
    #[error("ssh is not installed")]
    NotInstalled,
    /// The node is unreachable, or the connection was lost.
    #[error("{said}")]
    Unreachable {
        /// What `ssh` said.
        said: ForeignText,
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
    #[error("{said}")]
    Denied {
        /// What `ssh` said.
        said: ForeignText,
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
    #[error("{said}")]
    Failed {
        /// What `ssh` or the system said.
        said: ForeignText,
    },
}

/// What to do about a node that does not let us in.
const LET_IN: &str =
    "the node must accept the driver's SSH key; `homestak console NODE` works without SSH";

/// What `ssh` says when it did not get as far as a connection.
const NOT_CONNECTED: &[&str] = &[
    "Connection refused",
    "Connection timed out",
    "No route to host",
    "Network is unreachable",
    "Could not resolve hostname",
    "kex_exchange_identification",
    "Bad remote protocol version",
    "banner exchange",
    "Operation timed out",
];

/// What it says when there was one that is lost.
const LOST: &[&str] = &[
    "Connection closed by",
    "Connection reset by",
    "Broken pipe",
    "not responding",
    "mux_client",
    "Session open refused",
];

/// How a line begins that tells why the server ended the connection, in its own words.
const DISCONNECTED: &str = "Received disconnect from ";
/// How lines begin after which the server chooses the words, line breaks included.
const THEIRS: &[&str] = &[DISCONNECTED, "Unable to negotiate with ", "channel "];
/// What is followed by words of the server up to the end of the line.
const GREETED: &str = "identification: '";
/// What a server says that was offered too many keys.
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
        let has = |words: &[&str]| {
            let in_line = |line: &&str| words.iter().any(|word| line.contains(word));
            lines.iter().any(in_line)
        };
        let said = match theirs.lines().next() {
            Some(line) => line.trim().into(),
            None => last_line(log)?,
        };
        // First the key: whatever else follows from it.
        let error = if lines.iter().any(is_changed) {
            Self::HostKeyDiffers
        } else if lines.iter().any(is_unknown) {
            Self::HostKeyUnknown
        } else if begins("Host key verification failed") {
            Self::HostKeyDiffers
        } else if lines.iter().any(is_denied)
            || theirs.starts_with(DISCONNECTED) && theirs.contains(TOO_MANY)
        {
            Self::Denied { said }
        } else if has(NOT_CONNECTED) {
            let sent = Sent::No;
            Self::Unreachable { said, sent }
        } else if has(LOST) || theirs.starts_with(DISCONNECTED) {
            let sent = Sent::Maybe;
            Self::Unreachable { said, sent }
        } else {
            Self::Failed { said }
        };
        Some(error)
    }

    pub(super) fn from_spawn(error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound {
            return Self::NotInstalled;
        }
        let said = format!("cannot start ssh: {error}").into();
        Self::Failed { said }
    }

    /// Returns whether the command was not run and may succeed soon: a node that has just booted restarts
    /// its SSH server after its user was created.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { said, sent } => {
                *sent == Sent::No && !said.contains("timed out") && !said.contains("resolve")
            }
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
            Self::HostKeyDiffers | Self::OutputTooLarge { .. } => (ErrorClass::Refused, ""),
            // One that has just booted may not have made its user yet.
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

/// Returns where the line begins from which on the server chooses the words.
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

/// Returns the last line that says something.
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
        let judged = |log: &str| SshError::from_log(log).expect("something was said");
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
            let judged = SshError::from_log(&log).expect("something was said");
            let SshError::Unreachable { said, sent } = judged else {
                panic!("{words}: {judged:?}");
            };
            assert_eq!(sent, Sent::Maybe);
            assert!(said.starts_with(start), "{said}");
        }
        let log = format!("{start}Too many authentication failures\r\n");
        let denied = SshError::from_log(&log).expect("something was said");
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
            let judged = SshError::from_log(&greeted).expect("something was said");
            let is_right = matches!(judged, SshError::Unreachable { sent: Sent::No, .. });
            assert!(is_right, "{words}: {judged:?}");
            let start = "Unable to negotiate with 10.0.0.7 port 22: no matching cipher found.";
            for words in [words.to_owned(), format!("x\n{words}")] {
                let offered = format!("{start} Their offer: {words}\r\n");
                let judged = SshError::from_log(&offered).expect("something was said");
                let SshError::Failed { said } = judged else {
                    panic!("{words}: {judged:?}");
                };
                assert!(said.starts_with(start), "{said}");
            }
        }
        // What ssh itself found out before still counts.
        let log = format!("Host key verification failed.\r\n{start}bye\r\n");
        let differs = SshError::from_log(&log).expect("something was said");
        assert!(matches!(differs, SshError::HostKeyDiffers));
    }

    #[test]
    fn control_characters_in_banners_are_escaped() {
        let log = "ops@10.0.0.7: \u{1b}[2J\u{9b}2J\u{202e} Permission denied (publickey).\r\n";
        let error = SshError::from_log(log).expect("something was said");
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
