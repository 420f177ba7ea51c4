//! The tree a YAML text becomes: ordered, with the place of every key and value.
//!
//! In: nothing (data types). Out: [`Value`] and ways to look at it.
//! Never: judging; a scalar stays text until a decoder says what it must be.

use super::source::Span;

/// One value with its place. Equality ignores places.
#[derive(Clone)]
pub struct Value {
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub data: Data,
}

/// The three shapes of YAML.
#[derive(Clone, PartialEq)]
pub enum Data {
    /// A single piece of text.
    Scalar(Scalar),
    /// A list.
    Seq(Vec<Value>),
    /// A mapping, in the order written.
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Value,
}

/// A mapping key. Equality ignores the place.
#[derive(Clone)]
pub struct Key {
    /// Where it stands.
    pub span: Span,
    /// The key's text.
    pub text: String,
}

/// A scalar as written, and whether it was quoted.
#[derive(Clone)]
pub struct Scalar {
    /// The text with quoting and escapes undone.
    pub text: String,
    /// How it was written.
    pub style: Style,
}

/// How a scalar was written. Only plain scalars can be numbers, booleans or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// In single or double quotes, or tagged `!!str`.
    Quoted,
    /// As a `|` or `>` block.
    Block,
}

/// What a scalar means by YAML 1.2 (core schema).
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction, or one too large for [`Meaning::Int`].
    Float(f64),
    /// `yes`, `no`, `on`, `off`: booleans for YAML 1.1 readers, text for YAML 1.2 ones.
    Ambiguous,
    /// Text.
    Text,
}

impl Scalar {
    /// Makes a scalar that is read back as exactly this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            style: Style::Quoted,
        }
    }

    /// Makes a plain scalar, as for numbers and booleans.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            style: Style::Plain,
        }
    }

    /// Returns what the scalar means.
    pub fn meaning(&self) -> Meaning {
        if self.style != Style::Plain {
            return Meaning::Text;
        }
        match self.text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Meaning::Null,
            "true" | "True" | "TRUE" => Meaning::Bool(true),
            "false" | "False" | "FALSE" => Meaning::Bool(false),
            "yes" | "Yes" | "YES" | "no" | "No" | "NO" | "on" | "On" | "ON" | "off" | "Off"
            | "OFF" => Meaning::Ambiguous,
            text => number(text),
        }
    }
}

impl PartialEq for Scalar {
    /// A scalar equals another when both are read as the same thing: `1` is not `"1"`.
    fn eq(&self, other: &Self) -> bool {
        match (self.meaning(), other.meaning()) {
            (Meaning::Null, Meaning::Null) => true,
            (Meaning::Text | Meaning::Ambiguous, Meaning::Text | Meaning::Ambiguous) => {
                self.text == other.text
            }
            (mine, theirs) => mine == theirs && self.text == other.text,
        }
    }
}

fn number(text: &str) -> Meaning {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Meaning::Text;
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return unsigned(hex, 16);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return unsigned(octal, 8);
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_or_else(|_| float(text), Meaning::Int);
    }
    let numeric = digits
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    if numeric && digits.bytes().any(|byte| byte.is_ascii_digit()) {
        float(text)
    } else {
        Meaning::Text
    }
}

/// Digits after a prefix have no sign: `0x-5` is text.
fn unsigned(digits: &str, radix: u32) -> Meaning {
    if digits.starts_with(['+', '-']) {
        return Meaning::Text;
    }
    i64::from_str_radix(digits, radix).map_or(Meaning::Text, Meaning::Int)
}

