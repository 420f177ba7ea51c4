//! Reads the fingerprint of a server's certificate without trusting it. A user can then verify it.
//!
//! The handshake always fails after the certificate was received, so no data is ever sent.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::trust::{Fingerprint, provider};
use crate::verifier::{PresentedCertificate, Verifier};

/// How long to wait for a server that does not respond.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why the fingerprint could not be read.
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
    /// The server does not use TLS.
    #[error("{host} port {port} does not speak TLS")]
    NotTls {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Returns the fingerprint of the certificate of a server.
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
    let host_name = host.trim_start_matches('[').trim_end_matches(']');
    let address = (host_name, port).to_socket_addrs().map_err(reach)?.next();
    let address = address.ok_or_else(|| reach(io::Error::other("the name has no address")))?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(reach)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(reach)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(reach)?;
    let fingerprint = Arc::new(Mutex::new(None));
    let recorded = Arc::clone(&fingerprint);
    // Records the certificate and rejects it.
    let verifier = Verifier::new(provider(), move |presented: &PresentedCertificate<'_>| {
        let found = Some(Fingerprint::of(presented.certificate));
        *recorded.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Err(rustls::Error::General("certificate recorded".to_owned()))
    });
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|_| not_tls())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let name = ServerName::try_from(host_name.to_owned()).map_err(|_| not_tls())?;
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|_| not_tls())?;
    // The handshake always fails: the verifier has recorded the certificate and rejected it.
    _ = connection.complete_io(&mut stream);
    let fingerprint = *fingerprint.lock().unwrap_or_else(PoisonError::into_inner);
    fingerprint.ok_or_else(not_tls)
}
