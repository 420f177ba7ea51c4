//! Caches tokens whose signature was verified. Belongs to one [`crate::published::ServedState`]: when
//! keys change, the cache is empty.
//!
//! Expiry, node, and whether the registry still has the token are checked for every request.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use homestak_api::publication::sha256;
use homestak_core::token::{self, Claims, TokenError, TokenKeys};

/// Most tokens in memory, about 500 bytes each. All of them are valid, so only holders of keys and
/// tokens add one.
const TOKENS: usize = 4_096;

/// The claims of tokens, by the SHA-256 of the token.
#[derive(Default)]
pub(crate) struct VerifiedTokens(RwLock<HashMap<String, Arc<Claims>>>);

impl VerifiedTokens {
    /// Returns what a token claims, if its signature is valid.
    pub(crate) fn claims(&self, token: &str, keys: &TokenKeys) -> Result<Arc<Claims>, TokenError> {
        let digest = sha256(token.as_bytes());
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = known.get(&digest) {
            return Ok(claims.clone());
        }
        drop(known);
        let claims = Arc::new(token::verify_signature(token, keys)?);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= TOKENS {
            known.clear();
        }
        known.insert(digest, claims.clone());
        Ok(claims)
    }
}

#[cfg(test)]
mod tests {
    use homestak_core::token::{SigningKey, mint};

    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f";

    fn minted(node: &str) -> String {
        let claims = Claims {
            node: node.to_owned(),
            spec: "base".to_owned(),
            issued_at: 0,
            guest: None,
        };
        mint(&claims, &SigningKey::from_hex(KEY).expect("a key"))
    }

    #[test]
    fn only_valid_tokens_are_remembered_and_not_without_limit() {
        let keys = TokenKeys::from_hex(Some(KEY), []).expect("keys");
        let verified = VerifiedTokens::default();
        let count = || verified.0.read().expect("free").len();
        let token = minted("web");
        for _ in 0..2 {
            let claims = verified.claims(&token, &keys).expect("valid");
            assert_eq!(claims.node, "web");
            assert_eq!(count(), 1);
        }
        for wrong in [
            format!("{token}A"),
            format!("A{token}"),
            token.replace('.', ""),
        ] {
            assert!(verified.claims(&wrong, &keys).is_err(), "{wrong}");
        }
        assert_eq!(count(), 1);
        for n in 0..TOKENS {
            let claims = verified.claims(&minted(&n.to_string()), &keys);
            assert_eq!(claims.expect("valid").node, n.to_string());
        }
        assert!(count() <= TOKENS);
    }
}
