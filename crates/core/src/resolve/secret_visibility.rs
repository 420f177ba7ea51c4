//! Renders secrets as their value or as a placeholder with their id.

use crate::doc::secrets::{Secret, SecretMap};

/// Whether values of secrets are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretVisibility {
    /// A placeholder: `<secret ssh_keys.ops@desk>`.
    Masked,
    /// The value. Only for a private file, or on request.
    Exposed,
}

/// A secret with its id, such as `ssh_keys.ops@desk`.
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
    pub fn render(&self, visibility: SecretVisibility) -> String {
        match visibility {
            SecretVisibility::Masked => format!("<secret {}>", self.id),
            SecretVisibility::Exposed => self.value.expose().to_owned(),
        }
    }
}
