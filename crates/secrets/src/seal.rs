//! Encrypts a document. Ciphertexts of unchanged values are reused, so that diffs stay readable,
//! and the result is decrypted and compared before it is returned.

use homestak_core::doc::emit::{emit, emit_scalar};
use homestak_core::doc::{Scalar, Value};

use crate::cipher::{self, CipherError, DataKey, ValueType};
use crate::document::{self, DocumentError};
use crate::keys::{Identities, KeyError, Recipient};
use crate::layout::{self, Layout, LayoutError, Leaf, WalkItem, aad};
use crate::mac::Mac;
use crate::metadata::{self, Metadata, WrappedKey};
use crate::open::{self, OpenError};
use crate::previous::{CiphertextCache, PreviousDocument};
use crate::rules::{Rules, Subject};
use crate::{scalar, timestamp};

/// Why a document could not be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The text is not a YAML mapping.
    #[error("read the plain document")]
    Document(#[source] DocumentError),
    /// The document is empty.
    #[error("the document is empty")]
    Empty,
    /// The document has a `sops` key.
    #[error("the document is already encrypted: it has a `sops` key")]
    AlreadySealed,
    /// There are no recipients.
    #[error("there are no recipients to encrypt for")]
    NoRecipients,
    /// The time is invalid.
    #[error("`{now}` is not a time such as 2026-01-31T12:00:00Z")]
    BadTime {
        /// The time.
        now: String,
    },
    /// The document uses YAML features that cannot be encrypted.
    #[error("find the values of the plain document")]
    Layout(#[source] LayoutError),
    /// A key is a number, boolean or null; SOPS supports only strings.
    #[error("the key `{key}` is not a string; put it in quotes")]
    NonStringKey {
        /// The key.
        key: String,
    },
    /// A plain number that SOPS does not support.
    #[error("`{path}` is an integer that sops does not support; put it in quotes")]
    TooLarge {
        /// Path of the value, joined with `.`.
        path: String,
    },
    /// A value could not be encrypted.
    #[error("encrypt `{path}`")]
    Value {
        /// Path of the value, joined with `.`.
        path: String,
        /// The error.
        source: CipherError,
    },
    /// The data key could not be generated.
    #[error("generate the data key")]
    DataKey(#[source] CipherError),
    /// The data key could not be wrapped for a recipient.
    #[error("wrap the data key")]
    Wrap(#[source] KeyError),
    /// The previous version could not be decrypted.
    #[error("decrypt the previous version of the document")]
    Previous(#[source] OpenError),
    /// The previous version has keys that would be lost.
    #[error(
        "the document is encrypted with {kinds}, which would be lost; edit it with `sops edit`"
    )]
    WouldLoseKeys {
        /// What would be lost.
        kinds: String,
    },
    /// The encrypted document does not decrypt to the original. This is a bug.
    #[error("the encrypted document does not decrypt to the original")]
    RoundTrip,
}

/// How a document is encrypted.
#[derive(Clone, Copy)]
pub struct Sealing<'a> {
    /// The recipients.
    pub recipients: &'a [Recipient],
    /// Which values are encrypted.
    pub rules: &'a Rules,
    /// The current time, such as `2026-01-31T12:00:00Z`.
    pub now: &'a str,
    /// The previous version; ciphertexts of unchanged values are reused.
    pub previous: Option<Previous<'a>>,
}

/// The previous version of a document.
#[derive(Clone, Copy)]
pub struct Previous<'a> {
    /// The encrypted text.
    pub text: &'a str,
    /// Keys that decrypt it.
    pub identities: &'a Identities,
}

/// Encrypts a plain document.
///
/// With [`Sealing::previous`], the data key and the ciphertexts of unchanged values are reused, and
/// an unchanged document is returned byte for byte. If a recipient was removed, everything is
/// encrypted with a new data key, because that recipient knows the old one. Without `previous`,
/// everything is new, which rotates the keys.
pub fn seal(plain: &str, sealing: &Sealing<'_>) -> Result<String, SealError> {
    let tree = document::parse(plain).map_err(SealError::Document)?;
    if tree.field("sops").is_some() {
        return Err(SealError::AlreadySealed);
    }
    if tree.entries().is_none_or(<[_]>::is_empty) {
        return Err(SealError::Empty);
    }
    if sealing.recipients.is_empty() {
        return Err(SealError::NoRecipients);
    }
    let now = timestamp::to_the_second(sealing.now).ok_or_else(|| SealError::BadTime {
        now: sealing.now.to_owned(),
    })?;
    let before = sealing.previous.map(PreviousDocument::open).transpose()?;
    if let (Some(before), Some(previous)) = (&before, sealing.previous)
        && before.unchanged(plain, sealing)
    {
        return Ok(previous.text.to_owned());
    }
    let before = before.filter(|before| before.keeps_all(sealing.recipients));
    let (key, cache, wrapped) = match before {
        Some(before) => (
            before.key,
            CiphertextCache::new(before.ciphertexts),
            before.wrapped,
        ),
        None => {
            let key = DataKey::random().map_err(SealError::DataKey)?;
            (key, CiphertextCache::default(), Vec::new())
        }
    };
    let keys = wrap(&key, sealing.recipients, &wrapped)?;
    let mut sealer = Sealer {
        key: &key,
        rules: sealing.rules,
        keys: &keys,
        now: &now,
        cache,
    };
    // No `sops` block can be appended to a flow mapping, so such a document is reformatted.
    let sealed = sealer.seal(plain, &tree)?;
    if sealer.round_trips(&sealed, &tree) {
        return Ok(sealed);
    }
    let plain = zeroize::Zeroizing::new(emit(&tree));
    let tree = document::parse(&plain).map_err(SealError::Document)?;
    let sealed = sealer.seal(&plain, &tree)?;
    if sealer.round_trips(&sealed, &tree) {
        Ok(sealed)
    } else {
        Err(SealError::RoundTrip)
    }
}

