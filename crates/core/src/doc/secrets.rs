//! `secrets.yaml`: secrets of a site. Values never appear in messages; only ids, kinds and
//! positions do.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::code::Code;
use super::declare::document;
use super::decode::{Context, Decode, Spanned};
use super::node_config::PublicKey;
use super::scalar::{Name, Version};
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
        /// Key and tokens for the first contact of nodes with the server.
        auth: Auth,
        /// A private SSH key, present only while a host is being set up.
        private_key: Secret,
    }
}

document! {
    /// Key and tokens for the first contact of nodes with the server.
    Auth as "auth" {
        /// Key that signs the tokens of `homestak token mint` and of exports: 64 hexadecimal digits.
        signing_key: Secret,
        /// Token that nodes share whose posture has `auth.method: site_token`.
        site_token: Secret,
        /// Tokens of nodes whose posture has `auth.method: node_token`, by node.
        node_tokens: SecretMap,
        /// Secrets of webhooks by name: 16 characters or more, or `whsec_` and 24 bytes or more in Base64.
        webhooks: SecretMap,
    }
}

/// The shortest secret of a webhook, in characters.
const SHORTEST_WEBHOOK: usize = 16;
/// The shortest key after `whsec_`, in bytes.
const SHORTEST_KEY: usize = 24;
/// The longest secret of a webhook, in characters.
const LONGEST_WEBHOOK: usize = 512;

/// Returns the key with which requests of a webhook are signed: the bytes of its secret, or those that
/// `whsec_` and Base64 stand for. `None` if it is too short or malformed.
pub fn webhook_key(secret: &str) -> Option<Zeroizing<Vec<u8>>> {
    if secret.len() > LONGEST_WEBHOOK || secret.chars().any(char::is_control) {
        return None;
    }
    match secret.strip_prefix("whsec_") {
        Some(encoded) => {
            let key = Zeroizing::new(STANDARD.decode(encoded).ok()?);
            (key.len() >= SHORTEST_KEY).then_some(key)
        }
        None => {
            let is_long = secret.trim().chars().count() >= SHORTEST_WEBHOOK;
            is_long.then(|| Zeroizing::new(secret.as_bytes().to_vec()))
        }
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
        self.check_webhooks(cx);
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

    fn check_webhooks(&self, cx: &mut Context<'_>) {
        let auth = self.auth.as_ref();
        let webhooks = auth.and_then(|auth| auth.webhooks.as_ref());
        let mut known = std::collections::BTreeSet::new();
        for (name, secret) in webhooks.into_iter().flat_map(|webhooks| &webhooks.value) {
            if !secret.expose().is_empty() && !known.insert(secret.expose()) {
                cx.error(
                    Code::WebhookSecret,
                    secret.span,
                    "two webhooks have the same secret, so a request for one would be accepted for the other",
                    "create one for each with `openssl rand -hex 32`",
                );
            }
            if Name::new(name).is_none() {
                cx.error(
                    Code::InvalidName,
                    secret.span,
                    "a key of `auth.webhooks` is not a name",
                    "use letters, digits, `.`, `_` and `-`; start with a letter or digit",
                );
            }
            if !secret.expose().is_empty() && webhook_key(secret.expose()).is_none() {
                cx.error(
                    Code::WebhookSecret,
                    secret.span,
                    "this secret of a webhook is too short or malformed",
                    "create one with `openssl rand -hex 32`",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_webhook_is_its_text_or_what_its_base64_stands_for() {
        let key = |text: &str| webhook_key(text).map(|key| key.to_vec());
        assert_eq!(key("0123456789abcdef"), Some(b"0123456789abcdef".to_vec()));
        let encoded = format!("whsec_{}", STANDARD.encode([7; 32]));
        assert_eq!(key(&encoded), Some(vec![7; 32]));
        let short = format!("whsec_{}", STANDARD.encode([7; 16]));
        for text in [
            "",
            "0123456789abcde",
            "                    ",
            "whsec_!!!!!!!!!!!!!!!!!!!!!!!!!!",
            &short,
        ] {
            assert_eq!(key(text), None, "{text:?}");
        }
        assert_eq!(key(&"x".repeat(600)), None);
        assert_eq!(key("0123456789abcdef\n"), None);
    }
}
