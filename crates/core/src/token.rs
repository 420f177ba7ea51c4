//! Provisioning tokens: minted by the driver for one node, presented by that node at its first
//! contact.
//!
//! Flow: the driver mints a token for a node and its spec, the node presents it to the server.
//! Guarantees: only a holder of a signing key can mint one; node and spec cannot be exchanged. Version
//! 1 never expires and names only the node; version 2 names the guest, the site and an expiry.
//! When it goes wrong: every refusal has a code that names the side at fault. Signatures are
//! compared in constant time, and a payload is parsed only after its signature was verified.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value as Json, json};
use sha2::Sha256;

/// What a token claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The name of the node, which is its host name.
    pub node: String,
    /// The spec the node may fetch.
    pub spec: String,
    /// Time of issue, in seconds since 1970.
    pub issued_at: i64,
    /// What version 2 claims beside that; a token without it is of version 1.
    pub guest: Option<GuestClaims>,
}

/// What a token of version 2 claims beside node and spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestClaims {
    /// The guest's UUID.
    pub uuid: String,
    /// The id of the site, which is the token's audience.
    pub site: String,
    /// The token's own id.
    pub token_id: String,
    /// The id of the key that signed it.
    pub key_id: String,
    /// When it expires, in seconds since 1970.
    pub expires_at: i64,
}

/// The keys that a server verifies tokens with.
#[derive(Default)]
pub struct TokenKeys {
    /// Of version 1.
    signing_key: Option<SigningKey>,
    /// Of version 2, by their ids. Several are valid while keys are rotated.
    by_id: BTreeMap<String, SigningKey>,
}

impl TokenKeys {
    /// Reads keys from hexadecimal digits.
    pub fn from_hex<'a>(
        signing_key: Option<&str>,
        by_id: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, TokenError> {
        let by_id = by_id.into_iter();
        let by_id = by_id.map(|(id, digits)| Ok((id.to_owned(), SigningKey::from_hex(digits)?)));
        Ok(Self {
            signing_key: signing_key.map(SigningKey::from_hex).transpose()?,
            by_id: by_id.collect::<Result<_, TokenError>>()?,
        })
    }
}

