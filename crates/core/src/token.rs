//! Provisioning tokens: mint, inspect, verify. A token is `payload.signature`, both base64url.
//!
//! Flow: the driver mints a token for (node, spec) and the node presents it to the server.
//! Guarantees: only a holder of the signing key can mint one; node and spec cannot be exchanged;
//! signatures are compared in constant time.
//! When it goes wrong: every error has a code that tells which side is at fault.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value as Json, json};
use sha2::Sha256;

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The name of the node, which is its host name.
    pub node: String,
    /// The spec the node may fetch.
    pub spec: String,
    /// Time of issue, in seconds since 1970.
    pub issued_at: i64,
}

/// The key that signs tokens. No `Debug`.
pub struct SigningKey(zeroize::Zeroizing<Vec<u8>>);

/// Why a token or key is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The key is not hexadecimal.
    #[error("the signing key is not an even number of hexadecimal digits")]
    Key,
    /// The token is not two parts of base64url.
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// The signature is invalid.
    #[error("invalid signature: the token was signed with another key, or changed")]
    Signature,
    /// The token is for another node.
    #[error("the token is for node `{found}`, not `{expected}`")]
    Identity {
        /// The expected node.
        expected: String,
        /// The node in the token.
        found: String,
    },
}

impl TokenError {
    /// Returns the error code for the response of a server.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Key => "E500",
            Self::Malformed(_) => "E300",
            Self::Signature | Self::Identity { .. } => "E301",
        }
    }
}

impl SigningKey {
    /// Reads the key from hexadecimal digits.
    pub fn from_hex(digits: &str) -> Result<Self, TokenError> {
        let digits = digits.as_bytes();
        if digits.is_empty() || !digits.len().is_multiple_of(2) {
            return Err(TokenError::Key);
        }
        let nibble = |digit: u8| char::from(digit).to_digit(16).ok_or(TokenError::Key);
        let bytes = digits
            .chunks_exact(2)
            .map(|pair| Ok((nibble(pair[0])? * 16 + nibble(pair[1])?) as u8))
            .collect::<Result<Vec<u8>, TokenError>>()?;
        Ok(Self(zeroize::Zeroizing::new(bytes)))
    }

    fn mac(&self, payload: &str) -> Hmac<Sha256> {
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(payload.as_bytes());
        mac
    }
}

/// Mints a token of version 1.
pub fn mint(claims: &Claims, key: &SigningKey) -> String {
    let payload = json!({ "v": 1, "n": claims.node, "s": claims.spec, "iat": claims.issued_at });
    let payload = URL_SAFE_NO_PAD.encode(payload.to_string());
    let signature = key.mac(&payload).finalize().into_bytes();
    format!("{payload}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Returns the claims of a token without verifying it.
pub fn inspect(token: &str) -> Result<Claims, TokenError> {
    claims(split(token)?.0)
}

/// Verifies a token and returns its claims. With `node`, it must be for that node.
pub fn verify(token: &str, key: &SigningKey, node: Option<&str>) -> Result<Claims, TokenError> {
    let (payload, signature) = split(token)?;
    let signature = URL_SAFE_NO_PAD
        .decode(signature)
        .map_err(|_| TokenError::Malformed("the signature is not base64url"))?;
    key.mac(payload)
        .verify_slice(&signature)
        .map_err(|_| TokenError::Signature)?;
    let claims = claims(payload)?;
    match node {
        Some(expected) if expected != claims.node => Err(TokenError::Identity {
            expected: expected.to_owned(),
            found: claims.node,
        }),
        Some(_) | None => Ok(claims),
    }
}

fn split(token: &str) -> Result<(&str, &str), TokenError> {
    let (payload, signature) = token.split_once('.').ok_or(TokenError::Malformed(
        "it has no dot between payload and signature",
    ))?;
    if signature.contains('.') {
        return Err(TokenError::Malformed("it has more than two parts"));
    }
    Ok((payload, signature))
}

fn claims(payload: &str) -> Result<Claims, TokenError> {
    let bytes = URL_SAFE_NO_PAD
        .decode(payload)
        .map_err(|_| TokenError::Malformed("the payload is not base64url"))?;
    let payload: Json = serde_json::from_slice(&bytes)
        .map_err(|_| TokenError::Malformed("the payload is not JSON"))?;
    if payload.get("v") != Some(&json!(1)) {
        return Err(TokenError::Malformed("its version is not 1"));
    }
    let text = |claim| payload.get(claim).and_then(Json::as_str).map(str::to_owned);
    Ok(Claims {
        node: text("n").ok_or(TokenError::Malformed("it has no node (`n`)"))?,
        spec: text("s").ok_or(TokenError::Malformed("it has no spec (`s`)"))?,
        issued_at: payload.get("iat").and_then(Json::as_i64).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::from_hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
            .unwrap()
    }

    fn web() -> Claims {
        Claims {
            node: "web-1".into(),
            spec: "base".into(),
            issued_at: 1_700_000_000,
        }
    }

    const VECTOR: &str = "eyJ2IjoxLCJuIjoid2ViLTEiLCJzIjoiYmFzZSIsImlhdCI6MTcwMDAwMDAwMH0.tpw5Q3DWDwuymgtCv-ZutoEZ49Tagbu4P6z14PagRos";

    #[test]
    fn minting_matches_the_published_test_vector() {
        assert_eq!(mint(&web(), &key()), VECTOR);
    }

    #[test]
    fn a_minted_token_verifies_for_its_node_only() {
        assert_eq!(verify(VECTOR, &key(), Some("web-1")), Ok(web()));
        let refused = verify(VECTOR, &key(), Some("web-2")).unwrap_err();
        assert_eq!(refused.code(), "E301");
    }

    #[test]
    fn changing_any_character_makes_a_token_invalid() {
        for at in 0..VECTOR.len() {
            let mut changed = VECTOR.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(verify(&changed, &key(), None).is_err(), "character {at}");
        }
    }

    #[test]
    fn errors_have_the_code_of_the_check_that_failed() {
        let codes = [
            ("abc", "E300"),
            ("a.b.c", "E300"),
            ("YQ.!!", "E300"),
            ("YQ.YQ", "E301"),
        ];
        for (token, code) in codes {
            assert_eq!(
                verify(token, &key(), None).unwrap_err().code(),
                code,
                "{token}"
            );
        }
        assert_eq!(
            SigningKey::from_hex("xyz").err().map(|error| error.code()),
            Some("E500")
        );
    }

    #[test]
    fn a_token_of_another_version_is_refused() {
        let payload = URL_SAFE_NO_PAD.encode(r#"{"v":2,"n":"a","s":"b"}"#);
        let signature = URL_SAFE_NO_PAD.encode(key().mac(&payload).finalize().into_bytes());
        assert_eq!(
            verify(&format!("{payload}.{signature}"), &key(), None)
                .unwrap_err()
                .code(),
            "E300"
        );
    }
}
