//! Which servers a TLS connection trusts: an authority, or one certificate by its fingerprint.
//! Verification cannot be turned off.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, OtherError, RootCertStore};
use sha2::{Digest as _, Sha256};

use crate::verifier::{PresentedCertificate, Verifier};

/// A certificate chain, and the private key of its first certificate.
pub type TlsCredential = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Which servers are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The public authorities that browsers trust.
    WebPki,
    /// Certificates that an authority in this PEM text signed, and the certificates in it.
    Authority(String),
    /// Exactly the certificate with this fingerprint.
    Pinned(Fingerprint),
    /// The servers of a site, over TLS 1.3 only: the certificate with one of these fingerprints, or
    /// one that it signed.
    /// Validity dates are not compared with the clock of this machine, which may be wrong at its
    /// first boot; the specs that servers send are signed, and nodes refuse older ones.
    Site(Vec<Fingerprint>),
    /// The same, except certificates that ended before a time in seconds since 1970. It is one that the
    /// site has signed, so that it has passed whatever the clock of this machine shows.
    SiteSince(Vec<Fingerprint>, i64),
}

/// The SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Why no TLS configuration could be created.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The PEM text contains no certificate.
    #[error("the authority's file holds no certificate")]
    NoCertificate,
    /// A certificate cannot be used as an authority.
    #[error("a certificate of the authority's file cannot be used")]
    BadCertificate,
    /// The TLS library rejected the protocol versions or the client certificate.
    #[error("set up TLS")]
    Setup(#[source] rustls::Error),
}

/// The server's certificate has another fingerprint than the trusted one.
#[derive(Debug, thiserror::Error)]
#[error("the certificate has the fingerprint {0}, not the recorded one")]
struct FingerprintMismatch(Fingerprint);

/// Returns whether a connection failed because the other side's certificate is not trusted.
pub fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::InvalidCertificate(_)) => return true,
            Some(rustls::Error::Other(other)) if other.0.is::<FingerprintMismatch>() => {
                return true;
            }
            _ => {}
        }
        // The inner error of an `io::Error` is not its source.
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
        let digits = homestak_core::hex::encode(&self.0).to_ascii_uppercase();
        let bytes: Vec<&str> = (0..self.0.len())
            .map(|nth| &digits[2 * nth..2 * nth + 2])
            .collect();
        f.write_str(&bytes.join(":"))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Returns whether a certificate is one of an authority that browsers trust, which signs for anyone.
pub fn is_public_authority(certificate: &CertificateDer<'_>) -> bool {
    let mut store = RootCertStore::empty();
    if store.add(certificate.clone()).is_err() {
        return false;
    }
    let is_same = |public: &rustls::pki_types::TrustAnchor<'_>| {
        let mut own = store.roots.iter();
        own.any(|own| own.subject_public_key_info == public.subject_public_key_info)
    };
    webpki_roots::TLS_SERVER_ROOTS.iter().any(is_same)
}

/// Returns until when a client certificate is valid, in seconds since 1970; `None` if it cannot be
/// read. Whoever signed it is not verified.
pub fn client_not_after(certificate: &CertificateDer<'_>) -> Option<i64> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone().into_owned()).ok()?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    // A time at which no certificate is valid: the dates are verified first.
    let never = UnixTime::since_unix_epoch(Duration::MAX);
    match verifier
        .build()
        .ok()?
        .verify_client_cert(certificate, &[], never)
    {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => i64::try_from(not_after.as_secs()).ok(),
        Ok(_) | Err(_) => None,
    }
}

/// Returns the cryptography provider of all programs.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns a client configuration with this trust.
pub fn client_config(trust: &Trust) -> Result<ClientConfig, TrustError> {
    client_config_with_credential(trust, None)
}

