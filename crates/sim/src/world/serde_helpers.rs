//! Serde helpers for a saved World: static strings, and maps with pairs as keys.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};

/// One of a fixed set of strings.
pub(crate) type Keyword = &'static str;

const KEYWORDS: [&str; 11] = [
    "images", "rootdir", "iso", "vztmpl", "import", "snippets", "backup", "none", "user", "group",
    "token",
];

/// Deserializes a keyword.
pub(crate) fn keyword<'de, D: Deserializer<'de>>(from: D) -> Result<Keyword, D::Error> {
    let text = String::deserialize(from)?;
    KEYWORDS
        .iter()
        .find(|known| **known == text)
        .copied()
        .ok_or_else(|| D::Error::custom(format!("unknown keyword `{text}`")))
}

/// Serializes maps with pairs as keys as lists, because JSON keys are strings.
pub(crate) mod pairs {
    use super::BTreeMap;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Pairs<T> = BTreeMap<(String, String), T>;

    pub(crate) fn serialize<S: Serializer, T: Serialize>(
        map: &Pairs<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
        from: D,
    ) -> Result<Pairs<T>, D::Error> {
        let list: Vec<((String, String), T)> = Vec::deserialize(from)?;
        Ok(list.into_iter().collect())
    }
}