fn float(text: &str) -> Meaning {
    text.parse().map_or(Meaning::Text, Meaning::Float)
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Value {
    /// Returns the mapping's entries, if this is a mapping.
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.data {
            Data::Map(entries) => Some(entries),
            Data::Scalar(_) | Data::Seq(_) => None,
        }
    }

    /// Returns the list's items, if this is a list.
    pub fn items(&self) -> Option<&[Self]> {
        match &self.data {
            Data::Seq(items) => Some(items),
            Data::Scalar(_) | Data::Map(_) => None,
        }
    }

    /// Returns the scalar, if this is one.
    pub fn scalar(&self) -> Option<&Scalar> {
        match &self.data {
            Data::Scalar(scalar) => Some(scalar),
            Data::Seq(_) | Data::Map(_) => None,
        }
    }

    /// Returns the value under `key`, if this is a mapping that has it.
    pub fn field(&self, key: &str) -> Option<&Self> {
        self.entries()?
            .iter()
            .find(|entry| entry.key.text == key)
            .map(|entry| &entry.value)
    }

    /// Returns the text of a scalar that is not null.
    pub fn as_text(&self) -> Option<&str> {
        self.scalar()
            .filter(|scalar| scalar.meaning() != Meaning::Null)
            .map(|scalar| scalar.text.as_str())
    }

    /// Tells whether the value is null: `null`, `~`, or a key with nothing behind it.
    pub fn is_null(&self) -> bool {
        self.scalar()
            .is_some_and(|scalar| scalar.meaning() == Meaning::Null)
    }

    /// Names the kind of value for a message, with its article.
    pub fn kind(&self) -> &'static str {
        match &self.data {
            Data::Seq(_) => "a list",
            Data::Map(_) => "a mapping",
            Data::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => "nothing",
                Meaning::Bool(_) => "a boolean",
                Meaning::Int(_) => "an integer",
                Meaning::Float(_) => "a floating-point number",
                Meaning::Ambiguous | Meaning::Text => "a string",
            },
        }
    }

    /// Turns the value into JSON, with scalars by their meaning.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.data {
            Data::Seq(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Data::Map(entries) => Json::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.text.clone(), entry.value.to_json()))
                    .collect(),
            ),
            Data::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => Json::Null,
                Meaning::Bool(value) => Json::Bool(value),
                Meaning::Int(value) => Json::from(value),
                Meaning::Float(value) => Json::from(value),
                Meaning::Ambiguous | Meaning::Text => Json::String(scalar.text.clone()),
            },
        }
    }

    /// Makes a tree without places from JSON, ready for the emitter.
    pub fn from_json(json: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let data = match json {
            Json::Null => Data::Scalar(Scalar::plain("null")),
            Json::Bool(value) => Data::Scalar(Scalar::plain(value.to_string())),
            Json::Number(value) => Data::Scalar(Scalar::plain(value.to_string())),
            Json::String(text) => Data::Scalar(Scalar::text(text.clone())),
            Json::Array(items) => Data::Seq(items.iter().map(Self::from_json).collect()),
            Json::Object(map) => Data::Map(
                map.iter()
                    .map(|(key, value)| Entry {
                        key: Key::bare(key.clone()),
                        value: Self::from_json(value),
                    })
                    .collect(),
            ),
        };
        Self {
            span: NOWHERE,
            data,
        }
    }
}

impl Key {
    /// Makes a key without a place.
    pub fn bare(text: impl Into<String>) -> Self {
        Self {
            span: NOWHERE,
            text: text.into(),
        }
    }
}

/// The place of values that no person wrote.
pub const NOWHERE: Span = Span {
    file: super::source::FileId(u32::MAX),
    start: 0,
    end: 0,
};

/// Shows shape and keys only: a tree may hold secrets.
impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.data {
            Data::Scalar(_) => f.write_str(self.kind()),
            Data::Seq(items) => f.debug_list().entries(items).finish(),
            Data::Map(entries) => f
                .debug_map()
                .entries(entries.iter().map(|entry| (&entry.key.text, &entry.value)))
                .finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Meaning, Scalar};

    #[test]
    fn a_number_with_a_prefix_has_no_sign_behind_it() {
        assert_eq!(Scalar::plain("0x1F").meaning(), Meaning::Int(31));
        assert_eq!(Scalar::plain("0o17").meaning(), Meaning::Int(15));
        for text in ["0x-5", "0x+5", "0o-7", "0x"] {
            assert_eq!(Scalar::plain(text).meaning(), Meaning::Text, "{text}");
        }
    }
}
