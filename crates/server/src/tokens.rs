//! The provisioning tokens that were issued, in memory: the first contact of a node needs no disk
//! access.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use homestak_store::registry::{Registry, RegistryError, TokenEntry};

/// The tokens of the registry. All changes to tokens are made here, except for the enrolment.
pub(crate) struct Tokens {
    registry: Arc<Registry>,
    known: RwLock<HashMap<String, TokenEntry>>,
}

impl Tokens {
    /// Reads all tokens.
    pub(crate) fn open(registry: Arc<Registry>) -> Result<Self, RegistryError> {
        let tokens = registry.tokens()?.into_iter();
        let known = tokens.map(|token| (token.id.clone(), token)).collect();
        Ok(Self {
            known: RwLock::new(known),
            registry,
        })
    }

    fn is(&self, id: &str, test: impl FnOnce(&TokenEntry) -> bool) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(id).is_some_and(test)
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut TokenEntry)) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = known.get_mut(id) {
            change(token);
        }
    }

    /// Returns whether a token is known.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.is(id, |_| true)
    }

    /// Returns whether a token was issued for a guest, and not revoked.
    pub(crate) fn is_issued(&self, id: &str, uuid: &str) -> bool {
        self.is(id, |token| token.uuid == uuid && token.revoked.is_none())
    }

    /// Returns whether a token was neither used nor revoked.
    pub(crate) fn is_open(&self, id: &str) -> bool {
        self.is(id, |token| token.used.or(token.revoked).is_none())
    }

    /// Records a token that was issued; one that is known stays as it is. Blocks on disk I/O.
    pub(crate) fn add(&self, token: TokenEntry) -> Result<(), RegistryError> {
        if self.has(&token.id) {
            return Ok(());
        }
        self.registry.add_token(&token)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(token.id.clone()).or_insert(token);
        Ok(())
    }

    /// Records the first use of a token; returns whether this was it. Blocks on disk I/O.
    pub(crate) fn use_once(&self, id: &str, at: i64) -> Result<bool, RegistryError> {
        let is_first = self.registry.use_token(id, at)?;
        if is_first {
            self.set_used(id, at);
        }
        Ok(is_first)
    }

    /// Remembers a use that is recorded already.
    pub(crate) fn set_used(&self, id: &str, at: i64) {
        self.change(id, |token| {
            token.used.get_or_insert(at);
        });
    }

    /// Revokes a token, and returns it; `None` if there is none with this id. Blocks on disk I/O.
    pub(crate) fn revoke(&self, id: &str, at: i64) -> Result<Option<TokenEntry>, RegistryError> {
        if self.registry.revoke_token(id, at)? {
            self.change(id, |token| {
                token.revoked.get_or_insert(at);
            });
        }
        self.registry.token(id)
    }

    /// Revokes the open tokens of a guest, and returns how many there were. Blocks on disk I/O.
    pub(crate) fn revoke_of(&self, uuid: &str, at: i64) -> Result<usize, RegistryError> {
        let open: Vec<String> = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let of_guest = known.values().filter(|token| token.uuid == uuid);
            let open = of_guest.filter(|token| token.used.or(token.revoked).is_none());
            open.map(|token| token.id.clone()).collect()
        };
        for id in &open {
            self.revoke(id, at)?;
        }
        Ok(open.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "11111111-1111-4111-8111-111111111111";

    #[test]
    fn a_token_that_is_not_open_is_still_not_open_when_the_server_starts_again() {
        let root = tempfile::tempdir().expect("a directory");
        let open = || {
            let registry = Registry::open(&root.path().join("server.db")).expect("opened");
            Tokens::open(Arc::new(registry)).expect("read")
        };
        let tokens = open();
        for id in ["one", "two", "three"] {
            let token = TokenEntry {
                id: id.to_owned(),
                uuid: WEB.to_owned(),
                node: "web".to_owned(),
                issued: 0,
                expires: None,
                used: None,
                revoked: None,
            };
            tokens.add(token).expect("written");
        }
        assert!(tokens.revoke("one", 5).expect("written").is_some());
        assert!(tokens.revoke("four", 5).expect("read").is_none());
        assert!(tokens.use_once("two", 5).expect("written"));
        assert!(!tokens.use_once("two", 6).expect("written"));
        for tokens in [&tokens, &open()] {
            assert!(!tokens.is_open("one") && !tokens.is_issued("one", WEB));
            assert!(!tokens.is_open("two") && tokens.is_issued("two", WEB));
            assert!(tokens.is_open("three") && !tokens.is_issued("three", "other"));
            assert!(!tokens.is_open("four") && !tokens.is_issued("four", WEB));
        }
        assert_eq!(tokens.revoke_of(WEB, 7).expect("written"), 1);
        for tokens in [tokens, open()] {
            assert!(!tokens.is_open("three"));
            assert!(tokens.is_issued("two", WEB), "used before");
        }
    }
}
