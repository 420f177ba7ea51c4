//! Verifies servers of TLS by a check of the certificate they show.
//!
//! Never: a handshake whose signature was not checked, whatever the check says.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// What a server shows, and under which name it was called.
pub(crate) struct Shown<'a> {
    pub(crate) certificate: &'a CertificateDer<'a>,
    pub(crate) intermediates: &'a [CertificateDer<'a>],
    pub(crate) name: &'a ServerName<'a>,
    pub(crate) ocsp: &'a [u8],
    pub(crate) now: UnixTime,
}

/// Accepts what its check accepts.
pub(crate) struct Verifier<F> {
    check: F,
    provider: Arc<CryptoProvider>,
}

impl<F: Fn(&Shown<'_>) -> Result<(), Error> + Send + Sync> Verifier<F> {
    pub(crate) fn new(provider: Arc<CryptoProvider>, check: F) -> Self {
        Self { check, provider }
    }
}

impl<F> std::fmt::Debug for Verifier<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

impl<F: Fn(&Shown<'_>) -> Result<(), Error> + Send + Sync> ServerCertVerifier for Verifier<F> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        (self.check)(&Shown {
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
