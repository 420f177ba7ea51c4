//! Git repositories whose new commits start a run: the address, the branch, and who signs commits.

use serde_json::json;

use super::code::Code;
use super::decode::{Context, Decode};
use super::node_config::PublicKey;
use super::schema::Definitions;
use super::tree::Value;

/// The longest address and branch.
const LONGEST: usize = 512;

/// The address of a repository: `https://`, `ssh://`, or an absolute path on the server's machine.
///
/// Other forms are refused, because git runs programs for some (`ext::`) and reads some as options.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GitUrl(String);

impl GitUrl {
    /// Returns the address if it has one of the supported forms.
    pub fn new(text: &str) -> Option<Self> {
        let clean = |text: &str| {
            !text
                .chars()
                .any(|c| c.is_control() || c.is_whitespace() || c == '\\')
        };
        let is_supported = text.len() <= LONGEST
            && clean(text)
            && if let Some(rest) = text.strip_prefix("https://") {
                // No `@`: a password in a document would reach every node.
                split(rest).is_some_and(|(authority, _)| is_host(authority))
            } else if let Some(rest) = text.strip_prefix("ssh://") {
                split(rest).is_some_and(|(authority, _)| match authority.split_once('@') {
                    Some((user, host)) => is_word(user) && is_host(host),
                    None => is_host(authority),
                })
            } else {
                is_path(text)
            };
        is_supported.then(|| Self(text.to_owned()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it is a path on the machine of the server.
    pub fn is_local(&self) -> bool {
        self.0.starts_with('/')
    }
}

impl std::fmt::Display for GitUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Decode for GitUrl {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        let url = Self::new(text);
        if url.is_none() {
            let authority = text.split_once("://").and_then(|(_, rest)| split(rest));
            let has_password = authority.is_some_and(|(authority, _)| authority.contains('@'));
            // What is before `@` may be a password.
            let shown = match has_password {
                true => "this".to_owned(),
                false => cx.quoted(text),
            };
            cx.error(
                Code::Malformed,
                value.span,
                format!("{shown} is not the address of a repository"),
                if has_password {
                    "write the address without user and password; for a private repository use `ssh://USER@HOST/PATH`"
                } else {
                    "write `https://HOST/PATH`, `ssh://USER@HOST/PATH`, or an absolute path on the server's machine"
                },
            );
        }
        url
    }

    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": "^(https://[^@/\\s]+/\\S+|ssh://[^/\\s]+/\\S+|/[^/\\s]\\S*)$" })
    }
}

/// Returns the part before the path, and a path that is not empty.
fn split(text: &str) -> Option<(&str, &str)> {
    let (authority, path) = text.split_once('/')?;
    (!path.is_empty()).then_some((authority, path))
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((v6, port)) => {
            let is_address = v6.parse::<std::net::Ipv6Addr>().is_ok();
            let port = port.strip_prefix(':').or(port.is_empty().then_some("1"));
            (is_address, port)
        }
        None => {
            let (host, port) = text.split_once(':').unwrap_or((text, "1"));
            (is_word(host), Some(port))
        }
    };
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|n| n > 0)
    };
    host && port.is_some_and(is_port)
}

fn is_path(text: &str) -> bool {
    let parts = text.strip_prefix('/');
    parts.is_some_and(|parts| {
        let mut parts = parts.split('/');
        parts.all(|part| !["", ".", ".."].contains(&part))
    })
}

/// The name of a branch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GitBranch(String);

impl GitBranch {
    /// Returns the name if git allows it and it cannot be read as an option or a pattern.
    pub fn new(text: &str) -> Option<Self> {
        let is_part = |part: &str| {
            !part.is_empty()
                && !part.starts_with(['.', '-'])
                && !part.ends_with(['.'])
                && !part.ends_with(".lock")
        };
        let is_allowed = text.len() <= LONGEST
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._/+-".contains(&byte))
            && !text.contains("..")
            && text.split('/').all(is_part);
        is_allowed.then(|| Self(text.to_owned()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for GitBranch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Decode for GitBranch {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        let branch = Self::new(text);
        if branch.is_none() {
            let message = format!("{} is not the name of a branch", cx.quoted(text));
            let hint = "write the name without `refs/heads/`, with letters, digits, `.`, `_`, `/`, `+` and `-`";
            cx.error(Code::Malformed, value.span, message, hint);
        }
        branch
    }

    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": "^[A-Za-z0-9_+][A-Za-z0-9._/+-]*$" })
    }
}

/// Who signs commits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signer {
    /// A public SSH key: its type and the key, without a comment.
    Key(String),
    /// An id under `ssh_keys` in `secrets.yaml`.
    Id(String),
}

impl Signer {
    /// Returns the type and the key of a line of a `.pub` file, without its comment.
    pub fn key(line: &str) -> Option<String> {
        let key = PublicKey::parse(line)?;
        let mut words = key.0.split_ascii_whitespace();
        let (kind, key) = (words.next()?, words.next()?);
        let is_kind = kind
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"@.-".contains(&byte));
        is_kind.then(|| format!("{kind} {key}"))
    }
}

