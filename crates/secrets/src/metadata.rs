//! The `sops` block of an encrypted file. Keys stay wrapped here.

use homestak_core::doc::emit::emit_scalar;
use homestak_core::doc::{Scalar, Value};

use crate::rules::{Rules, Selection};
use crate::timestamp;

/// The version written to files: the oldest with all features used here.
const FORMAT_VERSION: &str = "3.9.0";
/// Kinds of keys that are not supported, by the name of their list.
const UNSUPPORTED: [&str; 6] = ["kms", "gcp_kms", "azure_kv", "hc_vault", "pgp", "hckms"];

/// The data key, wrapped for one recipient.
#[derive(Clone, Debug)]
pub(crate) struct WrappedKey {
    /// Public key of the recipient.
    pub(crate) recipient: String,
    /// Armored age file.
    pub(crate) enc: String,
}

/// The content of a `sops` block.
pub(crate) struct Metadata {
    /// Keys by group; more than one group means shares of the key.
    pub(crate) groups: Vec<Vec<WrappedKey>>,
    /// How many groups are required.
    pub(crate) threshold: usize,
    /// Unsupported kinds of keys that are present.
    pub(crate) unsupported: Vec<&'static str>,
    /// Time of the last change in seconds, which the MAC is bound to.
    pub(crate) last_modified: String,
    /// The encrypted MAC.
    pub(crate) mac: String,
    /// Which values are encrypted.
    pub(crate) rules: Rules,
}

/// An error in a `sops` block.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`sops.{field}` {problem}")]
pub struct MetadataError {
    /// The field.
    pub field: &'static str,
    /// The problem.
    pub problem: &'static str,
}

impl Metadata {
    /// Parses the value of the `sops` key.
    pub(crate) fn parse(block: &Value) -> Result<Self, MetadataError> {
        let error = |field, problem| MetadataError { field, problem };
        let text = |field: &'static str| {
            block
                .field(field)
                .and_then(Value::as_text)
                .filter(|text| !text.is_empty())
                .ok_or(error(field, "is missing"))
        };
        let last_modified = timestamp::to_the_second(text("lastmodified")?)
            .ok_or(error("lastmodified", "is not a time"))?;
        let mut unsupported = unsupported_kinds(block);
        let top = wrapped_keys(block)?;
        let mut groups = Vec::new();
        let listed = block.field("key_groups").and_then(Value::items);
        if !top.is_empty() || !unsupported.is_empty() || listed.is_none() {
            groups.push(top);
        } else {
            for group in listed.unwrap_or_default() {
                groups.push(wrapped_keys(group)?);
                unsupported.extend(unsupported_kinds(group));
            }
        }
        unsupported.dedup();
        let threshold = match block.field("shamir_threshold").and_then(Value::as_text) {
            Some(text) => text
                .parse()
                .map_err(|_| error("shamir_threshold", "is not a number"))?,
            None => 0,
        };
        Ok(Self {
            // SOPS omits the threshold if every group is required.
            threshold: if threshold == 0 {
                groups.len()
            } else {
                threshold
            },
            groups,
            unsupported,
            last_modified,
            mac: text("mac")?.to_owned(),
            rules: rules(block)?,
        })
    }

    /// Returns the keys of all groups.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &WrappedKey> {
        self.groups.iter().flatten()
    }
}

fn unsupported_kinds(block: &Value) -> Vec<&'static str> {
    let present = |kind: &&str| {
        block
            .field(kind)
            .and_then(Value::items)
            .is_some_and(|items| !items.is_empty())
    };
    UNSUPPORTED.into_iter().filter(present).collect()
}

fn wrapped_keys(block: &Value) -> Result<Vec<WrappedKey>, MetadataError> {
    let items = block.field("age").and_then(Value::items);
    items
        .unwrap_or_default()
        .iter()
        .map(|item| {
            let text = |field: &str| item.field(field).and_then(Value::as_text);
            match (text("recipient"), text("enc")) {
                (Some(recipient), Some(enc)) => Ok(WrappedKey {
                    recipient: recipient.to_owned(),
                    enc: enc.to_owned(),
                }),
                _ => Err(MetadataError {
                    field: "age",
                    problem: "has an entry without `recipient` or `enc`",
                }),
            }
        })
        .collect()
}

/// Parses the rules.
fn rules(block: &Value) -> Result<Rules, MetadataError> {
    const FIELD: &str = "encrypted_regex";
    let mut selections = Vec::new();
    for entry in block.entries().unwrap_or_default() {
        let text = entry.value.as_text().unwrap_or_default();
        let selection =
            Selection::from_field(&entry.key.text, text).map_err(|_| MetadataError {
                field: FIELD,
                problem: "or one of its kind is not a supported regular expression",
            })?;
        selections.extend(selection.filter(|_| !text.is_empty()));
    }
    if selections.len() > 1 {
        return Err(MetadataError {
            field: FIELD,
            problem: "conflicts with another rule of its kind; only one is allowed",
        });
    }
    let flag = block.field("mac_only_encrypted").and_then(Value::as_text);
    Ok(Rules {
        selection: selections
            .pop()
            .unwrap_or_else(|| Rules::default().selection),
        mac_only_encrypted: flag.is_some_and(|flag| flag.eq_ignore_ascii_case("true")),
    })
}

/// Renders a `sops` block in the layout of SOPS.
pub(crate) fn render(keys: &[WrappedKey], last_modified: &str, mac: &str, rules: &Rules) -> String {
    let mut out = String::from("sops:\n    age:\n");
    for key in keys {
        out.push_str(&format!("        - recipient: {}\n", key.recipient));
        out.push_str("          enc: |\n");
        for line in key.enc.lines() {
            out.push_str(&format!("            {line}\n"));
        }
    }
    out.push_str(&format!("    lastmodified: \"{last_modified}\"\n"));
    out.push_str(&format!("    mac: {mac}\n"));
    let (field, text) = rules.selection.field();
    out.push_str(&format!(
        "    {field}: {}\n",
        emit_scalar(&Scalar::text(text))
    ));
    if rules.mac_only_encrypted {
        out.push_str("    mac_only_encrypted: true\n");
    }
    out.push_str(&format!("    version: {FORMAT_VERSION}\n"));
    out
}

/// Returns whether a document is encrypted: it has a `sops` block with MAC and time.
pub fn is_sealed(root: &Value) -> bool {
    root.field("sops")
        .is_some_and(|block| block.field("mac").is_some() && block.field("lastmodified").is_some())
}
