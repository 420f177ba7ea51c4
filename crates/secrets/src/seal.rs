//! Plain text to sealed text.
//!
//! In: a plain document, recipients, rules, the time, and what was sealed before. Out: the
//! sealed document, which was opened again before it is handed out.
//! Never: new ciphertext for what did not change, so that histories stay readable.

use homestak_core::doc::emit::{emit, emit_scalar};
use homestak_core::doc::{Scalar, Value};

use crate::cipher::{self, CipherError, DataKey, Kind};
use crate::document::{self, DocumentError};
use crate::keys::{Identities, KeyError, Recipient};
use crate::layout::{self, Layout, LayoutError, Leaf, Visit, place_name};
use crate::mac::Mac;
use crate::metadata::{self, Metadata, WrappedKey};
use crate::open::{self, OpenError};
use crate::previous::{Before, Stash};
use crate::rules::{Rules, Subject};
use crate::{scalar, timestamp};

/// Why a document could not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The text is not a document.
    #[error("read the plain document")]
    Document(#[source] DocumentError),
    /// The document has no entry.
    #[error("the document is empty, so there is nothing to seal")]
    Empty,
    /// The document has a `sops` key.
    #[error("the document has a `sops` key: it is sealed already")]
    AlreadySealed,
    /// Nobody could open the result.
    #[error("there is no recipient to seal for")]
    NoRecipients,
    /// The time has another form.
    #[error("`{now}` is not a time such as 2026-01-31T12:00:00Z")]
    BadTime {
        /// The time as given.
        now: String,
    },
    /// The document uses YAML that cannot be sealed.
    #[error("find the values of the plain document")]
    Layout(#[source] LayoutError),
    /// A key is a number, boolean or null; SOPS takes text only.
    #[error("the key `{key}` is not text; put it in quotes")]
    OddKey {
        /// The key.
        key: String,
    },
    /// A readable value that SOPS cannot count into the MAC.
    #[error("`{path}` is a whole number that sops cannot handle; put it in quotes")]
    TooLarge {
        /// Keys down to the value, joined with `.`.
        path: String,
    },
    /// A value could not be encrypted.
    #[error("encrypt `{path}`")]
    Value {
        /// Keys down to the value, joined with `.`.
        path: String,
        /// Why.
        source: CipherError,
    },
    /// The data key could not be made or wrapped.
    #[error("make the data key")]
    DataKey(#[source] CipherError),
    /// The data key could not be wrapped for a recipient.
    #[error("wrap the data key")]
    Wrap(#[source] KeyError),
    /// The document sealed before could not be opened.
    #[error("open the document as it was sealed before")]
    Previous(#[source] OpenError),
    /// The document sealed before has keys that would be lost.
    #[error("the document is sealed with {kinds}, which would be lost; use `sops edit` for it")]
    WouldLoseKeys {
        /// What would be lost.
        kinds: String,
    },
    /// The sealed document does not open to what was to be sealed. This is a bug.
    #[error("the sealed document would not read back as the plain one")]
    Unfaithful,
}

/// How a document is to be sealed.
#[derive(Clone, Copy)]
pub struct Sealing<'a> {
    /// Who can open it.
    pub recipients: &'a [Recipient],
    /// What is encrypted.
    pub rules: &'a Rules,
    /// The time to note, such as `2026-01-31T12:00:00Z`.
    pub now: &'a str,
    /// The document as it was sealed before; ciphertext of what did not change is kept.
    pub previous: Option<Previous<'a>>,
}

/// A document as it was sealed before.
#[derive(Clone, Copy)]
pub struct Previous<'a> {
    /// The sealed text.
    pub text: &'a str,
    /// Keys that open it.
    pub identities: &'a Identities,
}

/// Seals a plain document.
///
/// With [`Sealing::previous`], the data key and the ciphertext of unchanged values are kept;
/// a document in which nothing changed comes back byte for byte. When a recipient is taken
/// away, everything is encrypted anew, since that recipient knows the old data key. Without
/// `previous`, everything is new: that is how keys are rotated.
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
    let before = sealing.previous.map(Before::open).transpose()?;
    if let (Some(before), Some(previous)) = (&before, sealing.previous)
        && before.unchanged(plain, sealing)
    {
        return Ok(previous.text.to_owned());
    }
    let before = before.filter(|before| before.keeps_all(sealing.recipients));
    let (key, stash, wrapped) = match before {
        Some(before) => (before.key, Stash::of(before.ciphertexts), before.wrapped),
        None => {
            let key = DataKey::random().map_err(SealError::DataKey)?;
            (key, Stash::default(), Vec::new())
        }
    };
    let keys = wrap(&key, sealing.recipients, &wrapped)?;
    let mut sealer = Sealer {
        key: &key,
        rules: sealing.rules,
        keys: &keys,
        now: &now,
        stash,
    };
    // A document in brackets has no line for the `sops` block, so it is laid out anew.
    let sealed = sealer.seal(plain, &tree)?;
    if sealer.is_faithful(&sealed, &tree) {
        return Ok(sealed);
    }
    let plain = zeroize::Zeroizing::new(emit(&tree));
    let tree = document::parse(&plain).map_err(SealError::Document)?;
    let sealed = sealer.seal(&plain, &tree)?;
    if sealer.is_faithful(&sealed, &tree) {
        Ok(sealed)
    } else {
        Err(SealError::Unfaithful)
    }
}

/// Wraps the data key for everyone, keeping what is already wrapped.
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
    stash: Stash,
}

