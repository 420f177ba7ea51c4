//! Whom a TLS connection trusts: an authority, or one certificate by its fingerprint.
//!
//! In: [`Trust`]. Out: a client configuration for rustls.
//! Never: no verification at all; there is no variant for it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};

/// Whom to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The public authorities that browsers trust.
    WebPki,
    /// The authorities in this PEM text.
    Authority(String),
    /// Exactly the certificate with this fingerprint.
    Pinned(Fingerprint),
}

/// The SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Why a trust could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The PEM text holds no certificate.
    #[error("the authority's file holds no certificate")]
    NoCertificate,
    /// A certificate cannot be used as an authority.
    #[error("a certificate of the authority's file cannot be used")]
    BadCertificate,
    /// The versions of TLS do not fit the cryptography.
    #[error("set up TLS")]
    Setup(#[source] rustls::Error),
}

impl Fingerprint {
    /// Computes the fingerprint of a certificate.
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    /// Reads 64 hexadecimal digits, with or without colons.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        if digits.len() != 64 {
            return None;
        }
        let nibble = |digit: u8| {
            char::from(digit)
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? * 16 + nibble(pair[1])?;
        }
        Some(Self(bytes))
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (nth, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02X}", if nth > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Returns the cryptography of the whole program; switching it is this one line.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Makes a client configuration that trusts as told.
pub fn client_config(trust: &Trust) -> Result<ClientConfig, TrustError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TrustError::Setup)?;
    Ok(match trust {
        Trust::WebPki => {
            let roots = RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.into(),
            };
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::Authority(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|_| TrustError::BadCertificate)?;
                roots
                    .add(certificate)
                    .map_err(|_| TrustError::BadCertificate)?;
            }
            if roots.is_empty() {
                return Err(TrustError::NoCertificate);
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::Pinned(fingerprint) => {
            let verifier = Arc::new(Pin {
                fingerprint: *fingerprint,
                provider: provider(),
            });
            builder
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_no_client_auth()
        }
    })
}

/// Accepts one certificate, whatever name it carries: the fingerprint says more than a name.
#[derive(Debug)]
struct Pin {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint::of(end_entity);
        if found == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General(format!(
            "the certificate has the fingerprint {found}, not the recorded one"
        )))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::Fingerprint;

    #[test]
    fn a_fingerprint_reads_back_with_and_without_colons() {
        let fingerprint = Fingerprint::of(b"certificate");
        let text = fingerprint.to_string();
        assert_eq!(Fingerprint::parse(&text), Some(fingerprint));
        assert_eq!(
            Fingerprint::parse(&text.replace(':', "").to_lowercase()),
            Some(fingerprint)
        );
        assert_eq!(Fingerprint::parse("AA:BB"), None);
        assert_eq!(Fingerprint::parse(&"é".repeat(32)), None);
    }
}
