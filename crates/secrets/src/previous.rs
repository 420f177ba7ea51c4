//! The previous version of an encrypted document, whose data key and ciphertexts are reused. If a
//! recipient is removed nothing is reused, because that recipient knows the data key.

use std::collections::HashMap;

use homestak_core::doc::Scalar;
use homestak_core::doc::tree::Meaning;

use crate::cipher::DataKey;
use crate::document;
use crate::keys::Recipient;
use crate::metadata::{Metadata, WrappedKey};
use crate::open::{self, Ciphertext, OpenError};
use crate::rules::{Rules, Subject};
use crate::seal::{Previous, SealError, Sealing};

/// A decrypted previous version of a document.
pub(crate) struct PreviousDocument {
    plain: crate::PlainText,
    rules: Rules,
    pub(crate) key: DataKey,
    pub(crate) ciphertexts: Vec<Ciphertext>,
    pub(crate) wrapped: Vec<WrappedKey>,
}

impl PreviousDocument {
    /// Decrypts and verifies it.
    pub(crate) fn open(previous: Previous<'_>) -> Result<Self, SealError> {
        let error = SealError::Previous;
        let tree =
            document::parse(previous.text).map_err(|source| error(OpenError::Document(source)))?;
        let block = tree.field("sops").ok_or(error(OpenError::NotSealed))?;
        let metadata =
            Metadata::parse(block).map_err(|source| error(OpenError::Metadata(source)))?;
        if metadata.groups.len() > 1 {
            return Err(SealError::WouldLoseKeys {
                kinds: "key groups".into(),
            });
        }
        let unsupported = metadata
            .unsupported
            .iter()
            .map(|kind| format!("{kind} keys"))
            .chain(
                metadata
                    .keys()
                    .filter_map(|key| crate::keys::unsupported(&key.recipient))
                    .map(str::to_owned),
            )
            .collect::<Vec<_>>();
        if !unsupported.is_empty() {
            return Err(SealError::WouldLoseKeys {
                kinds: unsupported.join(", "),
            });
        }
        let key = open::data_key(&metadata, previous.identities).map_err(error)?;
        let opened = open::unseal(previous.text, tree, &metadata, &key).map_err(error)?;
        Ok(Self {
            plain: crate::PlainText::new(opened.render(previous.text)),
            wrapped: metadata.keys().cloned().collect(),
            rules: metadata.rules,
            key,
            ciphertexts: opened.ciphertexts,
        })
    }

    /// Returns whether encrypting would change only the time.
    pub(crate) fn unchanged(&self, plain: &str, sealing: &Sealing<'_>) -> bool {
        self.plain.expose() == plain
            && self.rules == *sealing.rules
            && sealing.recipients.len() == self.wrapped.len()
            && self.keeps_all(sealing.recipients)
    }

    /// Returns whether all its recipients are kept.
    pub(crate) fn keeps_all(&self, recipients: &[Recipient]) -> bool {
        self.wrapped.iter().all(|key| {
            recipients
                .iter()
                .any(|recipient| recipient.to_string() == key.recipient)
        })
    }
}

/// Ciphertexts to reuse, by additional data and plain value.
#[derive(Default)]
pub(crate) struct CiphertextCache(HashMap<(String, Subject, ScalarType, String), Vec<String>>);

/// The type of a scalar: `"1"` is not `1`.
#[derive(PartialEq, Eq, Hash)]
enum ScalarType {
    Text,
    Number,
    Bool,
}

impl CiphertextCache {
    /// Creates the cache.
    pub(crate) fn new(ciphertexts: Vec<Ciphertext>) -> Self {
        let mut cache = Self::default();
        // Reversed, because `take` pops from the end: equal values of a list keep their order.
        for Ciphertext {
            aad,
            scalar,
            subject,
            sealed,
        } in ciphertexts.into_iter().rev()
        {
            let key = (aad, subject, scalar_type(&scalar), notation(&scalar));
            cache.0.entry(key).or_default().push(sealed);
        }
        cache
    }

    /// Removes and returns a ciphertext.
    pub(crate) fn take(&mut self, aad: &str, subject: Subject, scalar: &Scalar) -> Option<String> {
        let key = (
            aad.to_owned(),
            subject,
            scalar_type(scalar),
            notation(scalar),
        );
        self.0.get_mut(&key)?.pop()
    }
}

fn scalar_type(scalar: &Scalar) -> ScalarType {
    match scalar.meaning() {
        Meaning::Bool(_) => ScalarType::Bool,
        Meaning::Int(_) | Meaning::Float(_) => ScalarType::Number,
        Meaning::Null | Meaning::Ambiguous | Meaning::Text => ScalarType::Text,
    }
}

fn notation(scalar: &Scalar) -> String {
    match scalar.meaning() {
        Meaning::Bool(value) => value.to_string(),
        _ => scalar.text.clone(),
    }
}
