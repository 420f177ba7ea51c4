//! Decrypts and encrypts SOPS files (YAML, age keys); see [`open`], [`seal`] and [`keygen`].
//!
//! No access to files, environment or clock. Secrets never appear in errors, `Debug` or `Display`.
#![doc = "
```
use homestak_secrets::{Identities, Rules, Sealing, keygen, open, seal};

let pair = keygen(\"2026-01-31T12:00:00Z\");
let sealing = Sealing {
    recipients: &[pair.recipient],
    rules: &Rules::default(),
    now: \"2026-01-31T12:00:00Z\",
    previous: None,
};
let sealed = seal(\"root_password: hunter2 # ours\\n\", &sealing).expect(\"it is YAML\");
assert!(!sealed.contains(\"hunter2\") && !sealed.contains(\"ours\"));

let identities = Identities::parse(pair.file.expose()).expect(\"it is a keys file\");
let plain = open(&sealed, &identities).expect(\"the key fits\");
assert_eq!(plain.expose(), \"root_password: hunter2 # ours\\n\");
```
"]

mod cipher;
mod creation_rule;
mod document;
mod key_source;
mod keys;
mod layout;
mod mac;
mod metadata;
mod open;
mod plain_text;
mod previous;
mod rules;
mod scalar;
mod seal;
mod shamir;
mod timestamp;

pub use cipher::CipherError;
pub use creation_rule::{CreationError, CreationRule, creation_rule_for};
pub use document::DocumentError;
pub use key_source::{KeySource, key_sources};
pub use keys::{Identities, KeyError, KeyPair, Recipient, keygen};
pub use layout::LayoutError;
pub use metadata::{MetadataError, is_sealed};
pub use open::{OpenError, open};
pub use plain_text::PlainText;
pub use rules::{Pattern, PatternError, Rules, Selection};
pub use seal::{Previous, SealError, Sealing, seal};
