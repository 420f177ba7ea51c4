//! A document as it was sealed before: what can be kept of it.
//!
//! In: the sealed text and keys that open it. Out: its data key, wrapped keys, ciphertexts.
//! Never: keeping less than all recipients; whoever loses access must not know the new key.

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

/// What a document was before.
pub(crate) struct Before {
    plain: crate::PlainText,
    rules: Rules,
    pub(crate) key: DataKey,
    pub(crate) ciphertexts: Vec<Ciphertext>,
    pub(crate) wrapped: Vec<WrappedKey>,
}

impl Before {
    /// Opens and checks it.
    pub(crate) fn open(previous: Previous<'_>) -> Result<Self, SealError> {
        let fault = SealError::Previous;
        let tree =
            document::parse(previous.text).map_err(|source| fault(OpenError::Document(source)))?;
        let block = tree.field("sops").ok_or(fault(OpenError::NotSealed))?;
        let metadata =
            Metadata::parse(block).map_err(|source| fault(OpenError::Metadata(source)))?;
        if metadata.groups.len() > 1 {
            return Err(SealError::WouldLoseKeys {
                kinds: "key groups".into(),
            });
        }
        let foreign = metadata
            .foreign
            .iter()
            .map(|kind| format!("{kind} keys"))
            .chain(
                metadata
                    .keys()
                    .filter_map(|key| crate::keys::unsupported(&key.recipient))
                    .map(str::to_owned),
            )
            .collect::<Vec<_>>();
        if !foreign.is_empty() {
            return Err(SealError::WouldLoseKeys {
                kinds: foreign.join(", "),
            });
        }
        let key = open::data_key(&metadata, previous.identities).map_err(fault)?;
        let opened = open::unseal(previous.text, tree, &metadata, &key).map_err(fault)?;
        Ok(Self {
            plain: crate::PlainText::new(opened.render(previous.text)),
            wrapped: metadata.keys().cloned().collect(),
            rules: metadata.rules,
            key,
            ciphertexts: opened.ciphertexts,
        })
    }

    /// Tells whether sealing would change nothing but the time.
    pub(crate) fn unchanged(&self, plain: &str, sealing: &Sealing<'_>) -> bool {
        self.plain.expose() == plain
            && self.rules == *sealing.rules
            && sealing.recipients.len() == self.wrapped.len()
            && self.keeps_all(sealing.recipients)
    }

    /// Tells whether everyone who could open it still can.
    pub(crate) fn keeps_all(&self, recipients: &[Recipient]) -> bool {
        self.wrapped.iter().all(|key| {
            recipients
                .iter()
                .any(|recipient| recipient.to_string() == key.recipient)
        })
    }
}

/// Ciphertexts to use again, by place and what they hide.
#[derive(Default)]
pub(crate) struct Stash(HashMap<(String, Subject, Sort, String), Vec<String>>);

/// What a scalar is, for the stash: `"1"` is not `1`.
#[derive(PartialEq, Eq, Hash)]
enum Sort {
    Text,
    Number,
    Bool,
}

impl Stash {
    /// Takes in all ciphertexts.
    pub(crate) fn of(ciphertexts: Vec<Ciphertext>) -> Self {
        let mut stash = Self::default();
        // Taken from the back later, so that equal values of a list keep their order.
        for Ciphertext {
            place,
            scalar,
            subject,
            sealed,
        } in ciphertexts.into_iter().rev()
        {
            let key = (place, subject, sort(&scalar), spelling(&scalar));
            stash.0.entry(key).or_default().push(sealed);
        }
        stash
    }

    /// Hands out a ciphertext once.
    pub(crate) fn take(
        &mut self,
        place: &str,
        subject: Subject,
        scalar: &Scalar,
    ) -> Option<String> {
        let key = (place.to_owned(), subject, sort(scalar), spelling(scalar));
        self.0.get_mut(&key)?.pop()
    }
}

fn sort(scalar: &Scalar) -> Sort {
    match scalar.meaning() {
        Meaning::Bool(_) => Sort::Bool,
        Meaning::Int(_) | Meaning::Float(_) => Sort::Number,
        Meaning::Null | Meaning::Ambiguous | Meaning::Text => Sort::Text,
    }
}

fn spelling(scalar: &Scalar) -> String {
    match scalar.meaning() {
        Meaning::Bool(value) => value.to_string(),
        _ => scalar.text.clone(),
    }
}
