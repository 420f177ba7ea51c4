//! Decrypts and encrypts the secrets of a site with the user's age keys.
//!
//! Private keys never appear in messages, and are not kept longer than they are used.

mod seal;

use std::path::PathBuf;
use std::sync::Arc;

use homestak_core::doc::{Diagnostics, FileId, Source, Value, yaml};
use homestak_core::error::chain;
use homestak_secrets::{Identities, KeySource, OpenError, is_sealed, key_sources};
use zeroize::Zeroizing;

use crate::error::{DriverError, capitalized};
use crate::process;

pub use homestak_secrets::{KeyPair, PlainText, keygen};
pub use seal::{sealed_text, who};

/// Sources of age keys, as SOPS defines them.
#[derive(Clone)]
pub struct KeySources {
    sources: Vec<KeySource>,
    /// The keys in `SOPS_AGE_KEY`.
    held: Option<Arc<Zeroizing<String>>>,
}

impl KeySources {
    /// Reads the sources from environment variables.
    pub fn new(lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            sources: key_sources(lookup),
            held: lookup("SOPS_AGE_KEY").map(|text| Arc::new(Zeroizing::new(text))),
        }
    }

    /// Returns the default key file.
    pub fn default_file(&self) -> Option<PathBuf> {
        self.sources.iter().find_map(|source| match source {
            KeySource::DefaultFile(path) => Some(path.clone()),
            KeySource::Variable(_) | KeySource::NamedFile(_) | KeySource::Command(_) => None,
        })
    }

    /// Collects the identities of all sources.
    fn identities(&self) -> Result<Identities, String> {
        let mut all = Identities::default();
        for source in &self.sources {
            let (what, text) = match source {
                KeySource::Variable(name) => {
                    let held = self.held.as_ref().map(|held| held.to_string());
                    ((*name).to_owned(), held)
                }
                KeySource::NamedFile(path) => {
                    let text = fs_err::read_to_string(path)
                        .map_err(|error| format!("read the age key: {error}"))?;
                    (path.display().to_string(), Some(text))
                }
                KeySource::Command(line) => {
                    let text = process::output_of(line)
                        .map_err(|error| format!("run SOPS_AGE_KEY_CMD: {error}"))?;
                    ("SOPS_AGE_KEY_CMD".to_owned(), Some(text))
                }
                KeySource::DefaultFile(path) => (
                    path.display().to_string(),
                    fs_err::read_to_string(path).ok(),
                ),
            };
            let Some(text) = text.map(Zeroizing::new) else {
                continue;
            };
            all.extend(
                Identities::parse(&text)
                    .map_err(|error| format!("read the age key from {what}: {error}"))?,
            );
        }
        Ok(all)
    }
}

/// Why encrypted secrets could not be decrypted.
pub struct Failure {
    /// Whether only a key is missing; the file may be valid.
    pub no_key: bool,
    /// The message.
    pub message: String,
    /// The hint.
    pub hint: String,
}

impl From<Failure> for DriverError {
    fn from(failure: Failure) -> Self {
        Self::failed(capitalized(&failure.message) + ".").hint(failure.hint)
    }
}

/// Decrypts encrypted text; other text is returned unchanged.
pub fn open(text: &str, keys: &KeySources) -> Result<String, Failure> {
    if !sealed(text) {
        return Ok(text.to_owned());
    }
    open_sealed(text, keys).map(|plain| plain.expose().to_owned())
}

/// Returns whether a text is an encrypted document.
pub fn sealed(text: &str) -> bool {
    tree(text).is_some_and(|tree| is_sealed(&tree))
}

/// Parses text, without diagnostics.
pub fn tree(text: &str) -> Option<Value> {
    yaml::parse(
        FileId(0),
        &Source::secret("secrets", text),
        &mut Diagnostics::default(),
    )
}

/// Decrypts an encrypted document.
pub fn open_sealed(text: &str, keys: &KeySources) -> Result<PlainText, Failure> {
    let identities = keys.identities().map_err(|message| Failure {
        no_key: true,
        message,
        hint: "fix the key file, or name another one in SOPS_AGE_KEY_FILE".into(),
    })?;
    homestak_secrets::open(text, &identities).map_err(|error| match &error {
        OpenError::NoMatchingKey { .. } => Failure {
            no_key: true,
            message: format!("the secrets are encrypted, and no key decrypts them: {}", chain(&error)),
            hint: "put your age key into ~/.config/sops/age/keys.txt, or name its file in SOPS_AGE_KEY_FILE".into(),
        },
        OpenError::MacMismatch => Failure {
            no_key: false,
            message: chain(&error),
            hint: "restore the file from git; change it with `homestak secrets edit` only".into(),
        },
        _ => Failure {
            no_key: false,
            message: format!("the secrets cannot be decrypted: {}", chain(&error)),
            hint: "restore the file from git, or encrypt the secrets again".into(),
        },
    })
}
