//! The certificates of a site.
//!
//! The driver holds the [`Role::Authority`] and issues from it: for itself a [`Role::Operator`], for
//! the server a [`Role::Intermediate`] of 30 days. From that one the server issues its own
//! [`Role::Server`] certificate and those of nodes. A private key of the authority never reaches the
//! process that listens.

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
    SignatureAlgorithm,
};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
pub use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::trust::{Fingerprint, TlsCredential};

/// Clocks of two machines differ: a new certificate is valid from this long before it was issued.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The root of a site, by the site's id.
    Authority(String),
    /// What a server issues certificates with, by the site's id.
    Intermediate(String),
    /// A server, by its names and addresses.
    Server(Vec<String>),
    /// A node, by its name and the guest's UUID.
    Node {
        /// The node's name.
        name: String,
        /// The guest's UUID.
        uuid: String,
    },
    /// A person who operates the site, by a name.
    Operator(String),
}

/// How long certificates of a role are valid.
impl Role {
    fn lifetime(&self) -> Duration {
        match self {
            // Nodes pin it, so it outlives them.
            Self::Authority(_) => DAY * 3650,
            // A server that was broken into can issue certificates for this long.
            Self::Intermediate(_) => DAY * 30,
            // Never longer than the intermediate that they are issued from.
            Self::Server(_) | Self::Node { .. } => DAY * 30,
            Self::Operator(_) => DAY * 365,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Authority(site) => format!("homestak site {site}"),
            Self::Intermediate(site) => format!("homestak server of site {site}"),
            Self::Server(names) => names.first().cloned().unwrap_or_default(),
            Self::Node { name, .. } | Self::Operator(name) => name.clone(),
        }
    }

    fn params(&self) -> Result<CertificateParams, CertificateError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // Longer names are not allowed (RFC 5280, ub-common-name).
        let name: String = self.name().chars().take(64).collect();
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        match self {
            Self::Authority(_) | Self::Intermediate(_) => {
                let below = u8::from(matches!(self, Self::Authority(_)));
                params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
                params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            }
            Self::Server(names) => {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                for name in names {
                    params.subject_alt_names.push(match name.parse::<IpAddr>() {
                        Ok(address) => SanType::IpAddress(address),
                        Err(_) => SanType::DnsName(name.as_str().try_into()?),
                    });
                }
            }
            Self::Node { uuid, .. } => {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                let uri = format!("urn:uuid:{uuid}");
                params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?)];
            }
            Self::Operator(_) => {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
        }
        Ok(params)
    }
}

/// Why a certificate could not be issued or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A name, key or certificate cannot be used.
    #[error("issue a certificate")]
    Issue(#[from] rcgen::Error),
    /// The issuer is no authority.
    #[error("a certificate of this role issues none")]
    NotAnIssuer,
    /// The issuer has expired.
    #[error("the issuing certificate expired at {0}")]
    Expired(Timestamp),
    /// The public key of a node is not a point of P-256 in uncompressed form.
    #[error("the public key is not an uncompressed P-256 point")]
    PublicKey,
    /// A stored credential cannot be read.
    #[error("the stored certificate is damaged")]
    Damaged,
    /// A time is out of range.
    #[error("a time is out of range")]
    Time,
}

/// A certificate without its private key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// In PEM: the certificate, then those that signed it, the root last.
    pub chain: String,
    /// The fingerprint of the certificate.
    pub fingerprint: String,
    /// From when on it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

/// A certificate with its private key. There is no `Debug`.
#[derive(Serialize, Deserialize)]
pub struct Credential {
    role: Role,
    issued: Issued,
    key: Zeroizing<String>,
}

/// A public key that belongs to someone else.
struct ForeignKey<'a>(&'a [u8]);

impl PublicKeyData for ForeignKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// Returns whether a public key is a point of P-256: one that is not was never a node's.
fn is_point(public_key: &[u8]) -> bool {
    let random = ring::rand::SystemRandom::new();
    let Ok(own) = EphemeralPrivateKey::generate(&ECDH_P256, &random) else {
        return false;
    };
    let key = UnparsedPublicKey::new(&ECDH_P256, public_key);
    // Only this examines the point.
    agree_ephemeral(own, &key, |_| ()).is_ok()
}

