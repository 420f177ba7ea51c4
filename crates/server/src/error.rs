//! Why a server could not start or reload.

use std::path::{Path, PathBuf};

use homestak_api::certificate::CertificateError;
use homestak_core::token::TokenError;
use homestak_store::registry::RegistryError;

use crate::settings::SettingsError;

/// Why a server could not start or reload.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its settings are not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The published files cannot be read.
    #[error("read the published files in `{}`", path.display())]
    Published {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A published key of tokens is not valid.
    #[error("read the published token keys")]
    TokenKey(#[source] TokenError),
    /// The registry cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A certificate cannot be issued or read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// TLS cannot be set up.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    /// The operator's own certificate and key do not belong together.
    #[error("the key `{}` is not that of the certificate `{}`", key.display(), certificate.display())]
    KeyMismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be read or written.
    #[error("{doing} `{}`", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl ServerError {
    /// Makes the error for a file.
    pub(crate) fn file<'a>(
        doing: &'static str,
        path: &'a Path,
    ) -> impl Fn(std::io::Error) -> Self + 'a {
        move |source| Self::File {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}
