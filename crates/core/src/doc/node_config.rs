//! Keys of `config` that the agent acts on: files, kernel settings, and how it converges.

use std::collections::BTreeMap;

use serde_json::json;

use super::code::Code;
use super::declare::{choice, document};
use super::decode::{Context, Decode, Spanned};
use super::scalar::{Unit, UserName};
use super::schema::Definitions;
use super::tree::{Meaning, Value};

choice! {
    /// What is done about SSH keys on a node that are not in its spec.
    ForeignKeys {
        /// They are reported, and stay.
        Report = "report",
        /// They are removed.
        Remove = "remove",
    }
}

choice! {
    /// What is done about a difference between a node and its spec.
    DriftPolicy {
        /// It is corrected.
        Enforce = "enforce",
        /// It is only reported.
        Report = "report",
        /// It is not checked.
        Ignore = "ignore",
    }
}

document! {
    /// How a node converges.
    #[derive(Debug, PartialEq)]
    ConvergeConfig as "config.converge" {
        /// What is done about SSH keys on a node that are not in its spec.
        foreign_keys default "report": ForeignKeys,
        /// What automatic drift correction does about changes on the node.
        drift default "enforce": DriftPolicy,
        /// The same for individual fields: ids as shown by `config check`, or patterns with `*`.
        fields: FieldPolicies,
    }
}

/// What is done about individual fields, by id or pattern.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldPolicies(pub BTreeMap<String, Spanned<DriftPolicy>>);

impl Decode for FieldPolicies {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let fields = BTreeMap::<String, Spanned<DriftPolicy>>::decode(value, cx)?;
        for (pattern, policy) in &fields {
            // Every id contains a `/`, so this would never match.
            if !pattern.contains(['/', '*']) {
                let message = format!("{} is not the id of a field", cx.quoted(pattern));
                let hint = format!(
                    "use an id as shown by `config check`, such as `sshd/Port`, or a pattern: `{pattern}/*`"
                );
                cx.error(Code::Malformed, policy.span, message, hint);
            }
        }
        Some(Self(fields))
    }
    fn schema(definitions: &mut Definitions) -> serde_json::Value {
        json!({
            "type": "object",
            "propertyNames": { "pattern": "[/*]" },
            "additionalProperties": DriftPolicy::schema(definitions),
        })
    }
}

document! {
    /// A managed file.
    #[derive(Debug, PartialEq)]
    ManagedFile as "the file" {
        /// Absolute path.
        path = required: AbsolutePath,
        /// Content.
        content = required: String,
        /// Mode, in octal.
        mode default "\"0644\"": Mode,
        /// Owner.
        owner default "root": UserName,
        /// Group.
        group default "root": UserName,
        /// Units that are restarted when it changes.
        restart: Vec<Spanned<Unit>>,
    }
}

/// The mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mode(pub u32);

impl Decode for Mode {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        let octal =
            (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| octal);
        if mode.is_none() {
            let message = format!("{} is not a file mode", cx.quoted(text));
            cx.error(
                Code::Malformed,
                value.span,
                message,
                "write three or four octal digits, such as `\"0644\"`",
            );
        }
        mode.map(Self)
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": "^[0-7]{3,4}$" })
    }
}

/// An absolute, normalized path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbsolutePath(pub String);

impl Decode for AbsolutePath {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        let good = text.len() > 1
            && text.starts_with('/')
            && !text.chars().any(char::is_control)
            && text
                .split('/')
                .skip(1)
                .all(|part| !matches!(part, "" | "." | ".."));
        if !good {
            let message = format!("{} is not an absolute path", cx.quoted(text));
            cx.error(
                Code::Malformed,
                value.span,
                message,
                "start with `/`, without `.`, `..` or `//`",
            );
        }
        good.then(|| Self(text.to_owned()))
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": "^(/[^/]+)+$" })
    }
}

/// The value of a kernel setting, as a string; numbers need no quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelValue(pub String);

impl Decode for KernelValue {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let scalar = value.scalar();
        let valid = scalar.filter(|scalar| match scalar.meaning() {
            Meaning::Int(_) | Meaning::Text => {
                !scalar.text.is_empty() && !scalar.text.chars().any(char::is_control)
            }
            Meaning::Bool(_) | Meaning::Null | Meaning::Float(_) | Meaning::Ambiguous => false,
        });
        let Some(scalar) = valid else {
            return cx.wrong_type(value, "a number or a one-line string");
        };
        Some(Self(
            scalar.text.split_whitespace().collect::<Vec<_>>().join(" "),
        ))
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] })
    }
}

/// A public SSH key: type, key, and an optional comment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub String);

impl PublicKey {
    /// Parses a key.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut words = text.split_ascii_whitespace();
        let kind = words.next()?;
        let known = ["ssh-", "ecdsa-", "sk-"]
            .iter()
            .any(|start| kind.starts_with(start));
        let key = words.next()?;
        let base64 = key.len() >= 4
            && key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='));
        (known && base64 && !text.chars().any(char::is_control)).then(|| Self(text.to_owned()))
    }
}

impl Decode for PublicKey {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let key = Self::parse(cx.text(value)?);
        if key.is_none() {
            cx.error(
                Code::Malformed,
                value.span,
                "this is not a public SSH key",
                "write type and key, such as `ssh-ed25519 AAAA... name`; render the spec with its secrets, not with `(hidden)`",
            );
        }
        key
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": "^(ssh-|ecdsa-|sk-)\\S+ \\S+" })
    }
}
