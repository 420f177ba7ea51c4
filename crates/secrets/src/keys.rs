//! age keys: identities (private keys) and recipients (public keys). Private keys never appear in
//! `Debug`, `Display` or errors.

use std::io::Read;

use age::armor::ArmoredReader;
use age::secrecy::ExposeSecret;
use age::x25519;
use zeroize::Zeroizing;

/// Why a key could not be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    /// A line of a keys file is neither a comment nor a key.
    #[error("line {line} of the keys file is not an age private key")]
    BadIdentity {
        /// The line, from one.
        line: usize,
    },
    /// The file contains no key.
    #[error("the keys file contains no age private key")]
    NoIdentity,
    /// The keys file is encrypted with a passphrase.
    #[error("the keys file is encrypted with a passphrase, which is not supported")]
    ProtectedIdentities,
    /// The kind of public key is not supported.
    #[error("`{recipient}` is {kind}, which is not supported; use an age X25519 key (age1...)")]
    UnsupportedRecipient {
        /// The public key.
        recipient: String,
        /// The kind, with its article.
        kind: &'static str,
    },
    /// The text is not a public key.
    #[error("`{recipient}` is not an age public key")]
    BadRecipient {
        /// The text.
        recipient: String,
    },
    /// A private key was given instead of a public one.
    #[error("expected a public key (age1...), found a private key")]
    PrivateAsRecipient,
    /// age failed to encrypt.
    #[error("wrap the data key for `{recipient}`")]
    Wrap {
        /// The recipient.
        recipient: String,
    },
}

/// A public key that files are encrypted for.
#[derive(Clone)]
pub struct Recipient(x25519::Recipient);

impl Recipient {
    /// Parses a public key such as `age1...`.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if text.to_ascii_uppercase().starts_with("AGE-") || text.starts_with("-----BEGIN") {
            return Err(KeyError::PrivateAsRecipient);
        }
        if let Ok(key) = text.parse() {
            return Ok(Self(key));
        }
        let recipient = text.to_owned();
        match unsupported(text) {
            Some(kind) => Err(KeyError::UnsupportedRecipient { recipient, kind }),
            None => Err(KeyError::BadRecipient { recipient }),
        }
    }

    /// Wraps `secret` for this key, as an armored age file.
    pub(crate) fn wrap(&self, secret: &[u8]) -> Result<String, KeyError> {
        age::encrypt_and_armor(&self.0, secret).map_err(|_| KeyError::Wrap {
            recipient: self.to_string(),
        })
    }
}

impl std::fmt::Display for Recipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Debug for Recipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Recipient {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Recipient {}

/// Returns the kind of a public key that is known and not supported.
pub(crate) fn unsupported(recipient: &str) -> Option<&'static str> {
    if recipient.starts_with("ssh-") {
        Some("an SSH key")
    } else if recipient.starts_with("age1pq1") || recipient.starts_with("age1tagpq1") {
        Some("a post-quantum key")
    } else if recipient.starts_with("age1") && recipient.matches('1').count() > 1 {
        // Bech32 has a single `1`; a second one is part of the name of a plugin.
        Some("a plugin key")
    } else {
        None
    }
}

/// Private keys. `Debug` shows only the public keys.
#[derive(Clone, Default)]
pub struct Identities {
    keys: Vec<x25519::Identity>,
    unsupported: Vec<&'static str>,
}

