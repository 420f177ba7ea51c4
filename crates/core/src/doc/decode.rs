//! Decodes a tree into typed values. All errors are reported, not only the first one; values of
//! secret sources never appear in messages.

use std::collections::BTreeMap;

use super::code::Code;
use super::diagnostic::{Diagnostic, Diagnostics};
use super::schema::Definitions;
use super::source::Span;
use super::tree::{Data, Entry, Meaning, Scalar, Value};

/// The longest list. A decoded node needs a kilobyte of memory for two bytes of text (`{}`), so the
/// limits on text and values alone do not bound memory.
const MAX_ITEMS: usize = 100_000;

/// A decoded value with its span. Equality ignores the span.
#[derive(Clone, Debug)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Its position in the source.
    pub span: Span,
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: std::fmt::Display> std::fmt::Display for Spanned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> std::ops::Deref for Spanned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

/// A type that can be decoded from a document and has a JSON Schema.
pub trait Decode: Sized {
    /// Decodes a value, or reports why it is invalid.
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self>;
    /// Returns the JSON Schema of the type.
    fn schema(definitions: &mut Definitions) -> serde_json::Value;
}

/// What decoders share: collected diagnostics, and whether the source is secret.
pub struct Context<'a> {
    /// Collected diagnostics.
    pub diagnostics: &'a mut Diagnostics,
    /// Whether the source contains secrets, so that messages must not quote it.
    pub secret: bool,
}

impl<'a> Context<'a> {
    /// Creates a context for a source without secrets.
    pub fn new(diagnostics: &'a mut Diagnostics) -> Self {
        Self {
            diagnostics,
            secret: false,
        }
    }

    /// Reports an error.
    pub fn error(
        &mut self,
        code: Code,
        span: Span,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.diagnostics
            .push(Diagnostic::error(code, span, message).hint(hint));
    }

    /// Reports a notice.
    pub fn notice(
        &mut self,
        code: Code,
        span: Span,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.diagnostics
            .push(Diagnostic::notice(code, span, message).hint(hint));
    }

    /// Quotes text in a message, unless the source is secret.
    pub fn quoted(&self, text: &str) -> String {
        if self.secret {
            "(not shown)".into()
        } else if text.is_empty() {
            "an empty string".into()
        } else {
            format!("`{}`", shorten(text))
        }
    }

    /// Reports a value of the wrong type and returns `None`.
    pub fn wrong_type<T>(&mut self, value: &Value, expected: &str) -> Option<T> {
        let found = value.kind();
        let hint = match (&value.data, expected) {
            (Data::Scalar(scalar), "a string") if scalar.meaning() != Meaning::Null => {
                format!(
                    "quote it: {}",
                    if self.secret {
                        "\"...\"".into()
                    } else {
                        format!("\"{}\"", shorten(&scalar.text))
                    }
                )
            }
            (Data::Scalar(scalar), _) if scalar.meaning() == Meaning::Null => {
                format!("write {expected} here, or remove it")
            }
            (Data::Scalar(_), "a list") => {
                "write it as a list: `[a, b]`, or one `- item` per line".into()
            }
            (Data::Map(_), "a list") => "write one item per line, each starting with `- `".into(),
            (Data::Seq(items), "a string" | "an integer" | "a boolean") if items.len() == 1 => {
                format!("write {expected} without brackets or a leading `-`")
            }
            (Data::Scalar(_), "a boolean") => "write `true` or `false`, without quotes".into(),
            (Data::Scalar(_), "an integer") => {
                "write a whole number without quotes or a unit".into()
            }
            (_, "a mapping") => "write `name: value` lines here".into(),
            _ => format!("write {expected} here"),
        };
        self.error(
            Code::WrongType,
            value.span,
            format!("expected {expected}, found {found}"),
            hint,
        );
        None
    }