/// Returns a client configuration with this trust and an optional client certificate.
pub fn client_config_with_credential(
    trust: &Trust,
    credential: Option<TlsCredential>,
) -> Result<ClientConfig, TrustError> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = match trust {
        // Servers of a site offer nothing else.
        Trust::Site(_) | Trust::SiteSince(..) => {
            builder.with_protocol_versions(&[&rustls::version::TLS13])
        }
        Trust::WebPki | Trust::Authority(_) | Trust::Pinned(_) => {
            builder.with_safe_default_protocol_versions()
        }
    };
    let builder = builder.map_err(TrustError::Setup)?;
    let builder = match trust {
        Trust::WebPki => {
            let roots = RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.into(),
            };
            builder.with_root_certificates(roots)
        }
        Trust::Authority(pem) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(authority(pem)?)),
        Trust::Pinned(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned(*fingerprint))),
        Trust::Site(fingerprints) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(site(fingerprints.clone(), 0))),
        Trust::SiteSince(fingerprints, since) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(site(fingerprints.clone(), *since))),
    };
    match credential {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(TrustError::Setup),
    }
}

/// Accepts the certificates with these fingerprints, and those that they signed for the name unless
/// they ended before a time. One that a fingerprint names is accepted without its dates.
fn site(fingerprints: Vec<Fingerprint>, since: i64) -> impl ServerCertVerifier {
    let since = Duration::from_secs(u64::try_from(since).unwrap_or(0));
    let since = UnixTime::since_unix_epoch(since);
    Verifier::new(provider(), move |presented: &PresentedCertificate<'_>| {
        let found = Fingerprint::of(presented.certificate);
        if fingerprints.contains(&found) {
            return Ok(());
        }
        let mut roots = RootCertStore::empty();
        for certificate in presented.intermediates {
            if fingerprints.contains(&Fingerprint::of(certificate)) {
                roots.add(certificate.clone())?;
            }
        }
        if roots.is_empty() {
            return Err(OtherError(Arc::new(FingerprintMismatch(found))).into());
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier
            .build()
            .map_err(|error| rustls::Error::Other(OtherError(Arc::new(error))))?;
        let at = |now| {
            let (certificate, others) = (presented.certificate, presented.intermediates);
            verifier.verify_server_cert(certificate, others, presented.name, presented.ocsp, now)
        };
        // At a time of their own they are valid, if that is not before the one that has passed.
        let outcome = match at(presented.now.max(since)) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::ExpiredContext {
                    not_after: valid, ..
                }
                | CertificateError::NotValidYetContext {
                    not_before: valid, ..
                },
            )) if valid >= since => at(valid),
            outcome => outcome,
        };
        outcome.map(drop)
    })
}

/// Accepts certificates that the authorities of a file signed, and the certificates of the file
/// themselves: `openssl req -x509` marks a server's only certificate as an authority. The name is
/// checked in both cases.
fn authority(pem: &str) -> Result<impl ServerCertVerifier + use<>, TrustError> {
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
    Ok(Verifier::new(
        provider(),
        move |presented: &PresentedCertificate<'_>| {
            let outcome = signed.verify_server_cert(
                presented.certificate,
                presented.intermediates,
                presented.name,
                presented.ocsp,
                presented.now,
            );
            match outcome {
                Err(error)
                    if is_authority(&error) && certificates.contains(presented.certificate) =>
                {
                    verify_server_name(
                        &ParsedCertificate::try_from(presented.certificate)?,
                        presented.name,
                    )
                }
                outcome => outcome.map(drop),
            }
        },
    ))
}

/// Accepts one certificate with any name: the fingerprint identifies it.
fn pinned(fingerprint: Fingerprint) -> impl ServerCertVerifier {
    Verifier::new(provider(), move |presented: &PresentedCertificate<'_>| {
        let found = Fingerprint::of(presented.certificate);
        if found == fingerprint {
            return Ok(());
        }
        Err(OtherError(Arc::new(FingerprintMismatch(found))).into())
    })
}

