//! TLS of the server: version 1.3 only, its certificate, and client certificates.
//!
//! A client certificate is accepted here when the client proves that it holds the key. Whether it
//! counts is decided for every request by its fingerprint, in [`crate::caller`], so that a refusal
//! is an HTTP answer with a reason, and a revocation takes effect on open connections too.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use homestak_api::certificate::{Credential, Role};
use homestak_api::trust::{TlsCredential, provider};
use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ProducesTickets;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, ServerConfig, SignatureScheme,
};

use crate::error::ServerError;

/// Most addresses of this machine with a certificate.
const ADDRESSES: usize = 64;

/// The certificates of the server: one of the operator's, or one for each address that clients
/// connect to, issued for the first client and again before it expires.
pub(crate) struct ServerCertificates {
    provided: Option<Arc<ServerConfig>>,
    ticketer: Arc<dyn ProducesTickets>,
    names: Vec<String>,
    issued: Mutex<HashMap<IpAddr, IssuedConfig>>,
}

/// A certificate that was issued for an address.
struct IssuedConfig {
    config: Arc<ServerConfig>,
    /// When another one is issued.
    due: Timestamp,
    /// The published names that it is for, besides those of the settings.
    published: Vec<String>,
}

impl ServerCertificates {
    /// Uses a certificate of the operator, or those that the site issues for these names.
    pub(crate) fn new(
        provided: Option<TlsCredential>,
        names: Vec<String>,
    ) -> Result<Self, ServerError> {
        let ticketer = rustls::crypto::ring::Ticketer::new()?;
        let provided = provided
            .map(|credential| server_config(credential, ticketer.clone()))
            .transpose()?;
        Ok(Self {
            provided,
            ticketer,
            names,
            issued: Mutex::default(),
        })
    }

    /// Returns the configuration for a connection to an address of this machine, with a certificate that
    /// is also for the published names.
    pub(crate) fn config(
        &self,
        address: IpAddr,
        published: &[String],
        issuer: &Credential,
        now: Timestamp,
    ) -> Result<Arc<ServerConfig>, ServerError> {
        if let Some(provided) = &self.provided {
            return Ok(provided.clone());
        }
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = issued.get(&address)
            && now < found.due
            && found.published == published
        {
            return Ok(found.config.clone());
        }
        let mut names = vec![address.to_string()];
        for name in self.names.iter().chain(published) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let credential = issuer.issue(Role::Server(names), now)?;
        let due = credential.due();
        let config = server_config(credential.for_tls()?, self.ticketer.clone())?;
        if issued.len() >= ADDRESSES {
            issued.clear();
        }
        let one = IssuedConfig {
            config: config.clone(),
            due,
            published: published.to_vec(),
        };
        issued.insert(address, one);
        Ok(config)
    }
}

/// Accepts any client certificate whose key the client holds, and clients without one.
#[derive(Debug)]
struct ProofOfPossession(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for ProofOfPossession {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Not reached: only TLS 1.3 is offered.
        Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

fn server_config(
    (chain, key): TlsCredential,
    ticketer: Arc<dyn ProducesTickets>,
) -> Result<Arc<ServerConfig>, ServerError> {
    let provider = provider();
    let verifier = ProofOfPossession(provider.signature_verification_algorithms);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Nodes that reconnect after a network restart resume without a full handshake.
    config.ticketer = ticketer;
    Ok(Arc::new(config))
}
