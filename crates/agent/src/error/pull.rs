//! Why this machine could not obtain its spec from a server of its site.

use homestak_api::certificate::CertificateError;
use homestak_api::signature::SignatureError;

use super::FetchError;

/// Why a pass failed before the spec was applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error("this machine is not enrolled at a server")]
    NotEnrolled,
    #[error("read the enrolment")]
    ReadEnrolment(#[source] std::io::Error),
    /// The text is not quoted, because it contains the token.
    #[error("the enrolment is invalid (line {line}, column {column})")]
    WrongEnrolment { line: usize, column: usize },
    #[error("the enrolment has {0}")]
    IncompleteEnrolment(&'static str),
    #[error("`{path}` is damaged")]
    Damaged { path: String },
    #[error("generate or use the key of this machine")]
    Key(#[source] CertificateError),
    /// The token was refused. Another attempt with it changes nothing.
    #[error(transparent)]
    Denied(FetchError),
    /// The certificate was refused, and there is no token. Nothing that this machine does changes that.
    #[error(transparent)]
    CertificateDenied(FetchError),
    #[error("the spec of the server was refused")]
    Statement {
        #[source]
        why: StatementError,
        /// Whether no spec was accepted before.
        is_first: bool,
    },
    #[error("the published agent was rejected")]
    Update(#[source] UpdateError),
    #[error("no server was reached for {within} s after the changes")]
    CutOff { within: u64 },
    #[error("no server answers; the reverted changes are applied again only when one does")]
    Postponed,
}

/// Why a published agent is not installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("it is for {0}")]
    Architecture(String),
    #[error("it is too large")]
    TooLarge,
    #[error("its generation {found} is not later than {last}, that of this program")]
    Older { found: u64, last: u64 },
    #[error("its version {0} is older than that of this program")]
    OlderVersion(String),
    #[error("its checksum or size is not the signed one")]
    Altered,
    #[error("it does not work on this machine: {0}")]
    Unusable(String),
}

/// Why a spec is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StatementError {
    #[error("it has no signed statement")]
    Missing,
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("it is signed for another site")]
    Site,
    #[error("it is signed for another node")]
    Node,
    #[error("it is signed for another guest")]
    Guest,
    #[error("its generation {found} is older than {last}, which was accepted before")]
    Older { found: u64, last: u64 },
    #[error("generation {0} was already used for a different spec")]
    Changed(u64),
    #[error("it was signed before the enrolment of this machine")]
    BeforeEnrolment,
}

impl PullError {
    /// Returns whether the error is permanent: a retry cannot succeed.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::NotEnrolled
            | Self::WrongEnrolment { .. }
            | Self::IncompleteEnrolment(_)
            | Self::Damaged { .. }
            | Self::Denied(_)
            | Self::CertificateDenied(_) => true,
            // A node that has an earlier spec continues with that one.
            Self::Statement { is_first, .. } => *is_first,
            Self::ReadEnrolment(_)
            | Self::Key(_)
            | Self::Update(_)
            | Self::CutOff { .. }
            | Self::Postponed => false,
        }
    }

    /// Returns the exit code, and the error code for programs.
    pub(super) fn codes(&self) -> (u8, &'static str) {
        let code = if self.is_permanent() { 3 } else { 2 };
        let word = match self {
            Self::NotEnrolled => "not_enrolled",
            Self::ReadEnrolment(_) | Self::WrongEnrolment { .. } | Self::IncompleteEnrolment(_) => {
                "enrolment"
            }
            Self::Damaged { .. } | Self::Key(_) => "registration",
            Self::Denied(error) | Self::CertificateDenied(error) => error.codes().1,
            Self::Statement { .. } => "signature",
            Self::Update(_) => "update",
            Self::CutOff { .. } => "reverted",
            Self::Postponed => "postponed",
        };
        (code, word)
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotEnrolled
            | Self::ReadEnrolment(_)
            | Self::WrongEnrolment { .. }
            | Self::IncompleteEnrolment(_)
            | Self::Damaged { .. }
            | Self::Key(_) => "run `homestak manifest apply` on the driver again".to_owned(),
            Self::Denied(error) if !error.is_about_credentials() => return error.hint(),
            Self::Denied(_) => {
                "the token was used, revoked or has expired, or is not for this machine: run \
                 `homestak node enrol NODE` on the driver"
                    .to_owned()
            }
            Self::CertificateDenied(_) => {
                "the certificate of this machine was revoked, or the server does not know it: run \
                 `homestak node enrol NODE` on the driver if the node is to continue"
                    .to_owned()
            }
            Self::Statement { .. } => {
                "if the driver lost its keys or restored a backup, run `homestak node enrol NODE` and \
                 `homestak manifest apply` there; otherwise check who controls the server"
                    .to_owned()
            }
            Self::Update(_) => return None,
            Self::CutOff { .. } => "correct the spec, and apply it again".to_owned(),
            Self::Postponed => "start the server".to_owned(),
        })
    }
}
