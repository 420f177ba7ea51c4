//! UNSEALS: SOPS files (YAML, age keys) become plain documents, and plain documents sealed ones.
//!
//! In: texts, keys, rules, the time. Out: texts; see [`open`], [`seal`], [`keygen`].
//! Never: files, environment, clock; a secret in an error, in `Debug` or in `Display`.

mod cipher;
mod creation;
mod document;
mod keys;
mod layout;
mod metadata;
mod open;
mod place;
mod plain_text;
mod rules;
mod scalar;
mod seal;
mod shamir;
mod timestamp;

pub use cipher::CipherError;
pub use creation::{Creation, CreationError, creation_for};
pub use document::DocumentError;
pub use keys::{Identities, KeyError, KeyPair, Recipient, keygen};
pub use layout::LayoutError;
pub use metadata::{MetadataError, is_sealed};
pub use open::{OpenError, open};
pub use place::{Place, key_places};
pub use plain_text::PlainText;
pub use rules::{DEFAULT_SUFFIX, Pattern, PatternError, Rules, Selection};
pub use seal::{Previous, SealError, Sealing, seal};
