//! Which values of a file are encrypted, by path and by the comments above.

use regex_lite::Regex;

/// Default suffix of keys whose values are not encrypted.
const DEFAULT_SUFFIX: &str = "_unencrypted";

/// Which values are encrypted, and what the MAC covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which values are encrypted.
    pub selection: Selection,
    /// Whether the MAC covers only encrypted values, so that others can be edited.
    pub mac_only_encrypted: bool,
}

/// How values are selected. SOPS allows one selection per file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All but values below a key with this suffix.
    ExceptSuffix(String),
    /// Only values below a key with this suffix.
    OnlySuffix(String),
    /// All but values below a key that matches.
    ExceptKeys(Pattern),
    /// Only values below a key that matches.
    OnlyKeys(Pattern),
    /// All but values below a comment that matches.
    ExceptCommented(Pattern),
    /// Only values below a comment that matches.
    OnlyCommented(Pattern),
}

/// A regular expression.
///
/// `regex-lite` has the syntax of Go's regular expressions without the tables of `regex`; it lacks
/// Unicode classes, which keys do not need.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

impl Pattern {
    /// Compiles an expression.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let regex = Regex::new(text).map_err(|_| PatternError {
            pattern: text.to_owned(),
        })?;
        Ok(Self {
            text: text.to_owned(),
            regex,
        })
    }

    /// Returns the expression.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

/// An unsupported regular expression.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{pattern}` is not a supported regular expression")]
pub struct PatternError {
    /// The expression.
    pub pattern: String,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            selection: Selection::ExceptSuffix(DEFAULT_SUFFIX.into()),
            mac_only_encrypted: false,
        }
    }
}

impl Selection {
    /// Returns the selection of a key in a `sops` block or in `.sops.yaml`.
    pub(crate) fn from_field(key: &str, text: &str) -> Result<Option<Self>, PatternError> {
        Ok(Some(match key {
            "unencrypted_suffix" => Self::ExceptSuffix(text.into()),
            "encrypted_suffix" => Self::OnlySuffix(text.into()),
            "unencrypted_regex" => Self::ExceptKeys(Pattern::new(text)?),
            "encrypted_regex" => Self::OnlyKeys(Pattern::new(text)?),
            "unencrypted_comment_regex" => Self::ExceptCommented(Pattern::new(text)?),
            "encrypted_comment_regex" => Self::OnlyCommented(Pattern::new(text)?),
            _ => return Ok(None),
        }))
    }

    /// Returns key and value for a `sops` block.
    pub(crate) fn field(&self) -> (&'static str, &str) {
        match self {
            Self::ExceptSuffix(text) => ("unencrypted_suffix", text),
            Self::OnlySuffix(text) => ("encrypted_suffix", text),
            Self::ExceptKeys(pattern) => ("unencrypted_regex", pattern.as_str()),
            Self::OnlyKeys(pattern) => ("encrypted_regex", pattern.as_str()),
            Self::ExceptCommented(pattern) => ("unencrypted_comment_regex", pattern.as_str()),
            Self::OnlyCommented(pattern) => ("encrypted_comment_regex", pattern.as_str()),
        }
    }
}

/// What may be encrypted: a value, or a comment (which is then the last of the comments).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Value,
    Comment,
}

impl Rules {
    /// Returns whether the value at `path` is encrypted. `comments` has one list of applicable
    /// comments for each enclosing collection, outermost first.
    pub(crate) fn encrypts(
        &self,
        path: &[String],
        comments: &[Vec<String>],
        subject: Subject,
    ) -> bool {
        let any_key = |test: &dyn Fn(&str) -> bool| path.iter().any(|key| test(key));
        match &self.selection {
            Selection::ExceptSuffix(suffix) => !any_key(&|key| key.ends_with(suffix.as_str())),
            Selection::OnlySuffix(suffix) => any_key(&|key| key.ends_with(suffix.as_str())),
            Selection::ExceptKeys(pattern) => !any_key(&|key| pattern.matches(key)),
            Selection::OnlyKeys(pattern) => any_key(&|key| pattern.matches(key)),
            Selection::ExceptCommented(pattern) => !comments
                .iter()
                .flatten()
                .any(|comment| pattern.matches(comment)),
            Selection::OnlyCommented(pattern) => {
                // The comment that selects values for encryption is not encrypted itself.
                let all = comments.iter().map(Vec::len).sum::<usize>();
                let count = all - usize::from(subject == Subject::Comment).min(all);
                comments
                    .iter()
                    .flatten()
                    .take(count)
                    .any(|comment| pattern.matches(comment))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, text: &str, path: &[&str], comments: &[&str]) -> bool {
        let rules = Rules {
            selection: Selection::from_field(key, text).unwrap().unwrap(),
            mac_only_encrypted: false,
        };
        let path: Vec<String> = path.iter().map(|key| (*key).into()).collect();
        let comments = vec![comments.iter().map(|comment| (*comment).into()).collect()];
        rules.encrypts(&path, &comments, Subject::Value)
    }

    #[test]
    fn selections_match_any_key_of_the_path() {
        let suffix = "unencrypted_suffix";
        assert!(check(suffix, "_u", &["a", "b"], &[]));
        assert!(!check(suffix, "_u", &["a_u", "b"], &[]));
        assert!(check("encrypted_suffix", "_e", &["a_e", "b"], &[]));
        assert!(!check("encrypted_suffix", "_e", &["a", "b"], &[]));
        assert!(check("encrypted_regex", "^(data)$", &["data", "b"], &[]));
        assert!(!check("encrypted_regex", "^(data)$", &["meta", "b"], &[]));
        assert!(!check("unencrypted_regex", "^meta", &["metadata"], &[]));
        assert!(check("unencrypted_regex", "^meta", &["data"], &[]));
    }

    #[test]
    fn comments_above_a_value_can_select_it() {
        assert!(check(
            "encrypted_comment_regex",
            "sops:enc",
            &["a"],
            &[" sops:enc"]
        ));
        assert!(!check(
            "encrypted_comment_regex",
            "sops:enc",
            &["a"],
            &[" no"]
        ));
        assert!(!check(
            "unencrypted_comment_regex",
            "plain",
            &["a"],
            &[" plain"]
        ));
        assert!(check("unencrypted_comment_regex", "plain", &["a"], &[]));
    }

    #[test]
    fn the_selecting_comment_is_not_encrypted() {
        let rules = Rules {
            selection: Selection::OnlyCommented(Pattern::new("enc").unwrap()),
            mac_only_encrypted: false,
        };
        let stack = |lines: &[&str]| vec![lines.iter().map(|line| (*line).to_owned()).collect()];
        assert!(!rules.encrypts(&[], &stack(&["enc"]), Subject::Comment));
        assert!(rules.encrypts(&[], &stack(&["enc", "next"]), Subject::Comment));
    }

    #[test]
    fn an_invalid_expression_is_an_error() {
        let error = Pattern::new("(").unwrap_err();
        assert_eq!(error.pattern, "(");
    }
}
