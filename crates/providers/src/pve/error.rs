//! Classifies errors of the API and of tasks, which Proxmox VE reports as free text.
//!
//! Messages that are not in the table are classified as refused, so that nothing is repeated by mistake.

use homestak_core::foreign::ForeignText;
use homestak_engine::ports::{ErrorClass, NextAction, PortError, Sent};
use serde_json::Value;

use super::role::role_of;

/// What was recognised in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The vmid is taken.
    AlreadyExists,
    /// A file with that name exists.
    FileExists,
    /// The guest runs already.
    AlreadyRunning,
    /// The guest does not run.
    NotRunning,
    /// The guest runs, and must not.
    StillRunning,
    /// There is no such guest on that host.
    NoConfig,
    /// There is no such volume.
    NoVolume,
    /// There is no such storage.
    NoStorage,
    /// There is no such host.
    NoHost,
    /// It is locked.
    Locked,
    /// A guest is incomplete, and nothing makes it any more.
    Incomplete,
    /// The configuration changed since it was read.
    DigestMismatch,
    /// The checksum of the file does not match.
    ChecksumMismatch,
    /// The cluster cannot decide anything.
    NoQuorum,
    /// The guest is protected from removal.
    Protected,
    /// The guest's agent does not answer.
    NoAgent,
    /// The guest did not shut down in time.
    ShutdownTimeout,
    /// A user stopped the task.
    Interrupted,
    /// The task was killed with its daemon; its result is unknown.
    TaskDied,
    /// There is no space left.
    Full,
    /// Only a login of root may do it, no token.
    OnlyRoot,
    /// Who we are was not accepted.
    Unauthenticated,
    /// A privilege is missing.
    Permission,
    /// Parameters were refused.
    BadParameter,
    /// That version cannot do it.
    NotImplemented,
    /// The other side's certificate is not the expected one.
    Certificate,
    /// The connection failed, or ended early.
    Connection,
    /// A task did not end in time.
    Stalled,
    /// The answer could not be parsed, or contradicts itself.
    InvalidResponse,
    /// Our own mistake.
    Bug,
    /// Something else.
    Other,
}

/// An error of the client, before it crosses the port.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct PveError {
    /// What can be done about it.
    pub class: ErrorClass,
    /// What was recognised.
    pub reason: Reason,
    /// The message of the other side.
    pub detail: ForeignText,
    /// The last lines of the task's log.
    pub log: Vec<ForeignText>,
    /// What the user can do next; may be empty.
    pub hint: String,
}

/// One row: all of these texts occur in the message, and this is what it means.
struct MessageRule(&'static [&'static str], Reason, ErrorClass, &'static str);

const MAYBE: ErrorClass = ErrorClass::Unreachable { sent: Sent::Maybe };