impl Credential {
    /// Creates the authority of a site.
    pub fn authority(site: &str, now: Timestamp) -> Result<Self, CertificateError> {
        let role = Role::Authority(site.to_owned());
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let (params, not_before, not_after) = dated(&role, now, None)?;
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            issued: Issued {
                chain: certificate.pem(),
                fingerprint: Fingerprint::of(certificate.der()).to_string(),
                not_before,
                not_after,
            },
            key: Zeroizing::new(key.serialize_pem()),
            role,
        })
    }

    /// Issues a certificate with a new private key.
    pub fn issue(&self, role: Role, now: Timestamp) -> Result<Self, CertificateError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let issued = self.issue_for(&role, &key, now)?;
        Ok(Self {
            issued,
            key: Zeroizing::new(key.serialize_pem()),
            role,
        })
    }

    /// Issues a certificate for a public key of P-256: 65 bytes, an uncompressed point.
    pub fn issue_to(
        &self,
        role: &Role,
        public_key: &[u8],
        now: Timestamp,
    ) -> Result<Issued, CertificateError> {
        if public_key.len() != 65 || public_key[0] != 4 || !is_point(public_key) {
            return Err(CertificateError::PublicKey);
        }
        self.issue_for(role, &ForeignKey(public_key), now)
    }

    fn issue_for(
        &self,
        role: &Role,
        key: &impl PublicKeyData,
        now: Timestamp,
    ) -> Result<Issued, CertificateError> {
        if !matches!(self.role, Role::Authority(_) | Role::Intermediate(_)) {
            return Err(CertificateError::NotAnIssuer);
        }
        if now >= self.issued.not_after {
            return Err(CertificateError::Expired(self.issued.not_after));
        }
        let own = KeyPair::from_pem(&self.key)?;
        let issuer = Issuer::new(self.role.params()?, own);
        let (params, not_before, not_after) = dated(role, now, Some(&self.issued))?;
        let certificate = params.signed_by(key, &issuer)?;
        Ok(Issued {
            chain: certificate.pem() + &self.issued.chain,
            fingerprint: Fingerprint::of(certificate.der()).to_string(),
            not_before,
            not_after,
        })
    }

    /// Returns what it is for.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Returns the certificate.
    pub fn issued(&self) -> &Issued {
        &self.issued
    }

    /// Returns when a new one should be issued: when a third of its life is left.
    pub fn due(&self) -> Timestamp {
        let Issued {
            not_before,
            not_after,
            ..
        } = &self.issued;
        let life = not_after.duration_since(*not_before);
        *not_after - life / 3
    }

    /// Returns the chain without the root, and the key, as rustls takes them.
    pub fn for_tls(&self) -> Result<TlsCredential, CertificateError> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        Ok((
            certificates(&self.issued.chain)?,
            key.map_err(|_| CertificateError::Damaged)?,
        ))
    }

    /// Returns the text that is stored, private key included.
    pub fn to_text(&self) -> Result<Zeroizing<String>, CertificateError> {
        let text = serde_json::to_string_pretty(self).map_err(|_| CertificateError::Damaged)?;
        Ok(Zeroizing::new(text))
    }

    /// Reads what [`Self::to_text`] returned.
    pub fn from_text(text: &str) -> Result<Self, CertificateError> {
        serde_json::from_str(text).map_err(|_| CertificateError::Damaged)
    }
}

/// Reads the certificates of a PEM text.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(CertificateError::Damaged),
    }
}

/// Writes a certificate in PEM.
pub fn pem(certificate: &[u8]) -> String {
    // Lines of 64 characters (RFC 7468).
    const LINE: usize = 64;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(LINE) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

type Dated = (CertificateParams, Timestamp, Timestamp);

/// Returns the parameters of a role with its dates; never beyond those of the issuer.
fn dated(role: &Role, now: Timestamp, issuer: Option<&Issued>) -> Result<Dated, CertificateError> {
    let time = |at: Timestamp| {
        let at = time::OffsetDateTime::from_unix_timestamp(at.as_second());
        at.map_err(|_| CertificateError::Time)
    };
    let whole = |at: Timestamp| Timestamp::from_second(at.as_second());
    let mut not_before = now - CLOCK_SKEW;
    let mut not_after = now + role.lifetime();
    if let Some(issuer) = issuer {
        not_before = not_before.max(issuer.not_before);
        not_after = not_after.min(issuer.not_after);
    }
    let (Ok(not_before), Ok(not_after)) = (whole(not_before), whole(not_after)) else {
        return Err(CertificateError::Time);
    };
    let mut params = role.params()?;
    (params.not_before, params.not_after) = (time(not_before)?, time(not_after)?);
    Ok((params, not_before, not_after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAYS: i64 = 24 * 3600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn server() -> Role {
        Role::Server(vec!["10.0.0.1".to_owned(), "driver.example".to_owned()])
    }

    #[test]
    fn a_chain_ends_at_the_authority_and_no_certificate_outlives_its_issuer() {
        let root = Credential::authority("site", at(0)).expect("an authority");
        let middle = root.issue(Role::Intermediate("site".to_owned()), at(0));
        let middle = middle.expect("an intermediate");
        let leaf = middle.issue(server(), at(20 * DAYS)).expect("a server");
        assert_eq!(certificates(&leaf.issued().chain).expect("PEM").len(), 3);
        assert!(leaf.issued().chain.ends_with(&root.issued().chain));
        let found = certificates(&leaf.issued().chain).expect("PEM");
        let written: String = found.iter().map(|one| pem(one)).collect();
        assert_eq!(certificates(&written).expect("PEM"), found);
        assert_eq!(leaf.issued().not_after, middle.issued().not_after);
        let late = middle.issue(server(), at(31 * DAYS));
        assert!(matches!(late, Err(CertificateError::Expired(_))));
    }

    #[test]
    fn only_authorities_issue_and_only_for_keys_of_the_right_form() {
        let root = Credential::authority("site", at(0)).expect("an authority");
        let leaf = root.issue(server(), at(0)).expect("a server");
        let refused = leaf.issue(server(), at(0));
        assert!(matches!(refused, Err(CertificateError::NotAnIssuer)));
        let node = Role::Node {
            name: "web".to_owned(),
            uuid: "11111111-1111-4111-8111-111111111111".to_owned(),
        };
        // The last is no point of the curve.
        for key in [&[][..], &[4; 64], &[3; 65], &[4; 65]] {
            let refused = root.issue_to(&node, key, at(0));
            assert!(matches!(refused, Err(CertificateError::PublicKey)));
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        root.issue_to(&node, key.public_key_raw(), at(0))
            .expect("a node");
    }

    #[test]
    fn a_credential_is_read_back_and_renewed_in_its_last_third() {
        let root = Credential::authority("site", at(0)).expect("an authority");
        let leaf = root.issue(server(), at(0)).expect("a server");
        let text = leaf.to_text().expect("text");
        let read = Credential::from_text(&text).expect("the same");
        assert_eq!(read.issued(), leaf.issued());
        read.for_tls().expect("usable");
        assert!(leaf.due() > at(19 * DAYS) && leaf.due() < at(21 * DAYS));
        for damaged in ["", "{}", "null"] {
            Credential::from_text(damaged).map(drop).expect_err(damaged);
        }
    }
}