impl Sealer<'_> {
    fn seal(&mut self, text: &str, tree: &Value) -> Result<String, SealError> {
        let layout = Layout::of(text, tree).map_err(SealError::Layout)?;
        if let Some(key) = &layout.odd_key {
            return Err(SealError::OddKey { key: key.clone() });
        }
        let rules = self.rules;
        let mut mac = Mac::new(rules);
        let mut edits = Vec::new();
        layout.walk(text, &mut |visit, path, comments| {
            match visit {
                Visit::Leaf(_, leaf) if rules.encrypts(path, comments, Subject::Value) => {
                    let sealed = self.value(leaf, &mut mac)?;
                    edits.push((leaf.range.clone(), sealed));
                    edits.extend(leaf.cut.clone().map(|lines| (lines, String::new())));
                }
                Visit::Leaf(_, leaf) => {
                    let bytes = scalar::mac_of_visible(&leaf.scalar);
                    let bytes = bytes.map_err(|_| SealError::TooLarge {
                        path: leaf.path.join("."),
                    })?;
                    mac.visible(&bytes.unwrap_or_default());
                }
                Visit::Comment(_, comment) => {
                    let line = comment.text(text);
                    if !line.is_empty() && rules.encrypts(path, comments, Subject::Comment) {
                        let sealed = self.text(path, line, Subject::Comment)?;
                        edits.push((comment.range.clone(), format!("#{sealed}")));
                    }
                }
            }
            Ok(())
        })?;
        let mac = cipher::encrypt(self.key, Kind::Str, mac.finish().as_bytes(), self.now)
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
        let place = place_name(&leaf.path);
        let kept = self.stash.take(&place, Subject::Value, &leaf.scalar);
        let sealed = match kept {
            Some(kept) => kept,
            None => cipher::encrypt(self.key, plain.kind, &plain.bytes, &place)
                .map_err(|source| fault(&leaf.path, source))?,
        };
        Ok(if leaf.flow {
            format!("\"{sealed}\"")
        } else {
            sealed
        })
    }

    fn text(&mut self, path: &[String], line: &str, subject: Subject) -> Result<String, SealError> {
        let place = place_name(path);
        match self.stash.take(&place, subject, &Scalar::text(line)) {
            Some(kept) => Ok(kept),
            None => cipher::encrypt(self.key, Kind::Comment, line.as_bytes(), &place)
                .map_err(|source| fault(path, source)),
        }
    }

    /// Opens what was sealed and compares it with what was to be sealed.
    fn is_faithful(&self, sealed: &str, plain: &Value) -> bool {
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

fn fault(path: &[String], source: CipherError) -> SealError {
    SealError::Value {
        path: path.join("."),
        source,
    }
}

/// Readies a text for more entries at its end: a last newline, no `...`.
fn close_document(text: &mut String) {
    if let Some(body) = text.trim_end().strip_suffix("\n...") {
        let length = body.len();
        text.truncate(length);
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
}
