//! Decrypts an encrypted document. A document whose MAC does not match is always refused.

use homestak_core::doc::emit::{emit, emit_scalar};
use homestak_core::doc::{Scalar, Value};
use zeroize::Zeroizing;

use crate::cipher::{self, CipherError, DataKey, KEY_LEN, ValueType};
use crate::document::{self, DocumentError};
use crate::keys::{self, Identities};
use crate::layout::{self, Comment, Layout, LayoutError, Leaf, WalkItem, aad};
use crate::mac::Mac;
use crate::metadata::{Metadata, MetadataError};
use crate::plain_text::PlainText;
use crate::rules::Subject;
use crate::{scalar, shamir};

/// Why an encrypted document could not be decrypted.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text is not a YAML mapping.
    #[error("read the encrypted document")]
    Document(#[source] DocumentError),
    /// The document has no `sops` block.
    #[error("the document is not encrypted: it has no `sops` block")]
    NotSealed,
    /// The `sops` block is invalid.
    #[error("read the `sops` block")]
    Metadata(#[source] MetadataError),
    /// The document uses YAML features that SOPS never writes.
    #[error("find the values of the encrypted document")]
    Layout(#[source] LayoutError),
    /// None of the private keys belongs to a recipient.
    #[error("{}", no_matching_key(.recipients, *.given, .unsupported))]
    NoMatchingKey {
        /// Recipients of the document.
        recipients: Vec<String>,
        /// Number of private keys tried.
        given: usize,
        /// Other kinds of keys of the document, by their SOPS names.
        unsupported: Vec<&'static str>,
    },
    /// Too few key groups could be decrypted.
    #[error("only {opened} of {needed} required key groups could be decrypted")]
    TooFewGroups {
        /// Number of decrypted groups.
        opened: usize,
        /// Number of required groups.
        needed: usize,
    },
    /// The data key has the wrong length.
    #[error("the decrypted data key does not have {KEY_LEN} bytes")]
    BadDataKey,
    /// One value could not be decrypted.
    #[error("decrypt `{path}`")]
    Value {
        /// Path of the value, joined with `.`.
        path: String,
        /// The error.
        source: CipherError,
    },
    /// A number that SOPS does not support.
    #[error("`{path}` is an integer that sops does not support")]
    TooLarge {
        /// Path of the value, joined with `.`.
        path: String,
    },
    /// The MAC itself could not be decrypted.
    #[error("decrypt the MAC of the document")]
    Mac(#[source] CipherError),
    /// Values were changed, moved, added or removed after encrypting.
    #[error("the document was modified after it was encrypted: the MAC does not match")]
    MacMismatch,
}

fn no_matching_key(recipients: &[String], given: usize, unsupported: &[&str]) -> String {
    let names: Vec<String> = recipients
        .iter()
        .map(|recipient| match keys::unsupported(recipient) {
            Some(kind) => format!("`{recipient}` ({kind}, not supported)"),
            None => format!("`{recipient}`"),
        })
        .chain(
            unsupported
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
        1 => "the private key given does not match".into(),
        given => format!("none of the {given} private keys given matches"),
    };
    format!("the document is encrypted for {sealed_for}; {keys}")
}

/// Decrypts an encrypted document.
///
/// Comments and layout are kept if the result parses to the expected values; otherwise the document
/// is reformatted.
pub fn open(text: &str, identities: &Identities) -> Result<PlainText, OpenError> {
    let tree = document::parse(text).map_err(OpenError::Document)?;
    let block = tree.field("sops").ok_or(OpenError::NotSealed)?;
    let metadata = Metadata::parse(block).map_err(OpenError::Metadata)?;
    let key = data_key(&metadata, identities)?;
    let opened = unseal(text, tree, &metadata, &key)?;
    Ok(PlainText::new(opened.render(text)))
}

/// A decrypted and verified document.
pub(crate) struct Opened {
    tree: Value,
    layout: Layout,
    /// Decrypted values by index; `None` if not encrypted.
    scalars: Vec<Option<Scalar>>,
    /// Decrypted comments by index; `None` if unchanged.
    comments: Vec<Option<Zeroizing<String>>>,
    /// Every ciphertext with its plain value.
    pub(crate) ciphertexts: Vec<Ciphertext>,
}

/// A ciphertext and its plain value.
pub(crate) struct Ciphertext {
    /// The additional data it is bound to.
    pub(crate) aad: String,
    /// The decrypted value.
    pub(crate) scalar: Scalar,
    /// Whether it is a comment.
    pub(crate) subject: Subject,
    /// The ciphertext.
    pub(crate) sealed: String,
}

/// Decrypts the data key.
pub(crate) fn data_key(metadata: &Metadata, identities: &Identities) -> Result<DataKey, OpenError> {
    let open_group = |group: &Vec<_>| {
        group
            .iter()
            .find_map(|key: &crate::metadata::WrappedKey| identities.unwrap(&key.enc))
    };
    let shares: Vec<_> = metadata.groups.iter().filter_map(open_group).collect();
    if shares.is_empty() {
        return Err(OpenError::NoMatchingKey {
            recipients: metadata.keys().map(|key| key.recipient.clone()).collect(),
            given: identities.len(),
            unsupported: metadata.unsupported.clone(),
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

/// Decrypts all values and verifies the MAC.
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
        WalkItem::Leaf(nth, leaf) => {
            let encrypted = metadata.rules.encrypts(path, comments, Subject::Value);
            unsealer.leaf(nth, leaf, encrypted)
        }
        WalkItem::Comment(nth, comment) => {
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
        // SOPS does not encrypt empty strings.
        if leaf.scalar.text.is_empty() {
            return Ok(());
        }
        let error = |source| OpenError::Value {
            path: leaf.path.join("."),
            source,
        };
        let aad = aad(&leaf.path);
        let sealed = leaf.scalar.text.as_str();
        let (kind, bytes) = cipher::decrypt(self.key, sealed, &aad).map_err(error)?;
        let (scalar, plain) = scalar::opened(kind, &bytes).map_err(error)?;
        self.mac.encrypted(&plain.mac);
        self.ciphertexts.push(Ciphertext {
            aad,
            scalar: scalar.clone(),
            subject: Subject::Value,
            sealed: sealed.to_owned(),
        });
        self.scalars[nth] = Some(scalar);
        Ok(())
    }

    /// Decrypts a comment, if possible. Comments may be unencrypted, and the MAC does not cover
    /// them, so one that cannot be decrypted stays as it is.
    fn comment(&mut self, nth: usize, comment: &Comment) {
        let sealed = comment.text(self.text);
        if !cipher::is_ciphertext(sealed) {
            return;
        }
        let collections = std::iter::once(&comment.collection).chain(&comment.others);
        for collection in collections {
            let aad = aad(&self.layout.collections[*collection].path);
            let Ok((ValueType::Comment, bytes)) = cipher::decrypt(self.key, sealed, &aad) else {
                continue;
            };
            let Ok(text) = std::str::from_utf8(&bytes) else {
                return;
            };
            if text.contains(['\n', '\r']) {
                return;
            }
            self.ciphertexts.push(Ciphertext {
                aad,
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
    /// Returns the decrypted tree.
    pub(crate) fn plain_tree(&self) -> Value {
        document::with_values(&self.tree, &self.scalars)
    }

    /// Renders the decrypted document.
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
                // A comment may follow the header; the lines are inserted below it.
                let end = layout::line_end(text, leaf.range.end);
                edits.push((leaf.range.clone(), header.to_owned()));
                edits.push((end..end, lines));
            } else {
                edits.push((leaf.range.clone(), inline(leaf, scalar)));
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

fn inline(leaf: &Leaf, scalar: &Scalar) -> String {
    let text = emit_scalar(scalar);
    // Between brackets a comma ends a value.
    if leaf.flow && !text.starts_with('"') && text.contains(',') {
        format!("\"{text}\"")
    } else {
        text
    }
}
