//! The private key of a node, which never leaves it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use crate::certificate::{CertificateError, certificates};
use crate::trust::TlsCredential;

/// A key of P-256. There is no `Debug`.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// Generates a key.
    pub fn generate() -> Result<Self, CertificateError> {
        Ok(Self(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// Reads what [`Self::pem`] returned.
    pub fn from_pem(pem: &str) -> Result<Self, CertificateError> {
        let key = KeyPair::from_pem(pem).map_err(|_| CertificateError::Damaged)?;
        match key.is_compatible(&PKCS_ECDSA_P256_SHA256) {
            true => Ok(Self(key)),
            false => Err(CertificateError::Damaged),
        }
    }

    /// Returns the text that is stored.
    pub fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.serialize_pem())
    }

    /// Returns the public key as it is sent to a server: an uncompressed point, in base64.
    pub fn public(&self) -> String {
        STANDARD.encode(self.0.public_key_raw())
    }

    /// Returns the key with the certificate that was issued for it, as rustls takes them.
    pub fn with_chain(&self, chain: &str) -> Result<TlsCredential, CertificateError> {
        let key = PrivatePkcs8KeyDer::from(self.0.serialize_der());
        Ok((certificates(chain)?, PrivateKeyDer::Pkcs8(key)))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::certificate::{Credential, Role};

    #[test]
    fn a_stored_key_is_the_same_and_a_certificate_is_issued_for_it() {
        let key = NodeKey::generate().expect("a key");
        let read = NodeKey::from_pem(&key.pem()).expect("the same");
        assert_eq!(read.public(), key.public());
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let authority = Credential::authority("s", now).expect("an authority");
        let role = Role::Node {
            name: "web".to_owned(),
            uuid: "11111111-1111-4111-8111-111111111111".to_owned(),
        };
        let public = STANDARD.decode(key.public()).expect("base64");
        let issued = authority.issue_to(&role, &public, now).expect("issued");
        let (chain, _) = read.with_chain(&issued.chain).expect("usable");
        assert_eq!(chain.len(), 2);
        for damaged in [
            "",
            "key",
            "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n",
        ] {
            assert!(NodeKey::from_pem(damaged).is_err(), "{damaged}");
        }
    }
}
