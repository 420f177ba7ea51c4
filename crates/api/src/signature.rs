//! Ed25519 signatures of a site over what its nodes rely on: specs and the agent's program.
//!
//! Flow: the driver holds the [`SiteKey`], signs, and hands the result to the server, which stores
//! and serves it. A node receives the public key with its first-boot data.
//! Guarantees: a signature made for one [`Purpose`] is not valid for another; whoever controls the
//! server can withhold what was signed, and cannot change or invent it.
//! When it goes wrong: every refusal is a [`SignatureError`]; the payload is parsed only after the
//! signature was verified.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use homestak_core::hex;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// What a signature is for. It is part of the signed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The spec of one node.
    Spec,
    /// The agent's program.
    Agent,
    /// A job of one node.
    Job,
}

impl Purpose {
    fn prefix(self) -> &'static str {
        match self {
            Self::Spec => "homestak-spec-v1:",
            Self::Agent => "homestak-agent-v1:",
            Self::Job => "homestak-job-v1:",
        }
    }
}

/// The private key of a site. There is no `Debug`.
pub struct SiteKey {
    pair: Ed25519KeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
}

/// The public key of a site, written as 43 characters of base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SitePublicKey([u8; 32]);

/// Why something signed was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The key could not be generated or read.
    #[error("the site key is not a valid Ed25519 key")]
    Key,
    /// It is not two parts of base64url.
    #[error("the signed statement is malformed")]
    Malformed,
    /// The signature is not by a key of the site.
    #[error("the signature was not made by this site, or the content was changed")]
    Signature,
    /// The signature is valid, and the payload is not what was expected.
    #[error("the signed statement has an unexpected form")]
    Payload,
}

impl SiteKey {
    /// Generates a key.
    pub fn generate() -> Result<Self, SignatureError> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        Self::from_pkcs8(pkcs8.map_err(|_| SignatureError::Key)?.as_ref())
    }

    /// Reads a key from PKCS #8, as [`Self::pkcs8`] returns it.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, SignatureError> {
        Ok(Self {
            pair: Ed25519KeyPair::from_pkcs8(der).map_err(|_| SignatureError::Key)?,
            pkcs8: Zeroizing::new(der.to_vec()),
        })
    }

    /// Returns the private key as PKCS #8, to be stored.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// Returns the public half.
    pub fn public(&self) -> SitePublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.pair.public_key().as_ref());
        SitePublicKey(bytes)
    }

    /// Signs a value: `payload.signature`, both base64url.
    pub fn sign(
        &self,
        purpose: Purpose,
        payload: &impl Serialize,
    ) -> Result<String, SignatureError> {
        let payload = serde_json::to_vec(payload).map_err(|_| SignatureError::Payload)?;
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let signature = self.pair.sign(&message(purpose, &payload));
        Ok(format!(
            "{payload}.{}",
            URL_SAFE_NO_PAD.encode(signature.as_ref())
        ))
    }
}

/// Verifies a statement with any of the keys, and returns its payload.
pub fn verify<T: DeserializeOwned>(
    purpose: Purpose,
    statement: &str,
    keys: &[SitePublicKey],
) -> Result<T, SignatureError> {
    let (payload, signature) = statement.split_once('.').ok_or(SignatureError::Malformed)?;
    let decode = |part| {
        URL_SAFE_NO_PAD
            .decode(part)
            .map_err(|_| SignatureError::Malformed)
    };
    let signature = decode(signature)?;
    let message = message(purpose, payload);
    let is_valid = |key: &SitePublicKey| {
        let key = UnparsedPublicKey::new(&ED25519, key.0);
        key.verify(&message, &signature).is_ok()
    };
    if !keys.iter().any(is_valid) {
        return Err(SignatureError::Signature);
    }
    serde_json::from_slice(&decode(payload)?).map_err(|_| SignatureError::Payload)
}

fn message(purpose: Purpose, payload: &str) -> Vec<u8> {
    [purpose.prefix().as_bytes(), payload.as_bytes()].concat()
}

impl SitePublicKey {
    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Result<Self, SignatureError> {
        let bytes = STANDARD_NO_PAD.decode(text.trim());
        let bytes = bytes.map_err(|_| SignatureError::Key)?;
        Ok(Self(bytes.try_into().map_err(|_| SignatureError::Key)?))
    }

    /// Returns a short id, for logs and for people who compare keys.
    pub fn id(&self) -> String {
        hex::encode(&Sha256::digest(self.0)[..8])
    }

    /// Returns the key in PEM, as `openssl pkeyutl` reads it.
    pub fn pem(&self) -> String {
        // The fixed header of an Ed25519 SubjectPublicKeyInfo (RFC 8410).
        const HEADER: [u8; 12] = [
            0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
        ];
        let der = [&HEADER[..], &self.0].concat();
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }
}

impl fmt::Display for SitePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for SitePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SitePublicKey({self})")
    }
}

impl Serialize for SitePublicKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SitePublicKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SiteKey {
        SiteKey::generate().expect("a key")
    }

    fn read(
        purpose: Purpose,
        text: &str,
        keys: &[SitePublicKey],
    ) -> Result<String, SignatureError> {
        verify(purpose, text, keys)
    }

    #[test]
    fn a_statement_is_accepted_from_its_site_and_for_its_purpose_only() {
        let (site, other) = (key(), key());
        let signed = site.sign(Purpose::Spec, &"web").expect("signed");
        let keys = [other.public(), site.public()];
        assert_eq!(read(Purpose::Spec, &signed, &keys).as_deref(), Ok("web"));
        let refused = Err(SignatureError::Signature);
        assert_eq!(read(Purpose::Spec, &signed, &keys[..1]), refused);
        assert_eq!(read(Purpose::Spec, &signed, &[]), refused);
        assert_eq!(read(Purpose::Agent, &signed, &keys), refused);
    }

    #[test]
    fn every_changed_byte_of_a_statement_is_refused() {
        let site = key();
        let signed = site.sign(Purpose::Spec, &"web").expect("signed");
        for nth in 0..signed.len() {
            let mut bytes = signed.clone().into_bytes();
            bytes[nth] = if bytes[nth] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).expect("ASCII");
            read(Purpose::Spec, &changed, &[site.public()]).expect_err("changed");
        }
        for text in ["", ".", "a", "a.b.c", "é.é"] {
            read(Purpose::Spec, text, &[site.public()]).expect_err(text);
        }
    }

    #[test]
    fn keys_are_read_back_from_what_is_stored() {
        let site = key();
        let stored = SiteKey::from_pkcs8(site.pkcs8()).expect("the same key");
        assert_eq!(stored.public(), site.public());
        let text = site.public().to_string();
        assert_eq!(text.len(), 43);
        assert_eq!(SitePublicKey::parse(&text), Ok(site.public()));
        assert_eq!(site.public().id().len(), 16);
        for text in ["", "AAAA", "not base64"] {
            assert_eq!(SitePublicKey::parse(text), Err(SignatureError::Key));
        }
    }
}