impl Identities {
    /// Parses a keys file: one key per line, with empty lines and `#` comments.
    ///
    /// Unsupported kinds of keys are skipped, because several tools share a keys file.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut identities = Self::default();
        for (nth, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line == "-----BEGIN AGE ENCRYPTED FILE-----" {
                return Err(KeyError::ProtectedIdentities);
            }
            if line.starts_with("AGE-SECRET-KEY-PQ-1") {
                identities.unsupported.push("a post-quantum key");
            } else if line.starts_with("AGE-PLUGIN-") {
                identities.unsupported.push("a plugin key");
            } else {
                let key = line
                    .parse()
                    .map_err(|_| KeyError::BadIdentity { line: nth + 1 })?;
                identities.keys.push(key);
            }
        }
        if identities.keys.is_empty() && identities.unsupported.is_empty() {
            return Err(KeyError::NoIdentity);
        }
        Ok(identities)
    }

    /// Adds all keys of another set.
    pub fn extend(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.unsupported.extend(other.unsupported);
    }

    /// Returns whether there is no usable key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of usable keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the public keys.
    pub fn recipients(&self) -> Vec<Recipient> {
        self.keys
            .iter()
            .map(|key| Recipient(key.to_public()))
            .collect()
    }

    /// Decrypts an armored age file with the matching key, if any.
    pub(crate) fn unwrap(&self, armored: &str) -> Option<Zeroizing<Vec<u8>>> {
        let reader = ArmoredReader::new(armored.as_bytes());
        let keys = self.keys.iter().map(|key| key as &dyn age::Identity);
        let mut plain = age::Decryptor::new(reader).ok()?.decrypt(keys).ok()?;
        // A data key has 32 bytes, a share of one 33; more is never read.
        let mut secret = Zeroizing::new(Vec::with_capacity(64));
        plain.by_ref().take(64).read_to_end(&mut secret).ok()?;
        Some(secret)
    }
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.recipients()).finish()
    }
}

/// A new key pair.
pub struct KeyPair {
    /// The keys file, in the form `age-keygen` writes.
    pub file: crate::PlainText,
    /// The public key.
    pub recipient: Recipient,
}

/// Generates a key pair. `created` is the time for the comment in the file (RFC 3339).
pub fn keygen(created: &str) -> KeyPair {
    let identity = x25519::Identity::generate();
    let recipient = Recipient(identity.to_public());
    let secret = identity.to_string();
    let file = format!(
        "# created: {created}\n# public key: {recipient}\n{}\n",
        secret.expose_secret()
    );
    KeyPair {
        file: crate::PlainText::new(file),
        recipient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_parses_and_decrypts() {
        let pair = keygen("2026-01-02T03:04:05Z");
        assert!(
            pair.file
                .expose()
                .starts_with("# created: 2026-01-02T03:04:05Z\n# public key: age1")
        );
        let identities = Identities::parse(pair.file.expose()).unwrap();
        assert_eq!(
            identities.recipients(),
            std::slice::from_ref(&pair.recipient)
        );
        let wrapped = pair.recipient.wrap(b"data key").unwrap();
        assert!(wrapped.starts_with("-----BEGIN AGE ENCRYPTED FILE-----\n"));
        let opened = identities.unwrap(&wrapped).unwrap();
        assert_eq!(opened.as_slice(), b"data key");
        let other = Identities::parse(keygen("x").file.expose()).unwrap();
        assert!(other.unwrap(&wrapped).is_none());
    }

    #[test]
    fn a_file_may_have_several_keys_and_comments() {
        let (one, two) = (keygen("a"), keygen("b"));
        let text = format!("{}\n# note\n{}", one.file.expose(), two.file.expose());
        assert_eq!(Identities::parse(&text).unwrap().len(), 2);
    }

    #[test]
    fn private_keys_are_never_shown() {
        let pair = keygen("now");
        let identities = Identities::parse(pair.file.expose()).unwrap();
        let shown = format!("{identities:?} {:?}", pair.file);
        assert!(!shown.contains("SECRET"), "{shown}");
        let secret = pair.file.expose().lines().last().unwrap();
        // `B` is not in the Bech32 alphabet.
        let broken = format!("{}B", &secret[..secret.len() - 1]);
        let error = Identities::parse(&broken).unwrap_err();
        assert_eq!(error, KeyError::BadIdentity { line: 1 });
        let error = Recipient::parse(secret).unwrap_err();
        assert_eq!(error, KeyError::PrivateAsRecipient);
    }

    #[test]
    fn unsupported_kinds_of_keys_are_reported() {
        let kind = |text: &str| match Recipient::parse(text) {
            Err(KeyError::UnsupportedRecipient { kind, .. }) => kind,
            _ => "other",
        };
        assert_eq!(kind("ssh-ed25519 AAAA me@here"), "an SSH key");
        assert_eq!(kind("age1pq1qqqq"), "a post-quantum key");
        assert_eq!(kind("age1yubikey1qqqq"), "a plugin key");
        assert_eq!(kind("age1nonsense"), "other");
        let keys = Identities::parse("AGE-PLUGIN-YUBIKEY-1QQQ").unwrap();
        assert!(keys.is_empty());
        assert_eq!(keys.unsupported, ["a plugin key"]);
    }
}
