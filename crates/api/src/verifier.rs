//! Verifies TLS servers with a custom check of their certificate. The signature of the handshake is
//! always checked too.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// The certificates that a server presents, and the name it was contacted by.
pub(crate) struct PresentedCertificate<'a> {
    pub(crate) certificate: &'a CertificateDer<'a>,
    pub(crate) intermediates: &'a [CertificateDer<'a>],
    pub(crate) name: &'a ServerName<'a>,
    pub(crate) ocsp: &'a [u8],
    pub(crate) now: UnixTime,
}

/// Accepts the certificates that its check accepts.
pub(crate) struct Verifier<F> {
    check: F,
    provider: Arc<CryptoProvider>,
}

impl<F: Fn(&PresentedCertificate<'_>) -> Result<(), Error> + Send + Sync> Verifier<F> {
    pub(crate) fn new(provider: Arc<CryptoProvider>, check: F) -> Self {
        Self { check, provider }
    }
}

impl<F> std::fmt::Debug for Verifier<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

impl<F: Fn(&PresentedCertificate<'_>) -> Result<(), Error> + Send + Sync> ServerCertVerifier
    for Verifier<F>
{
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        (self.check)(&PresentedCertificate {
            certificate,
            intermediates,
            name,
            ocsp,
            now,
        })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}
