//! Texts of a saved World that are shared or paired in memory.
//!
//! In: what serde reads and writes. Out: words the program knows, maps with pairs as keys.
//! Never: a word that the program does not know.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};

/// A word out of a small known set.
pub(crate) type Word = &'static str;

const WORDS: [&str; 11] = [
    "images", "rootdir", "iso", "vztmpl", "import", "snippets", "backup", "none", "user", "group",
    "token",
];

/// Reads one of the known words.
pub(crate) fn word<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    let text = String::deserialize(from)?;
    WORDS
        .iter()
        .find(|known| **known == text)
        .copied()
        .ok_or_else(|| D::Error::custom(format!("the word `{text}` is not known")))
}

/// Maps whose keys are pairs, which JSON cannot have: written as a list.
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
