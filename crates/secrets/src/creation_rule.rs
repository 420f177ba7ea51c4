//! `.sops.yaml`: for whom a new file is sealed, and what of it.
//!
//! In: the text of `.sops.yaml` and a path. Out: recipients and [`Rules`], or the fault.
//! Never: looking for the file, or at the file to be sealed.

use homestak_core::doc::Value;

use crate::document::{self, DocumentError};
use crate::keys::{KeyError, Recipient};
use crate::rules::{Pattern, PatternError, Rules, Selection};

/// Fields that name keys in ways or of kinds we do not have.
const FOREIGN: [&str; 8] = [
    "kms",
    "pgp",
    "gcp_kms",
    "azure_keyvault",
    "hc_vault_transit_uri",
    "hckms",
    "plugins",
    "merge",
];

/// What is wrong with a `.sops.yaml`.
#[derive(Debug, thiserror::Error)]
pub enum CreationError {
    /// The text is not a document.
    #[error("read the creation rules")]
    Document(#[source] DocumentError),
    /// The document has no list `creation_rules`.
    #[error("there is no list `creation_rules`")]
    NoRules,
    /// No rule is for this path.
    #[error("no creation rule is for `{path}`")]
    NoMatch {
        /// The path as given.
        path: String,
    },
    /// A rule has a field of the wrong shape.
    #[error("`{field}` of creation rule {rule} {problem}")]
    Field {
        /// The rule, from one.
        rule: usize,
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A rule has an expression that cannot be used.
    #[error("read creation rule {rule}")]
    Pattern {
        /// The rule, from one.
        rule: usize,
        /// Which.
        source: PatternError,
    },
    /// A rule has a key that cannot be used.
    #[error("read creation rule {rule}")]
    Key {
        /// The rule, from one.
        rule: usize,
        /// Which.
        source: KeyError,
    },
}

/// How a new file is to be sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreationRule {
    /// For whom.
    pub recipients: Vec<Recipient>,
    /// What of it.
    pub rules: Rules,
}

/// Returns the first rule that is for `path`, which is relative to the `.sops.yaml`.
pub fn creation_rule_for(text: &str, path: &str) -> Result<CreationRule, CreationError> {
    let root = document::parse(text).map_err(CreationError::Document)?;
    let rules = root
        .field("creation_rules")
        .and_then(Value::items)
        .ok_or(CreationError::NoRules)?;
    for (nth, rule) in rules.iter().enumerate() {
        let pattern = rule.field("path_regex").and_then(Value::as_text);
        let fits = match pattern.filter(|pattern| !pattern.is_empty()) {
            None => true,
            Some(pattern) => Pattern::new(pattern)
                .map_err(|source| CreationError::Pattern {
                    rule: nth + 1,
                    source,
                })?
                .matches(path),
        };
        if fits {
            return creation(nth + 1, rule);
        }
    }
    Err(CreationError::NoMatch {
        path: path.to_owned(),
    })
}

fn creation(nth: usize, rule: &Value) -> Result<CreationRule, CreationError> {
    let fault = |field: &str, problem| CreationError::Field {
        rule: nth,
        field: field.to_owned(),
        problem,
    };
    refuse_foreign(nth, rule)?;
    let mut recipients = Vec::new();
    match rule.field("key_groups").and_then(Value::items) {
        None => collect(nth, rule, &mut recipients)?,
        Some([group]) => {
            refuse_foreign(nth, group)?;
            collect(nth, group, &mut recipients)?;
        }
        Some(_) => return Err(fault("key_groups", "has not exactly one group")),
    }
    if recipients.is_empty() {
        return Err(fault("age", "names no recipient"));
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
        return Err(fault(
            second,
            "stands beside another of its kind; only one is allowed",
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

/// Refuses keys we could not seal for: leaving them out would lock their owners out.
fn refuse_foreign(nth: usize, block: &Value) -> Result<(), CreationError> {
    let names_key = |field: &&str| {
        block.field(field).is_some_and(|value| {
            let text = value.as_text().is_some_and(|text| !text.is_empty());
            text || value.items().is_some_and(|items| !items.is_empty())
        })
    };
    match FOREIGN.into_iter().find(names_key) {
        None => Ok(()),
        Some(field) => Err(CreationError::Field {
            rule: nth,
            field: field.to_owned(),
            problem: "names keys that are not supported; only `age` is",
        }),
    }
}

/// Adds the age recipients of a rule or group: a list, or text with commas.
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
            problem: "is neither text nor a list of texts",
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
    fn the_first_rule_whose_expression_fits_counts() {
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
    fn one_key_group_is_the_same_as_none() {
        let one = keygen("x").recipient;
        let text = format!("creation_rules:\n  - key_groups:\n      - age:\n          - {one}\n");
        assert_eq!(creation_rule_for(&text, "a").unwrap().recipients, [one]);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let age = keygen("x").recipient;
        let check = |rule: &str| {
            let text = format!("creation_rules:\n  - {rule}\n");
            creation_rule_for(&text, "a.yaml").unwrap_err().to_string()
        };
        assert!(check("path_regex: b").contains("no creation rule is for `a.yaml`"));
        assert!(check("{pgp: ABCD}").contains("`pgp` of creation rule 1 names keys"));
        assert!(check("{age: ''}").contains("names no recipient"));
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
