//! Why a spec could not be fetched, which exit code that has, and whether another attempt may
//! help. Never contains the token, or more of a server's text than fits into a line.

use homestak_api::trust::TrustError;

/// Why a spec could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("no server is named")]
    NoServer,
    #[error("there is no provisioning token")]
    NoToken,
    #[error("the provisioning token is not one word of text")]
    WrongToken,
    #[error("read the provisioning token")]
    TokenFile(#[source] std::io::Error),
    #[error("only root can keep a spec")]
    NotRoot,
    #[error("`{0}` cannot be the name of a machine")]
    Identity(String),
    #[error("`{0}` is not the address of a server")]
    Address(String),
    #[error("the fingerprint is not that of a SHA-256")]
    Fingerprint,
    #[error("read the authority of the server")]
    AuthorityFile(#[source] std::io::Error),
    #[error("trust the server")]
    Trust(#[source] TrustError),
    #[error("set up the client: {0}")]
    Setup(String),
    #[error("{server} shows a certificate that is not trusted: {why}")]
    Certificate { server: String, why: String },
    #[error("{server} was not reached{}: {why}", times(*.attempts))]
    Unreachable {
        server: String,
        attempts: u32,
        why: String,
    },
    #[error("{server} refused with {status}{}", said(.code, .message))]
    Refused {
        server: String,
        status: u16,
        code: String,
        message: String,
    },
    #[error("the server's answer is no spec: {}", brief(&.0.join("; ")))]
    NoSpec(Vec<String>),
    #[error("the server sent the spec of `{}`, and this is `{identity}`", brief(.name))]
    Another { name: String, identity: String },
}

fn times(attempts: u32) -> String {
    match attempts {
        1 => String::new(),
        n => format!(" in {n} attempts"),
    }
}

fn said(code: &str, message: &str) -> String {
    let words = format!("{code} {message}");
    match words.trim() {
        "" => String::new(),
        words => format!(": {}", brief(words)),
    }
}

/// A server is not trusted to be brief, nor with a terminal.
fn brief(words: &str) -> String {
    let plain = words.chars().map(|one| match one.is_control() {
        true => ' ',
        false => one,
    });
    plain.take(300).collect()
}

impl FetchError {
    /// Tells whether asking again may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }

    /// Says how often was asked.
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

    /// Returns the exit code, and a word for programs.
    pub(super) fn class(&self) -> (u8, &'static str) {
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
            Self::NoSpec(_) | Self::Another { .. } => (2, "wrong_answer"),
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(
            match self {
                Self::NoServer => "give --server https://HOST:44443, or set HOMESTAK_SERVER",
                Self::NoToken | Self::WrongToken | Self::TokenFile(_) => {
                    "put it into HOMESTAK_TOKEN, or into a file and give --token-file; \
                     `homestak token mint` on the driver makes one"
                }
                Self::NotRoot => {
                    "put `sudo --preserve-env=HOMESTAK_SERVER,HOMESTAK_TOKEN` in front, or write it \
                     into a file with --output"
                }
                Self::Identity(_) => "give --identity NAME",
                Self::Address(_) => "write it as https://HOST:44443",
                Self::Fingerprint => "write 64 hexadecimal digits, with or without colons",
                Self::Certificate { .. } => {
                    "compare with the fingerprint that the server shows when it starts; then give \
                     --fingerprint, or --ca-cert with its authority"
                }
                Self::Unreachable { .. } => {
                    "look whether the server runs and a firewall lets this machine through, then \
                     run it again"
                }
                Self::Refused { status, .. } => match status {
                    400 | 401 => {
                        "the token is not for this machine, or was made with another key: make a \
                         new one"
                    }
                    403 => "the server does not let this machine have it",
                    404 => "the server's site has no such spec: `homestak spec list` there",
                    422 => "`homestak spec validate` on the server says what is wrong with it",
                    _ => "the server's log says more",
                },
                Self::AuthorityFile(_) | Self::Trust(_) => {
                    "--ca-cert and HOMESTAK_CA_CERT name a file with certificates (PEM)"
                }
                Self::Setup(_) => return None,
                Self::NoSpec(_) => "is this a homestak server?",
                Self::Another { .. } => "give --identity, or a token that is this machine's",
            }
            .to_owned(),
        )
    }
}
