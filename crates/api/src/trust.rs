//! Whom a TLS connection trusts: an authority, or one certificate by its fingerprint.
//!
//! In: [`Trust`]. Out: a client configuration for rustls.
//! Never: no verification at all; there is no variant for it.

use std::error::Error;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, OtherError, RootCertStore};
use sha2::{Digest as _, Sha256};

use crate::verifier::{Shown, Verifier};

/// A certificate chain, and the private key of its first certificate.
pub type TlsCredential = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Whom to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The public authorities that browsers trust.
    WebPki,
    /// The authorities in this PEM text, or exactly these certificates where they are a server's.
    Authority(String),
    /// Exactly the certificate with this fingerprint.
    Pinned(Fingerprint),
    /// The servers of a site: the certificate with one of these fingerprints, or one that it signed.
    /// Dates are not compared with the clock of this machine, which may be wrong at its first boot;
    /// what sites serve is signed and numbered by itself.
    Site(Vec<Fingerprint>),
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

/// A certificate is not the one that is trusted.
#[derive(Debug, thiserror::Error)]
#[error("the certificate has the fingerprint {0}, not the recorded one")]
struct NotRecorded(Fingerprint);

/// Tells whether a connection failed because the other side's certificate is not trusted.
pub fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::InvalidCertificate(_)) => return true,
            Some(rustls::Error::Other(other)) if other.0.is::<NotRecorded>() => return true,
            _ => {}
        }
        // What an `io::Error` was made from is not its source.
        let io = error.downcast_ref::<std::io::Error>();
        next = match io.and_then(|io| io.get_ref()) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
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
    client_config_as(trust, None)
}

/// Makes a client configuration that trusts as told, and shows a certificate when the server asks
/// for one.
pub fn client_config_as(
    trust: &Trust,
    own: Option<TlsCredential>,
) -> Result<ClientConfig, TrustError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TrustError::Setup)?;
    let builder = match trust {
        Trust::WebPki => {
            let roots = RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.into(),
            };
            builder.with_root_certificates(roots)
        }
        Trust::Authority(pem) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(named(pem)?)),
        Trust::Pinned(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned(*fingerprint))),
        Trust::Site(fingerprints) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(of_site(fingerprints.clone()))),
    };
    match own {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(TrustError::Setup),
    }
}

/// Accepts the certificate with one of these fingerprints, and those that it signed for the name.
fn of_site(fingerprints: Vec<Fingerprint>) -> impl ServerCertVerifier {
    Verifier::new(provider(), move |shown: &Shown<'_>| {
        let found = Fingerprint::of(shown.certificate);
        if fingerprints.contains(&found) {
            return Ok(());
        }
        let mut roots = RootCertStore::empty();
        for certificate in shown.intermediates {
            if fingerprints.contains(&Fingerprint::of(certificate)) {
                roots.add(certificate.clone())?;
            }
        }
        if roots.is_empty() {
            return Err(OtherError(Arc::new(NotRecorded(found))).into());
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier
            .build()
            .map_err(|error| rustls::Error::Other(OtherError(Arc::new(error))))?;
        let at = |now| {
            let (certificate, others) = (shown.certificate, shown.intermediates);
            verifier.verify_server_cert(certificate, others, shown.name, shown.ocsp, now)
        };
        let outcome = match at(shown.now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::ExpiredContext {
                    not_after: valid, ..
                }
                | CertificateError::NotValidYetContext {
                    not_before: valid, ..
                },
            )) => at(valid),
            outcome => outcome,
        };
        outcome.map(drop)
    })
}

/// Accepts what the authorities of a file signed, and the certificates of the file themselves:
/// what `openssl req -x509` makes is an authority by its own words, and still a server's only
/// certificate. The name is checked in both cases.
fn named(pem: &str) -> Result<impl ServerCertVerifier + use<>, TrustError> {
    let mut roots = RootCertStore::empty();
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|_| TrustError::BadCertificate)?;
        roots
            .add(certificate.clone())
            .map_err(|_| TrustError::BadCertificate)?;
        certificates.push(certificate);
    }
    if roots.is_empty() {
        return Err(TrustError::NoCertificate);
    }
    let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
    let signed = signed.build().map_err(|_| TrustError::BadCertificate)?;
    Ok(Verifier::new(provider(), move |shown: &Shown<'_>| {
        let outcome = signed.verify_server_cert(
            shown.certificate,
            shown.intermediates,
            shown.name,
            shown.ocsp,
            shown.now,
        );
        match outcome {
            Err(error) if is_authority(&error) && certificates.contains(shown.certificate) => {
                verify_server_name(&ParsedCertificate::try_from(shown.certificate)?, shown.name)
            }
            outcome => outcome.map(drop),
        }
    }))
}

/// Accepts one certificate, whatever name it carries: the fingerprint says more than a name.
fn pinned(fingerprint: Fingerprint) -> impl ServerCertVerifier {
    Verifier::new(provider(), move |shown: &Shown<'_>| {
        let found = Fingerprint::of(shown.certificate);
        if found == fingerprint {
            return Ok(());
        }
        Err(OtherError(Arc::new(NotRecorded(found))).into())
    })
}

/// Tells whether a certificate was refused only because it is an authority's. Its dates are good
/// then: they are checked before.
fn is_authority(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    // The type behind it is not re-exported by rustls.
    format!("{:?}", other.0) == "CaUsedAsEndEntity"
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    /// What `openssl req -x509` makes: signed by itself, and marked as an authority.
    fn self_signed(expired: bool) -> (CertificateDer<'static>, String) {
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        if expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("a certificate");
        (made.der().clone(), made.pem())
    }

    fn verify(pem: &str, shown: &CertificateDer<'_>, name: &str) -> Result<(), rustls::Error> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let verifier = named(pem).expect("a file with a certificate");
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        let outcome = verifier.verify_server_cert(shown, &[], &name, &[], now);
        outcome.map(|_| ())
    }

    #[test]
    fn a_self_signed_certificate_is_accepted_by_itself_and_its_name() {
        let (shown, pem) = self_signed(false);
        verify(&pem, &shown, "host.example").expect("that very certificate");
        verify(&pem, &shown, "other.example").expect_err("another name");
        let (other, _) = self_signed(false);
        verify(&pem, &other, "host.example").expect_err("another certificate");
        let (old, old_pem) = self_signed(true);
        verify(&old_pem, &old, "host.example").expect_err("expired");
        assert!(matches!(named("nothing"), Err(TrustError::NoCertificate)));
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_told_from_any_other_failure() {
        // Each layer of a client wraps it again.
        let io = |error: rustls::Error| std::io::Error::other(std::io::Error::other(error));
        let not_recorded = OtherError(Arc::new(NotRecorded(Fingerprint([0; 32]))));
        assert!(is_untrusted(&io(not_recorded.into())));
        assert!(is_untrusted(&io(CertificateError::Expired.into())));
        assert!(!is_untrusted(&io(rustls::Error::HandshakeNotComplete)));
        let other = OtherError(Arc::new(std::io::Error::other("certificate")));
        assert!(!is_untrusted(&io(other.into())));
    }

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
