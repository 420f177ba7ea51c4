//! Looks at a server's certificate without trusting it, so that a person can.
//!
//! In: a host and a port. Out: the fingerprint of the certificate found there.
//! Never: a byte sent after the certificate was seen; the handshake always fails.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::trust::{Fingerprint, provider};
use crate::verifier::{Shown, Verifier};

/// How long to wait for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no fingerprint.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The server was not reached.
    #[error("reach {host} port {port}")]
    Reach {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// What answers is not TLS.
    #[error("{host} port {port} does not speak TLS")]
    NotTls {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Returns the fingerprint of the certificate that a server shows.
pub fn fingerprint(host: &str, port: u16) -> Result<Fingerprint, ProbeError> {
    let reach = |source| ProbeError::Reach {
        host: host.to_owned(),
        port,
        source,
    };
    let not_tls = || ProbeError::NotTls {
        host: host.to_owned(),
        port,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = (bare, port).to_socket_addrs().map_err(reach)?.next();
    let address = address.ok_or_else(|| reach(io::Error::other("the name has no address")))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(reach)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(reach)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(reach)?;
    let seen = Arc::new(Mutex::new(None));
    let look = Arc::clone(&seen);
    // Remembers the certificate and refuses it.
    let look = Verifier::new(provider(), move |shown: &Shown<'_>| {
        let found = Some(Fingerprint::of(shown.certificate));
        *look.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Err(rustls::Error::General("only looking".to_owned()))
    });
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|_| not_tls())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(look))
        .with_no_client_auth();
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| not_tls())?;
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|_| not_tls())?;
    // It always fails: what matters is what was seen before.
    _ = connection.complete_io(&mut stream);
    let seen = *seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.ok_or_else(not_tls)
}