/// The first row that fits decides, so the narrow ones come first.
#[rustfmt::skip]
const TABLE: &[MessageRule] = &[
    MessageRule(&["can't lock file", "got timeout"], Reason::Locked, ErrorClass::Busy, ""),
    MessageRule(&["got lock request timeout"], Reason::Locked, ErrorClass::Busy, ""),
    MessageRule(&["-locked command timed out"], Reason::Locked, ErrorClass::Busy, "the storage is slow: run fewer copies at once, or use linked clones"),
    MessageRule(&["trying to acquire lock"], Reason::Locked, ErrorClass::Busy, ""),
    MessageRule(&["is locked ("], Reason::Locked, ErrorClass::Busy, ""),
    MessageRule(&["no quorum"], Reason::NoQuorum, ErrorClass::Busy, "restore the quorum of the cluster; `pvecm status` shows which hosts vote"),
    MessageRule(&["file change by other user"], Reason::DigestMismatch, ErrorClass::Busy, ""),
    MessageRule(&["detected modified configuration"], Reason::DigestMismatch, ErrorClass::Busy, ""),
    MessageRule(&["checksum mismatch: got"], Reason::ChecksumMismatch, ErrorClass::Refused, "the file does not match its checksum: download it again, or correct the checksum"),
    MessageRule(&["refusing to override existing file"], Reason::FileExists, ErrorClass::Refused, ""),
    MessageRule(&["config file already exists"], Reason::AlreadyExists, ErrorClass::Refused, ""),
    MessageRule(&["already exists on node"], Reason::AlreadyExists, ErrorClass::Refused, ""),
    MessageRule(&["already running"], Reason::AlreadyRunning, ErrorClass::Refused, ""),
    MessageRule(&["guest agent is not running"], Reason::NoAgent, ErrorClass::Busy, ""),
    MessageRule(&["No QEMU guest agent configured"], Reason::NoAgent, ErrorClass::Refused, ""),
    MessageRule(&["is running - destroy failed"], Reason::StillRunning, ErrorClass::Busy, ""),
    MessageRule(&["container is running"], Reason::StillRunning, ErrorClass::Busy, ""),
    MessageRule(&["not running"], Reason::NotRunning, ErrorClass::Refused, ""),
    MessageRule(&["protection mode enabled"], Reason::Protected, ErrorClass::Refused, "remove the guest's protection first (`--protection 0`) if it is to be deleted"),
    MessageRule(&["onfiguration file", "does not exist"], Reason::NoConfig, ErrorClass::Missing, ""),
    MessageRule(&["unable to find configuration file for"], Reason::NoConfig, ErrorClass::Missing, ""),
    MessageRule(&["volume '", "does not exist"], Reason::NoVolume, ErrorClass::Missing, ""),
    MessageRule(&["failed to stat '"], Reason::NoVolume, ErrorClass::Missing, ""),
    MessageRule(&["can't open '", "No such file"], Reason::NoVolume, ErrorClass::Missing, ""),
    MessageRule(&["storage '", "does not exist"], Reason::NoStorage, ErrorClass::Missing, ""),
    MessageRule(&["no such storage"], Reason::NoStorage, ErrorClass::Missing, ""),
    MessageRule(&["is not available on node"], Reason::NoStorage, ErrorClass::Missing, ""),
    MessageRule(&["hostname lookup '", "failed"], Reason::NoHost, ErrorClass::Missing, ""),
    MessageRule(&["no such cluster node"], Reason::NoHost, ErrorClass::Missing, ""),
    MessageRule(&["quit/powerdown failed"], Reason::ShutdownTimeout, ErrorClass::Busy, ""),
    MessageRule(&["interrupted by signal"], Reason::Interrupted, ErrorClass::Busy, "someone stopped the task"),
    // It was killed with its daemon; only the guest or file shows what it did until then.
    MessageRule(&["unexpected status"], Reason::TaskDied, MAYBE, "the task ended without a status, so its result is unknown: check its target, then try again"),
    MessageRule(&["received interrupt"], Reason::Interrupted, ErrorClass::Busy, "someone stopped the task"),
    MessageRule(&["No space left on device"], Reason::Full, ErrorClass::Refused, "free space in the storage, or choose another"),
    MessageRule(&["not enough space"], Reason::Full, ErrorClass::Refused, "free space in the storage, or choose another"),
    MessageRule(&["nly root"], Reason::OnlyRoot, ErrorClass::Refused, "API tokens may not do this, not even those of root"),
    MessageRule(&["invalid PVE ticket"], Reason::Unauthenticated, ErrorClass::Refused, ""),
    MessageRule(&["got timeout"], Reason::Locked, ErrorClass::Busy, ""),
];

impl PveError {
    /// Makes one.
    pub fn new(class: ErrorClass, reason: Reason, detail: impl Into<ForeignText>) -> Self {
        Self {
            class,
            reason,
            detail: detail.into(),
            log: Vec::new(),
            hint: String::new(),
        }
    }

    /// Makes one for an answer that creates no sense.
    pub fn invalid_response(detail: impl Into<ForeignText>) -> Self {
        Self::new(ErrorClass::Broken, Reason::InvalidResponse, detail)
    }

