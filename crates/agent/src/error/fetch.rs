//! Why a spec could not be fetched, with exit code and hint. Messages contain neither the token nor long
//! texts from a server.

use homestak_api::trust::TrustError;

/// Why a spec could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("no server is configured")]
    NoServer,
    #[error("no provisioning token")]
    NoToken,
    #[error("the provisioning token is not a single word")]
    WrongToken,
    #[error("read the provisioning token")]
    TokenFile(#[source] std::io::Error),
    #[error("storing a spec requires root")]
    NotRoot,
    #[error("`{0}` is not a valid machine name")]
    Identity(String),
    #[error("`{0}` is not a valid server URL")]
    Address(String),
    #[error("the fingerprint is not a SHA-256 fingerprint")]
    Fingerprint,
    #[error("read the CA certificate")]
    AuthorityFile(#[source] std::io::Error),
    #[error("trust the server")]
    Trust(#[source] TrustError),
    #[error("set up the client: {0}")]
    Setup(String),
    #[error("the certificate of {server} is not trusted: {why}")]
    Certificate { server: String, why: String },
    #[error("{server} is unreachable{}: {why}", times(*.attempts))]
    Unreachable {
        server: String,
        attempts: u32,
        why: String,
    },
    #[error("{server} refused with {status}{}", server_message(.code, .message))]
    Refused {
        server: String,
        status: u16,
        code: String,
        message: String,
    },
    #[error("the server's response is not a spec: {}", brief(&.0.join("; ")))]
    NoSpec(Vec<String>),
    #[error("the server's response is larger than {}", size(*.0))]
    TooLarge(usize),
    #[error("the server sent the spec of `{}`, but this machine is `{identity}`", brief(.name))]
    WrongIdentity { name: String, identity: String },
}

fn size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        n => format!("{n} MiB"),
    }
}

fn times(attempts: u32) -> String {
    match attempts {
        1 => String::new(),
        n => format!(" after {n} attempts"),
    }
}

fn server_message(code: &str, message: &str) -> String {
    let words = format!("{code} {message}");
    match words.trim() {
        "" => String::new(),
        words => format!(": {}", brief(words)),
    }
}

/// Limits the text of a server to one short line.
fn brief(words: &str) -> String {
    let plain = words.chars().map(|one| match one.is_control() {
        true => ' ',
        false => one,
    });
    plain.take(300).collect()
}

impl FetchError {
    /// Returns whether another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            _ => false,
        }
    }

    /// Returns whether a server refused the request, and would refuse it again.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            // 408 and 429: the server is too busy.
            Self::Refused { status, .. } => {
                (400..500).contains(status) && !matches!(status, 408 | 429)
            }
            _ => false,
        }
    }

    /// Returns whether a server of the site answered.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Returns whether the server rejected the credentials of this machine.
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 401 | 403,
                ..
            }
        )
    }

    /// Like [`is_unauthorized`](Self::is_unauthorized), but also for status 400.
    pub(super) fn is_about_credentials(&self) -> bool {
        matches!(self, Self::Refused { status: 400, .. }) || self.is_unauthorized()
    }

    /// Sets the number of attempts.
    pub(crate) fn after(self, attempts: u32) -> Self {
        match self {
            Self::Unreachable { server, why, .. } => Self::Unreachable {
                server,
                attempts,
                why,
            },
            other => other,
        }
    }

    /// Returns the exit code, and the error code for programs.
    pub(super) fn codes(&self) -> (u8, &'static str) {
        match self {
            Self::NoServer | Self::Identity(_) | Self::Address(_) => (1, "missing"),
            Self::NoToken | Self::WrongToken | Self::TokenFile(_) => (1, "token"),
            Self::NotRoot => (1, "not_root"),
            Self::Fingerprint | Self::AuthorityFile(_) | Self::Trust(_) | Self::Setup(_) => {
                (1, "trust")
            }
            Self::Certificate { .. } => (2, "certificate"),
            Self::Unreachable { .. } => (2, "unreachable"),
            Self::Refused { status, .. } => match status {
                400 | 401 => (1, "refused_by_server"),
                422 => (3, "refused_by_server"),
                _ => (2, "refused_by_server"),
            },
            Self::NoSpec(_) | Self::TooLarge(_) | Self::WrongIdentity { .. } => (2, "wrong_answer"),
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(
            match self {
                Self::NoServer => "use --server https://HOST:44443, or set HOMESTAK_SERVER",
                Self::NoToken | Self::WrongToken | Self::TokenFile(_) => {
                    "set HOMESTAK_TOKEN, or use --token-file; create one with `homestak token mint` on the \
                     driver"
                }
                Self::NotRoot => {
                    "use `sudo --preserve-env=HOMESTAK_SERVER,HOMESTAK_TOKEN`, or write it to a file \
                     with --output"
                }
                Self::Identity(_) => "use --identity NAME",
                Self::Address(_) => "use the form https://HOST:44443",
                Self::Fingerprint => "use 64 hexadecimal digits, with or without colons",
                Self::Certificate { .. } => {
                    "compare it with the fingerprint that the server prints when it starts; then use \
                     --fingerprint, or --ca-cert with its CA certificate"
                }
                Self::Unreachable { .. } => {
                    "check that the server is running and not blocked by a firewall, then run it again"
                }
                Self::Refused { status, .. } => match status {
                    400 | 401 => {
                        "the server does not accept the token or the certificate of this machine: \
                         create another token on the driver with `homestak token mint`, or run \
                         `homestak node enrol NODE` there if the machine has enrolled"
                    }
                    403 => "the server does not permit this",
                    404 => "the server's site has no such spec: run `homestak spec list` there",
                    422 => "run `homestak spec validate` on the server",
                    _ => "see the server's log",
                },
                Self::AuthorityFile(_) | Self::Trust(_) => {
                    "--ca-cert and HOMESTAK_CA_CERT name a file with certificates (PEM)"
                }
                Self::Setup(_) => return None,
                Self::NoSpec(_) | Self::TooLarge(_) => "check that this is a homestak server",
                Self::WrongIdentity { .. } => "use --identity, or a token of this machine",
            }
            .to_owned(),
        )
    }
}