impl std::fmt::Display for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key(text) | Self::Id(text) => f.write_str(text),
        }
    }
}

impl Decode for Signer {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        if let Some(key) = Self::key(text) {
            return Some(Self::Key(key));
        }
        if !text.is_empty() && !text.contains(char::is_whitespace) {
            let id = text.strip_prefix("ssh_keys.").unwrap_or(text);
            return Some(Self::Id(id.to_owned()));
        }
        let message = format!(
            "{} is neither a public SSH key nor the id of one",
            cx.quoted(text)
        );
        let hint = "write the line of the `.pub` file, or an id under `ssh_keys` in `secrets.yaml`";
        cx.error(Code::Malformed, value.span, message, hint);
        None
    }

    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "minLength": 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_named_by_https_ssh_or_an_absolute_path() {
        for text in [
            "https://git.example/site.git",
            "https://git.example:8443/a/b",
            "https://[2001:db8::1]:8443/a",
            "ssh://git@git.example/site.git",
            "ssh://git.example:2222/~/site",
            "/srv/git/site.git",
        ] {
            assert!(GitUrl::new(text).is_some(), "{text}");
        }
    }

    #[test]
    fn addresses_that_git_runs_or_reads_as_options_are_refused() {
        for text in [
            "",
            "-",
            "--upload-pack=touch /tmp/x",
            "-oProxyCommand=x",
            "ext::sh -c touch% /tmp/x",
            "ext::sh",
            "fd::7",
            "transport::address",
            "file:///srv/git",
            "file://host/srv",
            "git://git.example/site",
            "http://git.example/site",
            "HTTPS://git.example/site",
            "ftp://git.example/site",
            "git@git.example:site.git",
            "git.example:site.git",
            "https://",
            "https:///site",
            "https://git.example",
            "https://git.example/",
            "https://user@git.example/site",
            "https://user:password@git.example/site",
            "https://-git.example/site",
            "https://git.example:0/site",
            "https://git.example:99999/site",
            "https://git.example/a b",
            "https://git.example/a\nb",
            "ssh://-oProxyCommand=x/site",
            "ssh://-u@git.example/site",
            "ssh://git:password@git.example/site",
            "ssh://git@-host/site",
            "site",
            "./site",
            "../site",
            "/",
            "//srv/git",
            "/srv/../etc",
            "/srv/./git",
            "/srv/git/",
            "~/site",
            "C:\\site",
            "/srv\\git",
        ] {
            assert!(GitUrl::new(text).is_none(), "{text:?}");
        }
        assert!(GitUrl::new(&format!("/{}", "a".repeat(600))).is_none());
    }

    #[test]
    fn branches_are_plain_names() {
        for text in ["main", "release/1.0", "a_b+c", "1"] {
            assert!(GitBranch::new(text).is_some(), "{text}");
        }
        for text in [
            "", "-x", "--help", "a..b", "a//b", "/a", "a/", "a/.b", ".a", "a.lock", "a.lock/b",
            "a b", "a*", "a?", "a[b", "a:b", "a~1", "a^", "a@{1}", "a\\b", "a.", "ä", "a\n",
            "a/-b",
        ] {
            assert!(GitBranch::new(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_signer_is_a_key_without_its_comment() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBB";
        assert_eq!(
            Signer::key(&format!("  {key} me@here ")).as_deref(),
            Some(key)
        );
        assert_eq!(Signer::key("ssh-ed25519"), None);
        assert_eq!(Signer::key(&format!("{key}\nx {key}")), None);
        assert_eq!(Signer::key("ssh-\"x\",* AAAA"), None);
        assert_eq!(Signer::key("cert-authority ssh-ed25519 AAAA"), None);
    }
}