    /// Makes one for our own mistake.
    pub fn bug(detail: impl Into<ForeignText>) -> Self {
        Self::new(ErrorClass::Bug, Reason::Bug, detail)
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Adds the end of a task's log.
    #[must_use]
    pub fn with_log(mut self, log: Vec<impl Into<ForeignText>>) -> Self {
        self.log = log.into_iter().map(Into::into).collect();
        self
    }

    /// Names the privileges that are needed, where a refusal does not name what is missing.
    #[must_use]
    pub(super) fn with_required_privileges(self, privileges: &str) -> Self {
        if self.reason != Reason::Permission || parse_forbidden(&self.detail).is_some() {
            return self;
        }
        self.with_hint(format!(
            "grant {privileges} to the token and to its user; a token has at most the privileges of its user"
        ))
    }

    /// Returns whether the host may have executed the request.
    pub fn may_have_acted(&self) -> bool {
        matches!(
            self.class,
            ErrorClass::Broken | ErrorClass::Unreachable { sent: Sent::Maybe }
        )
    }

    /// Returns whether asking a question again may help.
    pub fn is_transient(&self) -> bool {
        matches!(self.class, ErrorClass::Unreachable { .. })
    }

    /// Turns it into what the engine sees.
    pub fn into_port_error(self, doing: impl Into<String>) -> PortError {
        PortError {
            class: self.class,
            doing: doing.into(),
            detail: self.detail,
            log: self.log,
            hint: self.hint,
            next: if self.reason == Reason::Certificate {
                NextAction::Trust
            } else {
                NextAction::default()
            },
        }
    }
}

/// Classifies a message in prose: of an answer, or the last words of a task.
pub fn classify_text(text: &str) -> PveError {
    let text = text.trim();
    let row = TABLE
        .iter()
        .find(|MessageRule(needles, ..)| needles.iter().all(|needle| text.contains(needle)));
    match row {
        Some(MessageRule(_, reason, class, hint)) => {
            PveError::new(*class, *reason, text).with_hint(*hint)
        }
        None => PveError::new(ErrorClass::Refused, Reason::Other, text),
    }
}

/// Classifies an answer that is not a success.
pub fn classify(status: u16, phrase: &str, body: &[u8]) -> PveError {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let message = json
        .as_ref()
        .and_then(|json| json.get("message"))
        .and_then(Value::as_str)
        .map(str::trim)
        .filter(|message| !message.is_empty());
    let text = message.unwrap_or(phrase.trim());
    match status {
        400 => bad_parameters(text, json.as_ref()),
        401 => PveError::new(
            ErrorClass::Refused,
            Reason::Unauthenticated,
            or(text, "not authenticated"),
        )
        .with_hint("check the token: `user@realm!name=secret`, not expired, user enabled"),
        403 => forbidden(text),
        404 => PveError::new(ErrorClass::Missing, Reason::Other, or(text, "not found")),
        408 | 502 | 504 | 595..=599 => PveError::new(
            MAYBE,
            Reason::Connection,
            format!("{status} {}", or(text, "the host did not answer")),
        ),
        429 | 503 => PveError::new(ErrorClass::Busy, Reason::Other, or(text, "overloaded")),
        501 => PveError::new(
            ErrorClass::Refused,
            Reason::NotImplemented,
            or(text, "not implemented"),
        )
        .with_hint("a newer version of Proxmox VE is required"),
        500 if text.is_empty() => PveError::invalid_response("status 500 without a reason"),
        500 => classify_text(text),
        _ => {
            PveError::invalid_response(format!("status {status} {}", or(text, "without a reason")))
        }
    }
}

fn or<'a>(text: &'a str, instead: &'a str) -> &'a str {
    if text.is_empty() { instead } else { text }
}

/// Names every parameter that was refused, not only the first.
fn bad_parameters(text: &str, json: Option<&Value>) -> PveError {
    let errors = json
        .and_then(|json| json.get("errors"))
        .and_then(Value::as_object);
    let Some(errors) = errors.filter(|errors| !errors.is_empty()) else {
        // Some refusals of state come as 400 too, such as a vmid in use.
        let mut error = classify_text(or(text, "bad request"));
        if error.reason == Reason::Other {
            error.reason = Reason::BadParameter;
        }
        return error;
    };
    let mut each: Vec<String> = errors
        .iter()
        .map(|(name, why)| {
            let why = why.as_str().unwrap_or_default();
            let line = why.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("{name}: {line}")
        })
        .collect();
    each.sort();
    let exists = each.iter().any(|line| line.contains("already exists"));
    let reason = if exists {
        Reason::AlreadyExists
    } else {
        Reason::BadParameter
    };
    PveError::new(ErrorClass::Refused, reason, each.join("; "))
}

/// The path and privileges that a refusal names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPrivilege {
    /// Where, such as `/vms/350`.
    pub path: String,
    /// Any of these would do.
    pub any_of: Vec<String>,
}

/// Reads `Permission check failed (/vms/350, VM.Config.Options)`.
pub fn parse_forbidden(text: &str) -> Option<MissingPrivilege> {
    let inside = text.split_once('(')?.1.rsplit_once(')')?.0;
    let (path, privileges) = inside.split_once(',')?;
    let path = path.trim();
    let any_of: Vec<String> = privileges
        .split(['|', ','])
        .map(|privilege| privilege.trim().to_owned())
        .filter(|privilege| !privilege.is_empty())
        .collect();
    (path.starts_with('/') && !any_of.is_empty()).then(|| MissingPrivilege {
        path: path.to_owned(),
        any_of,
    })
}

fn forbidden(text: &str) -> PveError {
    let text = or(text, "permission denied");
    if text.contains("root@pam") || text.contains("nly root") {
        return PveError::new(ErrorClass::Refused, Reason::OnlyRoot, text)
            .with_hint("only a login as root@pam may do this, no API token");
    }
    let hint = match parse_forbidden(text) {
        Some(MissingPrivilege { path, any_of }) => {
            let first = any_of.first().map_or("", String::as_str);
            format!(
                "grant {} on {path} to the token and to its user (a token never has more than its \
                 user): `pveum role modify {} --append 1 --privs {first}`",
                any_of.join(" or "),
                role_of(first)
            )
        }
        None => "grant the role to the token and to its user; \
                 a token has at most the privileges of its user"
            .to_owned(),
    };
    PveError::new(ErrorClass::Refused, Reason::Permission, text).with_hint(hint)
}

#[cfg(test)]
#[path = "error/tests.rs"]
mod tests;
