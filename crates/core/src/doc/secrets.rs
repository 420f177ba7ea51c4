//! `secrets.yaml`: secrets of a site. Values never appear in messages; only ids, kinds and
//! positions do.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::code::Code;
use super::declare::document;
use super::decode::{Context, Decode, Spanned};
use super::node_config::PublicKey;
use super::scalar::Version;
use super::schema::Definitions;
use super::tree::Value;

/// A secret value. It has no `Debug`, `Display` or `Serialize`; the only way out is `expose`.
///
/// ```compile_fail
/// let secret = homestak_core::doc::secrets::Secret::new("x");
/// format!("{secret:?}");
/// ```
///
/// ```compile_fail
/// let secret = homestak_core::doc::secrets::Secret::new("x");
/// format!("{secret}");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// Returns the value, for the call that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Decode for Secret {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        cx.text(value).map(Self::new)
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        serde_json::json!({ "type": "string" })
    }
}

/// Secrets by id.
pub type SecretMap = BTreeMap<String, Spanned<Secret>>;

document! {
    /// Secrets of a site.
    SecretsFile as "the secrets file" {
        /// Always 1.
        schema_version: Version<1>,
        /// Tokens for Proxmox VE's API, `user@realm!id=secret`, by node.
        api_tokens: SecretMap,
        /// Password hashes. `vm_root` is root's, in exports for OpenTofu only: first boot sets no password.
        passwords: SecretMap,
        /// Public SSH keys by id; the id is usually the key's comment.
        ssh_keys: SecretMap,
        /// Signing key, and tokens of earlier versions.
        auth: Auth,
        /// A private SSH key, present only while a host is being set up.
        private_key: Secret,
    }
}

document! {
    /// Signing key, and tokens of earlier versions.
    Auth as "auth" {
        /// Key that signs provisioning tokens: 64 hexadecimal digits.
        signing_key: Secret,
        /// Token of the site in earlier versions; no longer used.
        site_token: Secret,
        /// Tokens of nodes in earlier versions; no longer used.
        node_tokens: SecretMap,
    }
}

impl SecretsFile {
    /// Checks the format of secrets without quoting them.
    pub fn check(&self, cx: &mut Context<'_>) {
        if let Some(key) = self
            .auth
            .as_ref()
            .and_then(|auth| auth.signing_key.as_ref())
        {
            let good =
                key.expose().len() == 64 && key.expose().bytes().all(|b| b.is_ascii_hexdigit());
            if !good && !key.expose().is_empty() {
                cx.error(
                    Code::SigningKey,
                    key.span,
                    "`auth.signing_key` is not 64 hexadecimal digits",
                    "create one with `openssl rand -hex 32`",
                );
            }
        }
        for (id, key) in self.ssh_keys.iter().flat_map(|keys| &keys.value) {
            if key.expose().contains("PRIVATE KEY") {
                cx.error(
                    Code::Malformed,
                    key.span,
                    format!("`ssh_keys.{id}` is a private key"),
                    "put the public key here (the line of the `.pub` file), and replace the private key, which is compromised",
                );
            } else if !key.expose().is_empty() && PublicKey::parse(key.expose()).is_none() {
                cx.error(
                    Code::Malformed,
                    key.span,
                    format!("`ssh_keys.{id}` is not a public SSH key"),
                    "write the line of the `.pub` file: `ssh-ed25519 AAAA... comment`",
                );
            }
        }
        for (id, token) in self.api_tokens.iter().flat_map(|tokens| &tokens.value) {
            let text = token.expose();
            let formed = text.contains('!') && text.contains('=');
            if !formed && !text.is_empty() {
                cx.error(
                    Code::Malformed,
                    token.span,
                    format!("`api_tokens.{id}` is not an API token"),
                    "write it as `user@realm!tokenid=secret`, as `pveum user token add` prints it",
                );
            }
        }
    }
}
