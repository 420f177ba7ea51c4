//! The id that a provider gives a guest, opaque to everything else.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest id, as long as a label of a host name.
const LONGEST: usize = 63;

/// A provider's own id of a guest, such as `100` or `blue-heron`: letters, digits, `.`, `_`, `:`
/// and `-`. Numeric ids are serialized as numbers and sorted by value before the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GuestId {
    length: u8,
    text: [u8; LONGEST],
}

impl GuestId {
    /// Parses an id.
    pub fn new(text: &str) -> Option<Self> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let valid = !text.is_empty() && text.len() <= LONGEST && text.bytes().all(fits);
        valid.then(|| Self::of(text))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // Always ASCII, see `new`.
        std::str::from_utf8(&self.text[..self.length.into()]).unwrap_or_default()
    }

    /// Returns the number, for providers with numeric ids.
    pub fn number(&self) -> Option<u32> {
        let text = self.as_str();
        // `007` is another id than `7`.
        let canonical = text == "0" || !text.starts_with('0');
        text.parse().ok().filter(|_| canonical)
    }

    fn of(valid: &str) -> Self {
        let mut id = Self {
            length: 0,
            text: [0; LONGEST],
        };
        for (to, byte) in id.text.iter_mut().zip(valid.bytes()) {
            *to = byte;
            id.length += 1;
        }
        id
    }
}

impl From<u32> for GuestId {
    fn from(number: u32) -> Self {
        Self::of(&number.to_string())
    }
}

impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Ord for GuestId {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |id: &Self| id.number().map_or((1, 0), |number| (0, number));
        let ranked = rank(self).cmp(&rank(other));
        ranked.then_with(|| self.as_str().cmp(other.as_str()))
    }
}

impl PartialOrd for GuestId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl JsonSchema for GuestId {
    fn schema_name() -> Cow<'static, str> {
        "GuestId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The id that a provider gives a guest: a number where the provider numbers its guests.",
            "anyOf": [
                { "type": "integer", "format": "uint32", "minimum": 0 },
                { "type": "string" }
            ]
        })
    }
}

impl Serialize for GuestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.number() {
            Some(number) => serializer.serialize_u32(number),
            None => serializer.serialize_str(self.as_str()),
        }
    }
}

impl<'de> Deserialize<'de> for GuestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Repr {
            Number(u32),
            Text(String),
        }
        match Repr::deserialize(deserializer)? {
            Repr::Number(number) => Ok(number.into()),
            Repr::Text(text) => Self::new(&text)
                .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a guest's id"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_ids_are_written_as_numbers_and_read_in_both_formats() {
        for (text, json) in [
            ("100", "100"),
            ("0", "0"),
            ("4294967295", "4294967295"),
            ("4294967296", "\"4294967296\""),
            ("007", "\"007\""),
            ("blue-heron", "\"blue-heron\""),
        ] {
            let id = GuestId::new(text).unwrap();
            assert_eq!(serde_json::to_string(&id).unwrap(), json);
            assert_eq!(serde_json::from_str::<GuestId>(json).unwrap(), id);
            let quoted = format!("\"{text}\"");
            assert_eq!(serde_json::from_str::<GuestId>(&quoted).unwrap(), id);
            assert_eq!(
                (id.to_string(), format!("{id:?}")),
                (text.into(), text.into())
            );
        }
        assert_eq!(GuestId::from(100).number(), Some(100));
        assert_eq!(GuestId::new("007").unwrap().number(), None);
    }

    #[test]
    fn characters_unsafe_in_terminals_and_paths_are_rejected() {
        for text in ["", "a b", "a/b", "a\u{1b}[31m", "ä", &"x".repeat(64)] {
            assert_eq!(GuestId::new(text), None, "{text:?}");
        }
        assert!(GuestId::new(&"x".repeat(63)).is_some());
        assert!(serde_json::from_str::<GuestId>("\"a b\"").is_err());
        assert!(serde_json::from_str::<GuestId>("-1").is_err());
    }

    #[test]
    fn numeric_ids_sort_first_and_by_value() {
        let mut ids = ["heron", "1000", "99", "007", "blue"].map(|id| GuestId::new(id).unwrap());
        ids.sort();
        assert_eq!(
            ids.map(|id| id.to_string()),
            ["99", "1000", "007", "blue", "heron"]
        );
    }
}
