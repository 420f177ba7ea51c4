//! Sealed text to plain text.
//!
//! In: a sealed document and private keys. Out: the plain document, comments and layout kept.
//! Never: a document whose MAC does not fit; there is no way to ask for one.

use homestak_core::doc::emit::{emit, emit_scalar};
use homestak_core::doc::{Scalar, Value};
use zeroize::Zeroizing;

use crate::cipher::{self, CipherError, DataKey, KEY_LEN, Kind};
use crate::document::{self, DocumentError};
use crate::keys::{self, Identities};
use crate::layout::{self, Comment, Layout, LayoutError, Leaf, Visit, place_name};
use crate::mac::Mac;
use crate::metadata::{Metadata, MetadataError};
use crate::plain_text::PlainText;
use crate::rules::Subject;
use crate::{scalar, shamir};

/// Why a sealed document could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text is not a document.
    #[error("read the sealed document")]
    Document(#[source] DocumentError),
    /// The document has no `sops` block.
    #[error("the document is not sealed: it has no `sops` block")]
    NotSealed,
    /// The `sops` block is damaged.
    #[error("read the `sops` block")]
    Metadata(#[source] MetadataError),
    /// The document uses YAML that SOPS never writes.
    #[error("find the values of the sealed document")]
    Layout(#[source] LayoutError),
    /// None of the keys given belongs to a recipient.
    #[error("{}", no_key_fits(.recipients, *.given, .foreign))]
    NoKeyFits {
        /// Public keys of those who can open the document.
        recipients: Vec<String>,
        /// How many private keys were tried.
        given: usize,
        /// Kinds of keys the document has besides age keys, by their SOPS names.
        foreign: Vec<&'static str>,
    },
    /// Too few key groups could be opened.
    #[error("{opened} of {needed} key groups could be opened")]
    TooFewGroups {
        /// How many groups were opened.
        opened: usize,
        /// How many are needed.
        needed: usize,
    },
    /// What a key opened is no data key.
    #[error("the unwrapped data key does not have {KEY_LEN} bytes")]
    BadDataKey,
    /// One value could not be decrypted.
    #[error("decrypt `{path}`")]
    Value {
        /// Keys down to the value, joined with `.`.
        path: String,
        /// Why.
        source: CipherError,
    },
    /// A value SOPS could not have counted into the MAC.
    #[error("`{path}` is a whole number that sops cannot handle")]
    TooLarge {
        /// Keys down to the value, joined with `.`.
        path: String,
    },
    /// The MAC itself could not be decrypted.
    #[error("decrypt the MAC of the document")]
    Mac(#[source] CipherError),
    /// Values, their order or their number were changed after sealing.
    #[error("the document was changed after it was sealed: its MAC does not fit")]
    MacMismatch,
}

fn no_key_fits(recipients: &[String], given: usize, foreign: &[&str]) -> String {
    let names: Vec<String> = recipients
        .iter()
        .map(|recipient| match keys::unsupported(recipient) {
            Some(kind) => format!("`{recipient}` ({kind}, not supported)"),
            None => format!("`{recipient}`"),
        })
        .chain(
            foreign
                .iter()
                .map(|kind| format!("{kind} keys (not supported)")),
        )
        .collect();
    let sealed_for = if names.is_empty() {
        "nobody".into()
    } else {
        names.join(", ")
    };
    let keys = match given {
        0 => "no private key was given".into(),
        1 => "the one private key given does not fit".into(),
        given => format!("none of the {given} private keys given fits"),
    };
    format!("the document is sealed for {sealed_for}; {keys}")
}

/// Opens a sealed document.
///
/// Comments and layout stay as they are wherever the result reads back correctly; where it
/// would not, the document is laid out anew.
pub fn open(text: &str, identities: &Identities) -> Result<PlainText, OpenError> {
    let tree = document::parse(text).map_err(OpenError::Document)?;
    let block = tree.field("sops").ok_or(OpenError::NotSealed)?;
    let metadata = Metadata::parse(block).map_err(OpenError::Metadata)?;
    let key = data_key(&metadata, identities)?;
    let opened = unseal(text, tree, &metadata, &key)?;
    Ok(PlainText::new(opened.render(text)))
}

/// A document whose values were decrypted and checked.
pub(crate) struct Opened {
    tree: Value,
    layout: Layout,
    /// By number of the value; `None` for one that was not encrypted.
    scalars: Vec<Option<Scalar>>,
    /// By number of the comment; `None` for one that stays as it is.
    comments: Vec<Option<Zeroizing<String>>>,
    /// Every ciphertext with its place and what it hides.
    pub(crate) ciphertexts: Vec<Ciphertext>,
}

/// A ciphertext and what it hides.
pub(crate) struct Ciphertext {
    /// The place it is bound to.
    pub(crate) place: String,
    /// What it hides, as it reads when opened.
    pub(crate) scalar: Scalar,
    /// Whether it is a comment.
    pub(crate) subject: Subject,
    /// The text.
    pub(crate) sealed: String,
}

/// Recovers the key all values are encrypted with.
pub(crate) fn data_key(metadata: &Metadata, identities: &Identities) -> Result<DataKey, OpenError> {
    let open_group = |group: &Vec<_>| {
        group
            .iter()
            .find_map(|key: &crate::metadata::WrappedKey| identities.unwrap(&key.enc))
    };
    let shares: Vec<_> = metadata.groups.iter().filter_map(open_group).collect();
    if shares.is_empty() {
        return Err(OpenError::NoKeyFits {
            recipients: metadata.keys().map(|key| key.recipient.clone()).collect(),
            given: identities.len(),
            foreign: metadata.foreign.clone(),
        });
    }
    if metadata.groups.len() == 1 {
        return DataKey::from_bytes(&shares[0]).ok_or(OpenError::BadDataKey);
    }
    if shares.len() < metadata.threshold {
        return Err(OpenError::TooFewGroups {
            opened: shares.len(),
            needed: metadata.threshold,
        });
    }
    let key = shamir::combine(&shares).ok_or(OpenError::BadDataKey)?;
    DataKey::from_bytes(&key).ok_or(OpenError::BadDataKey)
}

/// Decrypts all values and checks the MAC.
pub(crate) fn unseal(
    text: &str,
    tree: Value,
    metadata: &Metadata,
    key: &DataKey,
) -> Result<Opened, OpenError> {
    let layout = Layout::of(text, &tree).map_err(OpenError::Layout)?;
    let mut unsealer = Unsealer {
        text,
        layout: &layout,
        key,
        mac: Mac::new(&metadata.rules),
        scalars: vec![None; layout.leaves.len()],
        comments: vec![None; layout.comments.len()],
        ciphertexts: Vec::new(),
    };
    layout.walk(text, &mut |visit, path, comments| match visit {
        Visit::Leaf(nth, leaf) => {
            let encrypted = metadata.rules.encrypts(path, comments, Subject::Value);
            unsealer.leaf(nth, leaf, encrypted)
        }
        Visit::Comment(nth, comment) => {
            if metadata.rules.encrypts(path, comments, Subject::Comment) {
                unsealer.comment(nth, comment);
            }
            Ok(())
        }
    })?;
    let Unsealer {
        mac,
        scalars,
        comments,
        ciphertexts,
        ..
    } = unsealer;
    let (_, expected) =
        cipher::decrypt(key, &metadata.mac, &metadata.last_modified).map_err(OpenError::Mac)?;
    if expected.as_slice() != mac.finish().as_bytes() {
        return Err(OpenError::MacMismatch);
    }
    Ok(Opened {
        tree,
        layout,
        scalars,
        comments,
        ciphertexts,
    })
}

struct Unsealer<'a> {
    text: &'a str,
    layout: &'a Layout,
    key: &'a DataKey,
    mac: Mac,
    scalars: Vec<Option<Scalar>>,
    comments: Vec<Option<Zeroizing<String>>>,
    ciphertexts: Vec<Ciphertext>,
}

impl Unsealer<'_> {
    fn leaf(&mut self, nth: usize, leaf: &Leaf, encrypted: bool) -> Result<(), OpenError> {
        if !encrypted {
            let bytes = scalar::mac_of_visible(&leaf.scalar).map_err(|_| OpenError::TooLarge {
                path: leaf.path.join("."),
            })?;
            self.mac.visible(&bytes.unwrap_or_default());
            return Ok(());
        }
        // SOPS leaves empty text as it is: there is nothing to hide.
        if leaf.scalar.text.is_empty() {
            return Ok(());
        }
        let fault = |source| OpenError::Value {
            path: leaf.path.join("."),
            source,
        };
        let place = place_name(&leaf.path);
        let sealed = leaf.scalar.text.as_str();
        let (kind, bytes) = cipher::decrypt(self.key, sealed, &place).map_err(fault)?;
        let (scalar, plain) = scalar::opened(kind, &bytes).map_err(fault)?;
        self.mac.encrypted(&plain.mac);
        self.ciphertexts.push(Ciphertext {
            place,
            scalar: scalar.clone(),
            subject: Subject::Value,
            sealed: sealed.to_owned(),
        });
        self.scalars[nth] = Some(scalar);
        Ok(())
    }

    /// Decrypts a comment if it can be. Files hold comments that were never encrypted, and
    /// the MAC does not cover comments, so one that does not open is left as it is.
    fn comment(&mut self, nth: usize, comment: &Comment) {
        let sealed = comment.text(self.text);
        if !cipher::looks_sealed(sealed) {
            return;
        }
        let places = std::iter::once(&comment.collection).chain(&comment.others);
        for collection in places {
            let place = place_name(&self.layout.collections[*collection].path);
            let Ok((Kind::Comment, bytes)) = cipher::decrypt(self.key, sealed, &place) else {
                continue;
            };
            let Ok(text) = std::str::from_utf8(&bytes) else {
                return;
            };
            if text.contains(['\n', '\r']) {
                return;
            }
            self.ciphertexts.push(Ciphertext {
                place,
                scalar: Scalar::text(text),
                subject: Subject::Comment,
                sealed: sealed.to_owned(),
            });
            self.comments[nth] = Some(Zeroizing::new(text.to_owned()));
            return;
        }
    }
}

impl Opened {
    /// Returns the plain tree.
    pub(crate) fn plain_tree(&self) -> Value {
        document::with_values(&self.tree, &self.scalars)
    }

    /// Writes the plain document.
    pub(crate) fn render(&self, text: &str) -> String {
        let tree = self.plain_tree();
        let kept = Zeroizing::new(self.edited(text));
        match document::parse(&kept) {
            Ok(read) if read == tree => kept.to_string(),
            _ => emit(&tree),
        }
    }

    fn edited(&self, text: &str) -> String {
        let mut edits = Vec::new();
        edits.extend(
            self.layout
                .metadata
                .clone()
                .map(|lines| (lines, String::new())),
        );
        for (leaf, scalar) in self.layout.leaves.iter().zip(&self.scalars) {
            let Some(scalar) = scalar else { continue };
            let block = document::as_block(scalar, self.layout.indent(leaf.collection))
                .filter(|_| !leaf.flow);
            if let Some((header, lines)) = block {
                // A comment may stand behind the value; the lines go below it.
                let end = layout::line_end(text, leaf.range.end);
                edits.push((leaf.range.clone(), header.to_owned()));
                edits.push((end..end, lines));
            } else {
                edits.push((leaf.range.clone(), spell(leaf, scalar)));
            }
            edits.extend(leaf.cut.clone().map(|lines| (lines, String::new())));
        }
        for (comment, plain) in self.layout.comments.iter().zip(&self.comments) {
            let Some(plain) = plain else { continue };
            edits.push((comment.range.clone(), format!("#{}", **plain)));
        }
        layout::replace(text, edits)
    }
}

fn spell(leaf: &Leaf, scalar: &Scalar) -> String {
    let spelled = emit_scalar(scalar);
    // Between brackets a comma ends a value.
    if leaf.flow && !spelled.starts_with('"') && spelled.contains(',') {
        format!("\"{spelled}\"")
    } else {
        spelled
    }
}
