//! The id that a provider gives a guest. Only the provider knows what it means; everybody else
//! compares it, shows it and hands it back.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest id: as long as a host name's label, so that ids that are names fit.
const LONGEST: usize = 63;

/// A provider's own id of a guest, such as `100` or `blue-heron`: letters, digits, `.`, `_`, `:`
/// and `-`. Ids that are numbers are written as numbers, and come before the others by their value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GuestId {
    length: u8,
    text: [u8; LONGEST],
}

impl GuestId {
    /// Takes an id.
    pub fn new(text: &str) -> Option<Self> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let valid = !text.is_empty() && text.len() <= LONGEST && text.bytes().all(fits);
        valid.then(|| Self::of(text))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // What is inside was checked to be ASCII.
        std::str::from_utf8(&self.text[..self.length.into()]).unwrap_or_default()
    }

    /// Returns the number that it is, for providers that number their guests.
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
        enum Written {
            Number(u32),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(number.into()),
            Written::Text(text) => Self::new(&text)
                .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a guest's id"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_a_number_is_written_as_one_and_read_in_both_forms() {
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
    fn what_could_disturb_a_terminal_or_a_path_is_no_id() {
        for text in ["", "a b", "a/b", "a\u{1b}[31m", "ä", &"x".repeat(64)] {
            assert_eq!(GuestId::new(text), None, "{text:?}");
        }
        assert!(GuestId::new(&"x".repeat(63)).is_some());
        assert!(serde_json::from_str::<GuestId>("\"a b\"").is_err());
        assert!(serde_json::from_str::<GuestId>("-1").is_err());
    }

    #[test]
    fn numbers_come_first_and_by_their_value() {
        let mut ids = ["heron", "1000", "99", "007", "blue"].map(|id| GuestId::new(id).unwrap());
        ids.sort();
        assert_eq!(
            ids.map(|id| id.to_string()),
            ["99", "1000", "007", "blue", "heron"]
        );
    }
}