/// Wraps the data key for all recipients, reusing keys that are already wrapped.
fn wrap(
    key: &DataKey,
    recipients: &[Recipient],
    wrapped: &[WrappedKey],
) -> Result<Vec<WrappedKey>, SealError> {
    let mut keys: Vec<WrappedKey> = Vec::new();
    for recipient in recipients {
        let name = recipient.to_string();
        if keys.iter().any(|key| key.recipient == name) {
            continue;
        }
        let kept = wrapped.iter().find(|key| key.recipient == name);
        keys.push(match kept {
            Some(kept) => kept.clone(),
            None => WrappedKey {
                enc: recipient.wrap(key.expose()).map_err(SealError::Wrap)?,
                recipient: name,
            },
        });
    }
    Ok(keys)
}

struct Sealer<'a> {
    key: &'a DataKey,
    rules: &'a Rules,
    keys: &'a [WrappedKey],
    now: &'a str,
    cache: CiphertextCache,
}

impl Sealer<'_> {
    fn seal(&mut self, text: &str, tree: &Value) -> Result<String, SealError> {
        let layout = Layout::of(text, tree).map_err(SealError::Layout)?;
        if let Some(key) = &layout.non_string_key {
            return Err(SealError::NonStringKey { key: key.clone() });
        }
        let rules = self.rules;
        let mut mac = Mac::new(rules);
        let mut edits = Vec::new();
        layout.walk(text, &mut |visit, path, comments| {
            match visit {
                WalkItem::Leaf(_, leaf) if rules.encrypts(path, comments, Subject::Value) => {
                    let sealed = self.value(leaf, &mut mac)?;
                    edits.push((leaf.range.clone(), sealed));
                    edits.extend(leaf.cut.clone().map(|lines| (lines, String::new())));
                }
                WalkItem::Leaf(_, leaf) => {
                    let bytes = scalar::mac_of_visible(&leaf.scalar);
                    let bytes = bytes.map_err(|_| SealError::TooLarge {
                        path: leaf.path.join("."),
                    })?;
                    mac.visible(&bytes.unwrap_or_default());
                }
                WalkItem::Comment(_, comment) => {
                    let line = comment.text(text);
                    if !line.is_empty() && rules.encrypts(path, comments, Subject::Comment) {
                        let sealed = self.text(path, line, Subject::Comment)?;
                        edits.push((comment.range.clone(), format!("#{sealed}")));
                    }
                }
            }
            Ok(())
        })?;
        let mac = cipher::encrypt(self.key, ValueType::Str, mac.finish().as_bytes(), self.now)
            .map_err(SealError::DataKey)?;
        let mut out = layout::replace(text, edits);
        close_document(&mut out);
        out.push_str(&metadata::render(self.keys, self.now, &mac, self.rules));
        Ok(out)
    }

    fn value(&mut self, leaf: &Leaf, mac: &mut Mac) -> Result<String, SealError> {
        let Some(plain) = scalar::plain(&leaf.scalar) else {
            return Ok(emit_scalar(&leaf.scalar));
        };
        mac.encrypted(&plain.mac);
        if plain.bytes.is_empty() {
            return Ok("\"\"".into());
        }
        let aad = aad(&leaf.path);
        let kept = self.cache.take(&aad, Subject::Value, &leaf.scalar);
        let sealed = match kept {
            Some(kept) => kept,
            None => cipher::encrypt(self.key, plain.kind, &plain.bytes, &aad)
                .map_err(|source| value_error(&leaf.path, source))?,
        };
        Ok(if leaf.flow {
            format!("\"{sealed}\"")
        } else {
            sealed
        })
    }

    fn text(&mut self, path: &[String], line: &str, subject: Subject) -> Result<String, SealError> {
        let aad = aad(path);
        match self.cache.take(&aad, subject, &Scalar::text(line)) {
            Some(kept) => Ok(kept),
            None => cipher::encrypt(self.key, ValueType::Comment, line.as_bytes(), &aad)
                .map_err(|source| value_error(path, source)),
        }
    }

    /// Decrypts the encrypted document and compares it with the original.
    fn round_trips(&self, sealed: &str, plain: &Value) -> bool {
        let Ok(tree) = document::parse(sealed) else {
            return false;
        };
        let Some(Ok(metadata)) = tree.field("sops").map(Metadata::parse) else {
            return false;
        };
        open::unseal(sealed, tree, &metadata, self.key)
            .is_ok_and(|opened| document::same_meaning(&opened.plain_tree(), plain))
    }
}

fn value_error(path: &[String], source: CipherError) -> SealError {
    SealError::Value {
        path: path.join("."),
        source,
    }
}

/// Prepares a text for appending: final newline, no `...`.
fn close_document(text: &mut String) {
    if let Some(body) = text.trim_end().strip_suffix("\n...") {
        let length = body.len();
        text.truncate(length);
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
}
