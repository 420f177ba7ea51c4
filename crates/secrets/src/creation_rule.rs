//! `.sops.yaml`: recipients and encryption rules of a new file.

use homestak_core::doc::Value;

use crate::document::{self, DocumentError};
use crate::keys::{KeyError, Recipient};
use crate::rules::{Pattern, PatternError, Rules, Selection};

/// Fields with kinds of keys that are not supported.
const UNSUPPORTED: [&str; 8] = [
    "kms",
    "pgp",
    "gcp_kms",
    "azure_keyvault",
    "hc_vault_transit_uri",
    "hckms",
    "plugins",
    "merge",
];

/// An error in `.sops.yaml`.
#[derive(Debug, thiserror::Error)]
pub enum CreationError {
    /// The text is not a YAML mapping.
    #[error("read the creation rules")]
    Document(#[source] DocumentError),
    /// The document has no list `creation_rules`.
    #[error("the list `creation_rules` is missing")]
    NoRules,
    /// No rule matches the path.
    #[error("no creation rule matches `{path}`")]
    NoMatch {
        /// The path.
        path: String,
    },
    /// A field of a rule is invalid.
    #[error("`{field}` of creation rule {rule} {problem}")]
    Field {
        /// The rule, from one.
        rule: usize,
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A rule has an invalid regular expression.
    #[error("read creation rule {rule}")]
    Pattern {
        /// The rule, from one.
        rule: usize,
        /// The error.
        source: PatternError,
    },
    /// A rule has an invalid key.
    #[error("read creation rule {rule}")]
    Key {
        /// The rule, from one.
        rule: usize,
        /// The error.
        source: KeyError,
    },
}

/// How a new file is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreationRule {
    /// Recipients.
    pub recipients: Vec<Recipient>,
    /// Which values are encrypted.
    pub rules: Rules,
}

/// Returns the first rule that matches `path`, which is relative to `.sops.yaml`.
pub fn creation_rule_for(text: &str, path: &str) -> Result<CreationRule, CreationError> {
    let root = document::parse(text).map_err(CreationError::Document)?;
    let rules = root
        .field("creation_rules")
        .and_then(Value::items)
        .ok_or(CreationError::NoRules)?;
    for (nth, rule) in rules.iter().enumerate() {
        let pattern = rule.field("path_regex").and_then(Value::as_text);
        let matches = match pattern.filter(|pattern| !pattern.is_empty()) {
            None => true,
            Some(pattern) => Pattern::new(pattern)
                .map_err(|source| CreationError::Pattern {
                    rule: nth + 1,
                    source,
                })?
                .matches(path),
        };
        if matches {
            return creation(nth + 1, rule);
        }
    }
    Err(CreationError::NoMatch {
        path: path.to_owned(),
    })
}

fn creation(nth: usize, rule: &Value) -> Result<CreationRule, CreationError> {
    let error = |field: &str, problem| CreationError::Field {
        rule: nth,
        field: field.to_owned(),
        problem,
    };
    refuse_unsupported(nth, rule)?;
    let mut recipients = Vec::new();
    match rule.field("key_groups").and_then(Value::items) {
        None => collect(nth, rule, &mut recipients)?,
        Some([group]) => {
            refuse_unsupported(nth, group)?;
            collect(nth, group, &mut recipients)?;
        }
        Some(_) => return Err(error("key_groups", "must have exactly one group")),
    }
    if recipients.is_empty() {
        return Err(error("age", "has no recipient"));
    }
    let mut selections = Vec::new();
    for entry in rule.entries().unwrap_or_default() {
        let text = entry.value.as_text().unwrap_or_default();
        let selection = Selection::from_field(&entry.key.text, text)
            .map_err(|source| CreationError::Pattern { rule: nth, source })?;
        selections.extend(
            selection
                .filter(|_| !text.is_empty())
                .map(|selection| (entry.key.text.as_str(), selection)),
        );
    }
    if let [_, (second, _), ..] = selections.as_slice() {
        return Err(error(
            second,
            "conflicts with another rule of its kind; only one is allowed",
        ));
    }
    let flag = rule.field("mac_only_encrypted").and_then(Value::as_text);
    Ok(CreationRule {
        recipients,
        rules: Rules {
            selection: selections
                .pop()
                .map_or_else(|| Rules::default().selection, |(_, selection)| selection),
            mac_only_encrypted: flag.is_some_and(|flag| flag.eq_ignore_ascii_case("true")),
        },
    })
}

/// Refuses unsupported keys: ignoring them would lock their owners out.
fn refuse_unsupported(nth: usize, block: &Value) -> Result<(), CreationError> {
    let names_key = |field: &&str| {
        block.field(field).is_some_and(|value| {
            let text = value.as_text().is_some_and(|text| !text.is_empty());
            text || value.items().is_some_and(|items| !items.is_empty())
        })
    };
    match UNSUPPORTED.into_iter().find(names_key) {
        None => Ok(()),
        Some(field) => Err(CreationError::Field {
            rule: nth,
            field: field.to_owned(),
            problem: "has keys that are not supported; only `age` is",
        }),
    }
}

/// Adds the age recipients of a rule or group: a list, or a comma-separated string.
fn collect(
    nth: usize,
    block: &Value,
    recipients: &mut Vec<Recipient>,
) -> Result<(), CreationError> {
    let Some(value) = block.field("age").filter(|value| !value.is_null()) else {
        return Ok(());
    };
    let single = std::slice::from_ref(value);
    for item in value.items().unwrap_or(single) {
        let text = item.as_text().ok_or(CreationError::Field {
            rule: nth,
            field: "age".into(),
            problem: "is neither a string nor a list of strings",
        })?;
        for name in text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let recipient = Recipient::parse(name)
                .map_err(|source| CreationError::Key { rule: nth, source })?;
            if !recipients.contains(&recipient) {
                recipients.push(recipient);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::keygen;

    #[test]
    fn the_first_matching_rule_is_used() {
        let [one, two] = [keygen("x").recipient, keygen("x").recipient];
        let text = format!(
            "creation_rules:\n  - path_regex: ^secrets/.*\\.yaml$\n    age: '{one}, {two},'\n    encrypted_regex: ^(data)$\n    mac_only_encrypted: true\n  - age: [{two}]\n"
        );
        let first = creation_rule_for(&text, "secrets/site.yaml").unwrap();
        assert_eq!(first.recipients, [one, two.clone()]);
        assert!(first.rules.mac_only_encrypted);
        assert_eq!(
            first.rules.selection.field(),
            ("encrypted_regex", "^(data)$")
        );
        let other = creation_rule_for(&text, "other.yaml").unwrap();
        assert_eq!(other.recipients, [two]);
        assert_eq!(other.rules, Rules::default());
    }

    #[test]
    fn a_single_key_group_is_the_same_as_none() {
        let one = keygen("x").recipient;
        let text = format!("creation_rules:\n  - key_groups:\n      - age:\n          - {one}\n");
        assert_eq!(creation_rule_for(&text, "a").unwrap().recipients, [one]);
    }

    #[test]
    fn unsupported_rules_are_refused() {
        let age = keygen("x").recipient;
        let check = |rule: &str| {
            let text = format!("creation_rules:\n  - {rule}\n");
            creation_rule_for(&text, "a.yaml").unwrap_err().to_string()
        };
        assert!(check("path_regex: b").contains("no creation rule matches `a.yaml`"));
        assert!(check("{pgp: ABCD}").contains("`pgp` of creation rule 1 has keys"));
        assert!(check("{age: ''}").contains("has no recipient"));
        assert!(check("{age: ssh-rsa x}").contains("read creation rule 1"));
        assert!(check("path_regex: '('").contains("read creation rule 1"));
        assert!(check(&format!("{{age: {age}, key_groups: []}}")).contains("key_groups"));
        let both = format!("{{age: {age}, encrypted_suffix: a, encrypted_regex: b}}");
        assert!(check(&both).contains("only one is allowed"));
        assert!(matches!(
            creation_rule_for("a: 1\n", "x"),
            Err(CreationError::NoRules)
        ));
    }
}