impl PartialEq for TokenKeys {
    fn eq(&self, other: &Self) -> bool {
        let same = |a: &SigningKey, b: &SigningKey| *a.0 == *b.0;
        let first = match (&self.signing_key, &other.signing_key) {
            (Some(a), Some(b)) => same(a, b),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        let mut pairs = self.by_id.iter().zip(&other.by_id);
        let all = pairs.all(|((id, a), (other_id, b))| id == other_id && same(a, b));
        first && all && self.by_id.len() == other.by_id.len()
    }
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
    /// The token has expired.
    #[error("the token expired {0} s ago")]
    Expired(i64),
    /// The token is for another site.
    #[error("the token is for another site")]
    Audience,
    /// There is no key to verify it with.
    #[error("there is no signing key to verify tokens with")]
    NoKey,
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
            Self::Key | Self::NoKey => "E500",
            Self::Malformed(_) => "E300",
            Self::Signature | Self::Identity { .. } | Self::Expired(_) | Self::Audience => "E301",
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

/// Mints a token: of version 2 when it names a guest, otherwise of version 1.
pub fn mint(claims: &Claims, key: &SigningKey) -> String {
    let Claims {
        node,
        spec,
        issued_at,
        guest,
    } = claims;
    let payload = match guest {
        None => json!({ "v": 1, "n": node, "s": spec, "iat": issued_at }),
        Some(guest) => json!({
            "v": 2, "n": node, "s": spec, "iat": issued_at, "exp": guest.expires_at,
            "aud": guest.site, "jti": guest.token_id, "kid": guest.key_id, "uuid": guest.uuid,
        }),
    };
    let payload = URL_SAFE_NO_PAD.encode(payload.to_string());
    let signature = key.mac(&payload).finalize().into_bytes();
    format!("{payload}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Returns what a token claims, without checking who minted it.
pub fn inspect(token: &str) -> Result<Claims, TokenError> {
    claims(split(token)?.0)
}

/// Checks a token of any version with one key. With `node`, it must be for that node. Expiry and
/// audience are not checked: [`verify_at`] does.
pub fn verify(token: &str, key: &SigningKey, node: Option<&str>) -> Result<Claims, TokenError> {
    let (payload, signature) = decoded(token)?;
    key.mac(payload)
        .verify_slice(&signature)
        .map_err(|_| TokenError::Signature)?;
    let claims = claims(payload)?;
    claims.check_node(node)?;
    Ok(claims)
}

/// Checks a token as a server does: for a node of a site, at a time in seconds since 1970.
pub fn verify_at(
    token: &str,
    keys: &TokenKeys,
    node: Option<&str>,
    site: &str,
    now: i64,
) -> Result<Claims, TokenError> {
    let claims = verify_signature(token, keys)?;
    claims.check(node, site, now)?;
    Ok(claims)
}

/// Returns what a token claims, if its signature is one of the keys: [`Claims::check`] does the rest.
pub fn verify_signature(token: &str, keys: &TokenKeys) -> Result<Claims, TokenError> {
    if keys.signing_key.is_none() && keys.by_id.is_empty() {
        return Err(TokenError::NoKey);
    }
    let (payload, signature) = decoded(token)?;
    let fits = |key: &SigningKey| key.mac(payload).verify_slice(&signature).is_ok();
    let is_first = keys.signing_key.as_ref().is_some_and(fits);
    let id = keys
        .by_id
        .iter()
        .find(|(_, key)| fits(key))
        .map(|(id, _)| id);
    if !is_first && id.is_none() {
        return Err(TokenError::Signature);
    }
    let claims = claims(payload)?;
    match &claims.guest {
        None if is_first => {}
        // A key of one version is not valid for the other.
        None => return Err(TokenError::Signature),
        Some(guest) if id != Some(&guest.key_id) => return Err(TokenError::Signature),
        Some(_) => {}
    }
    Ok(claims)
}

impl Claims {
    /// Checks that they are for a site, at a time in seconds since 1970, and with `node` for that node.
    pub fn check(&self, node: Option<&str>, site: &str, now: i64) -> Result<(), TokenError> {
        match &self.guest {
            Some(guest) if guest.site != site => return Err(TokenError::Audience),
            Some(guest) if guest.expires_at <= now => {
                return Err(TokenError::Expired(now.saturating_sub(guest.expires_at)));
            }
            Some(_) | None => {}
        }
        self.check_node(node)
    }

    fn check_node(&self, node: Option<&str>) -> Result<(), TokenError> {
        match node {
            Some(expected) if expected != self.node => Err(TokenError::Identity {
                expected: expected.to_owned(),
                found: self.node.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

fn decoded(token: &str) -> Result<(&str, Vec<u8>), TokenError> {
    let (payload, signature) = split(token)?;
    let signature = URL_SAFE_NO_PAD
        .decode(signature)
        .map_err(|_| TokenError::Malformed("the signature is not base64url"))?;
    Ok((payload, signature))
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
    let text = |claim| payload.get(claim).and_then(Json::as_str).map(str::to_owned);
    let guest = match payload.get("v").and_then(Json::as_i64) {
        Some(1) => None,
        Some(2) => {
            let missing = |what| TokenError::Malformed(what);
            Some(GuestClaims {
                uuid: text("uuid").ok_or(missing("it names no guest (`uuid`)"))?,
                site: text("aud").ok_or(missing("it names no site (`aud`)"))?,
                token_id: text("jti").ok_or(missing("it has no id (`jti`)"))?,
                key_id: text("kid").ok_or(missing("it names no key (`kid`)"))?,
                expires_at: payload
                    .get("exp")
                    .and_then(Json::as_i64)
                    .ok_or(missing("it has no expiry (`exp`)"))?,
            })
        }
        Some(_) | None => return Err(TokenError::Malformed("its version is neither 1 nor 2")),
    };
    Ok(Claims {
        node: text("n").ok_or(TokenError::Malformed("it has no node (`n`)"))?,
        spec: text("s").ok_or(TokenError::Malformed("it has no spec (`s`)"))?,
        issued_at: payload.get("iat").and_then(Json::as_i64).unwrap_or(0),
        guest,
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
            guest: None,
        }
    }

    fn guest() -> Claims {
        Claims {
            guest: Some(GuestClaims {
                uuid: "11111111-1111-4111-8111-111111111111".into(),
                site: "site".into(),
                token_id: "t1".into(),
                key_id: "k1".into(),
                expires_at: 1_700_003_600,
            }),
            ..web()
        }
    }

    const OTHER: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn keys() -> TokenKeys {
        let first = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        TokenKeys::from_hex(Some(first), [("k1", OTHER)]).unwrap()
    }

    #[test]
    fn a_token_of_version_2_is_for_its_site_and_until_its_expiry() {
        let token = mint(&guest(), &SigningKey::from_hex(OTHER).unwrap());
        let check = |site, now| verify_at(&token, &keys(), Some("web-1"), site, now);
        assert_eq!(check("site", 1_700_003_599), Ok(guest()));
        assert_eq!(check("site", 1_700_003_610), Err(TokenError::Expired(10)));
        assert_eq!(check("other", 1_700_000_000), Err(TokenError::Audience));
        let other = verify_at(&token, &keys(), Some("web-2"), "site", 1_700_000_000);
        assert_eq!(other.unwrap_err().code(), "E301");
    }

    #[test]
    fn a_key_is_valid_for_its_version_and_its_id_only() {
        let check = |token: &str| verify_at(token, &keys(), None, "site", 1_700_000_000);
        assert_eq!(check(VECTOR), Ok(web()));
        let crossed = mint(&web(), &SigningKey::from_hex(OTHER).unwrap());
        assert_eq!(check(&crossed), Err(TokenError::Signature));
        assert_eq!(check(&mint(&guest(), &key())), Err(TokenError::Signature));
        let mut renamed = guest();
        renamed.guest.as_mut().unwrap().key_id = "k2".into();
        let renamed = mint(&renamed, &SigningKey::from_hex(OTHER).unwrap());
        assert_eq!(check(&renamed), Err(TokenError::Signature));
        let none = verify_at(VECTOR, &TokenKeys::default(), None, "site", 0);
        assert_eq!(none, Err(TokenError::NoKey));
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
        let payload = URL_SAFE_NO_PAD.encode(r#"{"v":3,"n":"a","s":"b"}"#);
        let signature = URL_SAFE_NO_PAD.encode(key().mac(&payload).finalize().into_bytes());
        assert_eq!(
            verify(&format!("{payload}.{signature}"), &key(), None)
                .unwrap_err()
                .code(),
            "E300"
        );
    }
}
