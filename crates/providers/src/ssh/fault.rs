//! Why a command could not be run on a node, told from what `ssh` said.
//!
//! In: the words of `ssh` itself, apart from those of the command. Out: [`SshError`].
//! Never: a guess from what the command printed: that goes elsewhere.

use homestak_core::foreign::ForeignText;
use homestak_engine::ports::{Class, Next, PortError, Sent};

/// Why a command could not be run on a node.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// OpenSSH's client is not there.
    #[error("ssh is not installed")]
    NotInstalled,
    /// Nobody answers, or not any more.
    #[error("{said}")]
    Unreachable {
        /// What `ssh` said.
        said: ForeignText,
        /// Whether the command may have been run.
        sent: Sent,
    },
    /// Whoever answers has another key than the one that is pinned.
    #[error("whoever answers has another host key than the one that is pinned")]
    HostKeyDiffers,
    /// No key is pinned.
    #[error("its host key is not known here")]
    HostKeyUnknown,
    /// It is the right machine, and does not let us in.
    #[error("{said}")]
    Denied {
        /// What `ssh` said.
        said: ForeignText,
    },
    /// It printed more than is read.
    #[error("it printed more than {mebibytes} MiB, which was not read to the end")]
    TooMuch {
        /// How much is read at most.
        mebibytes: usize,
    },
    /// It was reached, and did not answer in time.
    #[error("it did not answer completely within {seconds} s")]
    Late {
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

/// What to do about a node of which the state directory does not know enough.
pub const REBUILD: &str = "when the state directory was lost, `homestak state rebuild` records the \
                           nodes and lists what lets this driver in; then apply again";
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

/// How a line begins that ends with words of the server.
const DISCONNECTED: &str = "Received disconnect from ";
/// What a server says then that was offered too many keys.
const TOO_MANY: &str = "Too many authentication failures";

impl SshError {
    /// Judges the words of an `ssh` that ended with 255; `None` when it said nothing, so that 255
    /// is the command's own code.
    pub(super) fn judge(log: &str) -> Option<Self> {
        // From there on it is the server that chooses the words, line breaks included.
        let (log, theirs) = match log.find(DISCONNECTED) {
            Some(at) if at == 0 || log[..at].ends_with('\n') => log.split_at(at),
            Some(_) | None => (log, ""),
        };
        let has = |words: &[&str]| words.iter().any(|word| log.contains(word));
        let said = match theirs.lines().next() {
            Some(line) => line.trim().into(),
            None => last_words(log)?,
        };
        // First the key: whatever else follows from it.
        let error = if has(&["IDENTIFICATION HAS CHANGED", "host key has changed"]) {
            Self::HostKeyDiffers
        } else if has(&["host key is known for"]) {
            Self::HostKeyUnknown
        } else if has(&["Host key verification failed"]) {
            Self::HostKeyDiffers
        } else if has(&["Permission denied ("]) || theirs.contains(TOO_MANY) {
            Self::Denied { said }
        } else if has(NOT_CONNECTED) {
            let sent = Sent::No;
            Self::Unreachable { said, sent }
        } else if has(LOST) || !theirs.is_empty() {
            let sent = Sent::Maybe;
            Self::Unreachable { said, sent }
        } else {
            Self::Failed { said }
        };
        Some(error)
    }

    pub(super) fn of_start(error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound {
            return Self::NotInstalled;
        }
        let said = format!("ssh cannot be started: {error}").into();
        Self::Failed { said }
    }

    /// Tells whether the command was not run, and may be in a moment: a node that has just booted
    /// starts its server anew once it has made its user.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { said, sent } => {
                *sent == Sent::No && !said.contains("timed out") && !said.contains("resolve")
            }
            Self::Denied { .. } => true,
            Self::NotInstalled
            | Self::HostKeyDiffers
            | Self::HostKeyUnknown
            | Self::TooMuch { .. }
            | Self::Late { .. }
            | Self::Failed { .. } => false,
        }
    }

    /// Returns it as an error of a port.
    pub fn at_port(&self, doing: &str) -> PortError {
        let (class, hint) = match self {
            Self::NotInstalled => (Class::Refused, super::INSTALL),
            Self::Unreachable { sent, .. } => (Class::Unreachable { sent: *sent }, ""),
            Self::HostKeyUnknown => (Class::Refused, REBUILD),
            Self::HostKeyDiffers | Self::TooMuch { .. } => (Class::Refused, ""),
            // One that has just booted may not have made its user yet.
            Self::Denied { .. } => (Class::Unreachable { sent: Sent::No }, LET_IN),
            Self::Late { .. } | Self::Failed { .. } => {
                (Class::Unreachable { sent: Sent::Maybe }, "")
            }
        };
        PortError {
            class,
            next: match self {
                Self::HostKeyUnknown => Next::NewPlan,
                _ => Next::Repeat,
            },
            ..PortError::refused(doing, self.to_string(), hint)
        }
    }
}

/// Returns the last line that says something.
fn last_words(log: &str) -> Option<ForeignText> {
    let mut lines = log.lines().rev().map(str::trim);
    let line = lines.find(|line| !line.is_empty())?;
    Some(line.trim_end_matches('.').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_is_told_apart() {
        let judged = |log: &str| SshError::judge(log).expect("something was said");
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
    fn a_server_that_disconnects_does_not_choose_what_is_made_of_it() {
        let start = "Received disconnect from 10.0.0.7 port 22:2: ";
        for words in [
            "Host key verification failed.",
            "Connection refused",
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            "Permission denied (publickey).",
            "bye\nHost key verification failed.",
        ] {
            let log = format!("{start}{words}\r\nDisconnected from 10.0.0.7 port 22\r\n");
            let judged = SshError::judge(&log).expect("something was said");
            let SshError::Unreachable { said, sent } = judged else {
                panic!("{words}: {judged:?}");
            };
            assert_eq!(sent, Sent::Maybe);
            assert!(said.starts_with(start), "{said}");
        }
        let log = format!("{start}Too many authentication failures\r\n");
        let denied = SshError::judge(&log).expect("something was said");
        assert!(matches!(denied, SshError::Denied { .. }));
        // What ssh itself found out before still counts.
        let log = format!("Host key verification failed.\r\n{start}bye\r\n");
        let differs = SshError::judge(&log).expect("something was said");
        assert!(matches!(differs, SshError::HostKeyDiffers));
    }

    #[test]
    fn a_banner_that_a_terminal_would_obey_is_escaped() {
        let log = "ops@10.0.0.7: \u{1b}[2J\u{9b}2J\u{202e} Permission denied (publickey).\r\n";
        let error = SshError::judge(log).expect("something was said");
        let escaped = r"ops@10.0.0.7: \x1b[2J\u{9b}2J\u{202e} Permission denied (publickey)";
        assert_eq!(error.to_string(), escaped);
        assert_eq!(error.at_port("reach").detail, escaped);
    }

    #[test]
    fn a_command_that_ends_with_255_is_no_fault_of_ssh() {
        assert!(SshError::judge("").is_none());
        assert!(SshError::judge("\r\n").is_none());
    }
}