/// Returns whether a certificate was rejected only because it is an authority's. Its dates are
/// valid, because webpki checks them first.
fn is_authority(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    // rustls does not re-export the inner type.
    format!("{:?}", other.0) == "CaUsedAsEndEntity"
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rustls::pki_types::ServerName;

    use super::*;

    /// A certificate as from `openssl req -x509`: self-signed, and marked as an authority.
    fn self_signed(expired: bool) -> (CertificateDer<'static>, String) {
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        if expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.der().clone(), certificate.pem())
    }

    fn verify(pem: &str, presented: &CertificateDer<'_>, name: &str) -> Result<(), rustls::Error> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let verifier = authority(pem).expect("a file with a certificate");
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        let outcome = verifier.verify_server_cert(presented, &[], &name, &[], now);
        outcome.map(|_| ())
    }

    #[test]
    fn the_end_of_a_client_certificate_is_read_whoever_signed_it() {
        use crate::certificate::{Credential, Role};

        let now = jiff::Timestamp::from_second(1_800_000_000).expect("a time");
        let authority = Credential::authority("s", now).expect("an authority");
        for role in [
            Role::Operator("op".to_owned()),
            Role::Server(vec!["host.example".to_owned()]),
        ] {
            let issued = authority.issue(role, now).expect("issued");
            let (chain, _) = issued.for_tls().expect("usable");
            let expected = issued.issued().not_after.as_second();
            assert_eq!(client_not_after(&chain[0]), Some(expected));
        }
        let (own, _) = self_signed(true);
        let expected = rcgen::date_time_ymd(2001, 1, 1).unix_timestamp();
        assert_eq!(client_not_after(&own), Some(expected));
        let mut cut = own.to_vec();
        cut.pop();
        for damaged in [CertificateDer::from(cut), CertificateDer::from(Vec::new())] {
            assert_eq!(client_not_after(&damaged), None);
        }
    }

    #[test]
    fn a_public_authority_is_distinguished_from_a_private_one() {
        let public = include_str!("../tests/data/isrg-root-x2.pem");
        let public = CertificateDer::from_pem_slice(public.as_bytes()).expect("a certificate");
        assert!(is_public_authority(&public));
        let (own, _) = self_signed(false);
        assert!(!is_public_authority(&own));
    }

    #[test]
    fn a_self_signed_certificate_is_accepted_by_itself_and_its_name() {
        let (presented, pem) = self_signed(false);
        verify(&pem, &presented, "host.example").expect("the same certificate");
        verify(&pem, &presented, "other.example").expect_err("another name");
        let (other, _) = self_signed(false);
        verify(&pem, &other, "host.example").expect_err("another certificate");
        let (old, old_pem) = self_signed(true);
        verify(&old_pem, &old, "host.example").expect_err("expired");
        assert!(matches!(
            authority("nothing"),
            Err(TrustError::NoCertificate)
        ));
    }

    #[test]
    fn a_certificate_of_the_site_is_accepted_at_any_time_unless_it_ended_before_one_that_has_passed()
     {
        use crate::certificate::{Credential, Role};

        let at = |day: i64| 1_800_000_000 + day * 24 * 3600;
        let time = |day| jiff::Timestamp::from_second(at(day)).expect("a time");
        let authority = Credential::authority("s", time(0)).expect("an authority");
        let intermediate = authority.issue(Role::Intermediate("s".to_owned()), time(0));
        let intermediate = intermediate.expect("issued");
        // Both are valid until day 30.
        let server = intermediate.issue(Role::Server(vec!["host.example".to_owned()]), time(1));
        let (chain, _) = server.expect("issued").for_tls().expect("usable");
        let known = vec![Fingerprint::of(chain.last().expect("the authority"))];
        let name = ServerName::try_from("host.example").expect("a name");
        let accepts = |since: i64, clock: i64| {
            let now = Duration::from_secs(u64::try_from(clock).expect("after 1970"));
            let now = UnixTime::since_unix_epoch(now);
            let verifier = site(known.clone(), since);
            let outcome = verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], now);
            outcome.is_ok()
        };
        for clock in [0, at(-900), at(10), at(29), at(31), at(9000)] {
            for since in [0, at(-1), at(0), at(10), at(29)] {
                assert!(accepts(since, clock), "{since} {clock}");
            }
            for since in [at(31), at(400)] {
                assert!(!accepts(since, clock), "{since} {clock}");
            }
        }
    }

    /// A chain of a certificate that the server of a site can issue, and the fingerprint of the
    /// site's authority.
    fn issued(role: crate::certificate::Role) -> (TlsCredential, Fingerprint) {
        use crate::certificate::{Credential, Role};

        let now = jiff::Timestamp::from_second(1_800_000_000).expect("a time");
        let authority = Credential::authority("s", now).expect("an authority");
        let intermediate = authority.issue(Role::Intermediate("s".to_owned()), now);
        let intermediate = intermediate.expect("issued");
        let credential = intermediate.issue(role, now).expect("issued");
        let (chain, key) = credential.for_tls().expect("usable");
        let known = Fingerprint::of(chain.last().expect("the authority"));
        ((chain, key), known)
    }

    #[test]
    fn client_certificates_are_rejected_as_server_certificates() {
        use crate::certificate::Role;

        let verify = |role: Role, name: &str| {
            let ((chain, _), known) = issued(role);
            let name = ServerName::try_from(name.to_owned()).expect("a name");
            let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
            let verifier = site(vec![known], 0);
            let outcome = verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], now);
            outcome.map(drop)
        };
        let name = "host.example";
        verify(Role::Server(vec![name.to_owned()]), name).expect("a server");
        let node = Role::Node {
            name: name.to_owned(),
            uuid: "11111111-1111-4111-8111-111111111111".to_owned(),
        };
        for role in [node, Role::Operator(name.to_owned())] {
            // Before its name is compared.
            let refused = verify(role, name).expect_err("for clients");
            let is_purpose = matches!(
                refused,
                rustls::Error::InvalidCertificate(
                    CertificateError::InvalidPurpose
                        | CertificateError::InvalidPurposeContext { .. }
                )
            );
            assert!(is_purpose, "{refused:?}");
        }
    }

    #[test]
    fn servers_of_a_site_are_reached_over_tls_1_3_only() {
        use rustls::{ClientConnection, ServerConfig, ServerConnection};

        let role = crate::certificate::Role::Server(vec!["host.example".to_owned()]);
        let ((chain, key), known) = issued(role);
        let leaf = Fingerprint::of(&chain[0]);
        let server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .expect("TLS 1.2")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("usable");
        let server = Arc::new(server);
        let accepts = |trust: &Trust| {
            let config = Arc::new(client_config(trust).expect("valid"));
            let name = ServerName::try_from("host.example").expect("a name");
            let mut client = ClientConnection::new(config, name).expect("a client");
            let mut server = ServerConnection::new(server.clone()).expect("a server");
            let mut hello = Vec::new();
            client.write_tls(&mut hello).expect("written");
            server.read_tls(&mut &hello[..]).expect("read");
            server.process_new_packets().is_ok()
        };
        assert!(accepts(&Trust::Pinned(leaf)), "hosts may have no other");
        assert!(!accepts(&Trust::Site(vec![known])));
        assert!(!accepts(&Trust::Site(vec![leaf])));
        assert!(!accepts(&Trust::SiteSince(vec![known], 0)));
    }

    #[test]
    fn an_untrusted_certificate_is_distinguished_from_other_failures() {
        // Each layer of a client wraps it again.
        let io = |error: rustls::Error| std::io::Error::other(std::io::Error::other(error));
        let mismatch = OtherError(Arc::new(FingerprintMismatch(Fingerprint([0; 32]))));
        assert!(is_untrusted(&io(mismatch.into())));
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
