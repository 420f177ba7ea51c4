//! The tree of a YAML document: ordered, with the span of every key and value. Scalars stay text
//! until a decoder interprets them.

use super::source::Span;

/// A value with its span. Equality ignores spans.
#[derive(Clone)]
pub struct Value {
    /// Its position.
    pub span: Span,
    /// Its content.
    pub data: Data,
}

/// The content of a value.
#[derive(Clone, PartialEq)]
pub enum Data {
    /// A scalar.
    Scalar(Scalar),
    /// A list.
    Seq(Vec<Value>),
    /// A mapping, in document order.
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

/// A mapping key. Equality ignores the span.
#[derive(Clone)]
pub struct Key {
    /// Its position.
    pub span: Span,
    /// The key's text.
    pub text: String,
}

/// A scalar and its style.
#[derive(Clone)]
pub struct Scalar {
    /// The text without quotes and escapes.
    pub text: String,
    /// Its style.
    pub style: Style,
}

/// The style of a scalar. Only plain scalars can be numbers, booleans or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// In single or double quotes, or tagged `!!str`.
    Quoted,
    /// As a `|` or `>` block.
    Block,
}

/// The value of a scalar by the core schema of YAML 1.2.
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number with a fraction, or one too large for [`Meaning::Int`].
    Float(f64),
    /// `yes`, `no`, `on`, `off`: booleans in YAML 1.1, strings in YAML 1.2.
    Ambiguous,
    /// A string.
    Text,
}

impl Scalar {
    /// Creates a scalar that is always a string.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            style: Style::Quoted,
        }
    }

    /// Creates a plain scalar, as for numbers and booleans.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            style: Style::Plain,
        }
    }

    /// Returns the value of the scalar.
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
    /// Scalars are equal if they have the same value and text: `1` is not `"1"`.
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

/// Digits after a prefix have no sign: `0x-5` is a string.
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

    /// Returns whether the value is null: `null`, `~`, or a key without a value.
    pub fn is_null(&self) -> bool {
        self.scalar()
            .is_some_and(|scalar| scalar.meaning() == Meaning::Null)
    }

    /// Returns the type of the value for a message, with its article.
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

    /// Converts the value to JSON.
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

    /// Creates a tree without spans from JSON.
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
            span: NO_SPAN,
            data,
        }
    }
}

impl Key {
    /// Creates a key without a span.
    pub fn bare(text: impl Into<String>) -> Self {
        Self {
            span: NO_SPAN,
            text: text.into(),
        }
    }
}

/// The span of values that are not from a source.
pub const NO_SPAN: Span = Span {
    file: super::source::FileId(u32::MAX),
    start: 0,
    end: 0,
};

/// Shows only structure and keys: a tree may contain secrets.
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
    fn a_number_prefix_is_not_followed_by_a_sign() {
        assert_eq!(Scalar::plain("0x1F").meaning(), Meaning::Int(31));
        assert_eq!(Scalar::plain("0o17").meaning(), Meaning::Int(15));
        for text in ["0x-5", "0x+5", "0o-7", "0x"] {
            assert_eq!(Scalar::plain(text).meaning(), Meaning::Text, "{text}");
        }
    }
}