    /// Returns the entries of a mapping, or reports that it is not one.
    pub fn mapping<'v>(&mut self, value: &'v Value) -> Option<&'v [Entry]> {
        match value.entries() {
            Some(entries) => Some(entries),
            None if value.is_null() => Some(&[]),
            None => self.wrong_type(value, "a mapping"),
        }
    }

    /// Returns the entries of a mapping with fixed keys, or reports that it is not one.
    pub fn keyed<'v>(&mut self, value: &'v Value, keys: &[&str]) -> Option<&'v [Entry]> {
        if value.entries().is_some() || value.is_null() {
            return self.mapping(value);
        }
        let found = value.kind();
        let mut named = keys.iter().filter(|key| **key != "schema_version");
        let example = named.next().unwrap_or(&"key");
        let hint = if value.items().is_some() {
            format!("write `key: value` lines without a leading `-`, such as `{example}: ...`")
        } else {
            format!("write `key: value` lines here, such as `{example}: ...`")
        };
        self.error(
            Code::WrongType,
            value.span,
            format!("expected a mapping, found {found}"),
            hint,
        );
        None
    }

    /// Returns a string, or reports that the value is not one.
    pub fn text<'v>(&mut self, value: &'v Value) -> Option<&'v str> {
        let Some(scalar) = value.scalar() else {
            return self.wrong_type(value, "a string");
        };
        match scalar.meaning() {
            Meaning::Text => Some(&scalar.text),
            Meaning::Ambiguous | Meaning::Bool(_) => self.bare_yes_no(value.span, scalar),
            Meaning::Null | Meaning::Int(_) | Meaning::Float(_) => {
                self.wrong_type(value, "a string")
            }
        }
    }

    fn bare_yes_no<T>(&mut self, span: Span, scalar: &Scalar) -> Option<T> {
        let shown = if self.secret {
            "...".to_owned()
        } else {
            scalar.text.clone()
        };
        let message = if self.secret {
            "an unquoted word is not a string here".to_owned()
        } else {
            let parsers = if scalar.meaning() == Meaning::Ambiguous {
                "some YAML parsers read"
            } else {
                "YAML parsers read"
            };
            format!("an unquoted `{shown}` is not a string: {parsers} it as a boolean")
        };
        self.error(
            Code::BareYesNo,
            span,
            message,
            format!("quote it: \"{shown}\""),
        );
        None
    }

    /// Decodes one field of a mapping; null counts as absent.
    pub fn field<T: Decode>(&mut self, entry: &Entry) -> Option<Spanned<T>> {
        if entry.value.is_null() {
            return None;
        }
        Spanned::decode(&entry.value, self)
    }

    /// Reports an unknown key. Returns the key that was probably meant, so that it is not reported
    /// as missing too.
    pub fn unknown_key(&mut self, entry: &Entry, known: &[&'static str]) -> Option<&'static str> {
        let key = entry.key.text.as_str();
        // Guessing is expensive, and useless once diagnostics are only counted.
        let guesses = if self.diagnostics.is_full() {
            &[]
        } else {
            known
        };
        let near = closest(key, guesses.iter().copied()).or_else(|| by_words(key, guesses));
        let message = match (&near, self.secret) {
            (None, true) => "unknown key".to_owned(),
            _ => format!("unknown key `{}`", shorten(key)),
        };
        let hint = near.as_ref().map_or_else(
            || format!("known keys here: {}", known.join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        self.error(Code::UnknownKey, entry.key.span, message, hint);
        known
            .iter()
            .copied()
            .find(|key| Some(*key) == near.as_deref())
    }

    /// Reports a required key that is missing or has no value.
    pub fn missing_key(&mut self, span: Span, entries: &[Entry], key: &str, what: &str) {
        if let Some(entry) = entries.iter().find(|entry| entry.key.text == key) {
            return self.error(
                Code::Empty,
                entry.key.span,
                format!("`{key}` has no value"),
                format!("add a value after `{key}:`"),
            );
        }
        self.error(
            Code::MissingKey,
            span,
            format!("{what} has no `{key}`"),
            format!("add `{key}: ...`"),
        );
    }

    /// Reports a deprecated key name.
    pub fn renamed(&mut self, span: Span, old: &str, new: &str) {
        self.notice(
            Code::OldName,
            span,
            format!("`{old}` is deprecated; use `{new}`"),
            format!("rename it to `{new}`; the deprecated name is still accepted"),
        );
    }

    /// Reports a key that is present under both its names.
    pub fn both_names(&mut self, old: Span, new: Span, old_name: &str, new_name: &str) {
        self.diagnostics.push(
            Diagnostic::error(
                Code::DuplicateKey,
                old,
                format!(
                    "`{old_name}` is the deprecated name of `{new_name}`, which is also present"
                ),
            )
            .label(new, "also here")
            .hint(format!("remove `{old_name}`")),
        );
    }
}

impl<T: Decode> Decode for Spanned<T> {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        T::decode(value, cx).map(|decoded| Self {
            value: decoded,
            span: value.span,
        })
    }
    fn schema(definitions: &mut Definitions) -> serde_json::Value {
        T::schema(definitions)
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let Some(items) = value.items() else {
            return cx.wrong_type(value, "a list");
        };
        if items.len() > MAX_ITEMS {
            cx.error(
                Code::TooManyValues,
                value.span,
                format!("the list has {} items", items.len()),
                format!("split the document: a list may have up to {MAX_ITEMS} items"),
            );
            return None;
        }
        // A growing vector would need up to twice the memory.
        let mut all = Self::with_capacity(items.len());
        all.extend(items.iter().filter_map(|item| T::decode(item, cx)));
        Some(all)
    }
    fn schema(definitions: &mut Definitions) -> serde_json::Value {
        serde_json::json!({ "type": "array", "items": T::schema(definitions) })
    }
}

/// A mapping with arbitrary keys, in any order. The span of a value is that of its key.
impl<T: Decode> Decode for BTreeMap<String, Spanned<T>> {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let entries = cx.mapping(value)?;
        Some(
            entries
                .iter()
                .filter_map(|entry| {
                    let named = Spanned {
                        span: entry.key.span,
                        ..cx.field(entry)?
                    };
                    Some((entry.key.text.clone(), named))
                })
                .collect(),
        )
    }
    fn schema(definitions: &mut Definitions) -> serde_json::Value {
        serde_json::json!({ "type": "object", "additionalProperties": T::schema(definitions) })
    }
}

/// Returns the candidate that is most similar to `text`, if any is similar enough.
pub fn closest<'c>(text: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<String> {
    let text: String = text.chars().take(64).collect::<String>().to_lowercase();
    let length = text.chars().count();
    let limit = (length / 3).clamp(1, 4);
    candidates
        .into_iter()
        // The distance is at least the difference in length, which is cheaper to compute.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= limit)
        .map(|candidate| {
            let folded = candidate.to_lowercase();
            let swapped = folded.replace('_', "-") == text.replace('_', "-");
            let distance = if swapped {
                0
            } else {
                strsim::osa_distance(&text, &folded)
            };
            (distance, candidate)
        })
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

/// Returns the only key whose words contain those of `key`, or vice versa: `mode` for
/// `default_mode`, `vlan_id` for `vlan`.
fn by_words(key: &str, known: &[&'static str]) -> Option<String> {
    let words = |text: &str| -> Vec<String> {
        let split = text.split(['_', '-']).filter(|word| !word.is_empty());
        split.map(str::to_lowercase).collect()
    };
    let mine = words(key);
    let mut near = known.iter().filter(|candidate| {
        let theirs = words(candidate);
        let within = |some: &[String], all: &[String]| some.iter().all(|word| all.contains(word));
        !mine.is_empty() && (within(&mine, &theirs) || within(&theirs, &mine))
    });
    match (near.next(), near.next()) {
        (Some(one), None) => Some((*one).to_owned()),
        _ => None,
    }
}

/// Shortens text for a message to one line of limited length.
pub fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    let one_line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST + 1)
        .collect();
    if one_line.chars().count() > LONGEST {
        one_line
            .chars()
            .take(LONGEST - 3)
            .chain("...".chars())
            .collect()
    } else {
        one_line
    }
}
