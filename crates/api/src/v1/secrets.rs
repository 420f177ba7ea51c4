//! Secrets files and their keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file that is encrypted and can be decrypted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsCheck {
    /// Always `true`.
    pub success: bool,
    /// The file.
    pub file: String,
    /// Always `true`.
    pub sealed: bool,
    /// The age recipients that can decrypt it.
    pub recipients: Vec<String>,
}

/// A file that was decrypted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsDecrypted {
    /// Always `true`.
    pub success: bool,
    /// The plain file.
    pub file: String,
}

/// A file that was edited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsEdited {
    /// Always `true`.
    pub success: bool,
    /// The file.
    pub file: String,
    /// Whether it is encrypted.
    pub sealed: bool,
}

/// A file that was encrypted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsEncrypted {
    /// Always `true`.
    pub success: bool,
    /// The encrypted file.
    pub file: String,
    /// The age recipients that can decrypt it.
    pub recipients: Vec<String>,
    /// Whether a key of this machine can decrypt it.
    pub can_be_opened_here: bool,
}

/// One secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretValue {
    /// Its id, such as `passwords.vm_root`.
    pub id: String,
    /// Its value.
    pub value: String,
}

/// A new age key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsKey {
    /// Always `true`.
    pub success: bool,
    /// The file with the private key.
    pub file: String,
    /// The recipient, which is public.
    pub recipient: String,
}
