//! Whether the value of a secret is handed out or only named.
//!
//! In: a secret and its id. Out: the value, or a placeholder that says which secret it is.
//! Never: a value without being asked for it.

use crate::doc::secrets::{Secret, SecretMap};

/// Whether values of secrets are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reveal {
    /// Named only: `<secret ssh_keys.ops@desk>`.
    Masked,
    /// Handed out. Only for a private file, or on request.
    Exposed,
}

/// A secret and the id it is known by, such as `ssh_keys.ops@desk`.
#[derive(Clone)]
pub struct SecretRef {
    /// The id, which may be shown.
    pub id: String,
    /// The value, which may not.
    pub value: Secret,
}

impl SecretRef {
    /// Finds a secret in a section of the secrets file.
    pub fn find(section: &str, id: &str, secrets: Option<&SecretMap>) -> Option<Self> {
        let value = secrets?.get(id)?.value.clone();
        Some(Self {
            id: format!("{section}.{id}"),
            value,
        })
    }

    /// Returns the value or its placeholder.
    pub fn render(&self, reveal: Reveal) -> String {
        match reveal {
            Reveal::Masked => format!("<secret {}>", self.id),
            Reveal::Exposed => self.value.expose().to_owned(),
        }
    }
}
