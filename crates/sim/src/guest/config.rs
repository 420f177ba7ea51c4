//! The configuration file of a guest: values, pending changes, digest.
//!
//! Values are stored as text and rendered with the JSON types of the API schema.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::OnceLock;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha1::Sha1;

use crate::hash::hex;
use crate::schema::{Method, format, table};
use crate::world::Kind;

/// Values, and the changes that are pending until the guest stops; `None` deletes the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Config {
    values: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pending: BTreeMap<String, Option<String>>,
}

impl Config {
    pub(crate) fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            values: pairs.into_iter().collect(),
            pending: BTreeMap::new(),
        }
    }

    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.value(key) == Some("1")
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<String>) {
        self.values.insert(key.to_owned(), value.into());
        self.pending.remove(key);
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<String> {
        self.pending.remove(key);
        self.values.remove(key)
    }

    pub(crate) fn set_pending(&mut self, key: &str, value: Option<String>) {
        if self.values.get(key) == value.as_ref() {
            self.pending.remove(key);
        } else {
            self.pending.insert(key.to_owned(), value);
        }
    }

    pub(crate) fn clear_pending(&mut self, key: &str) {
        self.pending.remove(key);
    }

    #[cfg(test)]
    pub(crate) fn pending(&self) -> &BTreeMap<String, Option<String>> {
        &self.pending
    }

    pub(crate) fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// Applies the pending changes.
    pub(crate) fn apply_pending(&mut self) {
        for (key, value) in std::mem::take(&mut self.pending) {
            match value {
                Some(value) => {
                    self.values.insert(key, value);
                }
                None => {
                    self.values.remove(&key);
                }
            }
        }
    }

    /// Returns the value of a key after pending changes.
    pub(crate) fn value_with_pending(&self, key: &str) -> Option<&str> {
        match self.pending.get(key) {
            Some(change) => change.as_deref(),
            None => self.value(key),
        }
    }

    /// Returns the file without pending changes: notes as comments, then keys in order.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let values = self.values.iter();
        section(&mut text, values.map(|(key, value)| (&**key, &**value)));
        text
    }

    /// Returns the digest of the whole file.
    pub(crate) fn digest(&self) -> String {
        let mut text = self.text();
        if !self.pending.is_empty() {
            text.push_str("\n[PENDING]\n");
            let deleted = self.pending.iter().filter(|(_, value)| value.is_none());
            let deleted: Vec<&str> = deleted.map(|(key, _)| key.as_str()).collect();
            let deleted = deleted.join(",");
            let mut all: BTreeMap<&str, &str> = BTreeMap::new();
            for (key, value) in &self.pending {
                if let Some(value) = value {
                    all.insert(key, value);
                }
            }
            if !deleted.is_empty() {
                all.insert("delete", &deleted);
            }
            section(&mut text, all.iter().map(|(key, value)| (*key, *value)));
        }
        hex::<Sha1>(text.as_bytes())
    }

    /// Renders the values: the current ones, or those after pending changes.
    pub(crate) fn render(&self, kind: Kind, current: bool) -> Map<String, Value> {
        let mut shown = Map::new();
        let keys: BTreeSet<&String> = self.values.keys().chain(self.pending.keys()).collect();
        for key in keys {
            let value = if current {
                self.value(key)
            } else {
                self.value_with_pending(key)
            };
            if let Some(value) = value {
                shown.insert(key.clone(), typed(kind, key, value));
            }
        }
        shown.insert("digest".into(), json!(self.digest()));
        shown
    }

    /// Renders every key with its value and its pending change.
    pub(crate) fn render_pending(&self, kind: Kind) -> Value {
        let keys: BTreeSet<&String> = self.values.keys().chain(self.pending.keys()).collect();
        let mut list: Vec<Value> = keys
            .into_iter()
            .map(|key| {
                let mut entry = json!({ "key": key });
                if let Some(value) = self.value(key) {
                    entry["value"] = typed(kind, key, value);
                }
                match self.pending.get(key) {
                    Some(Some(value)) => entry["pending"] = typed(kind, key, value),
                    Some(None) => entry["delete"] = json!(1),
                    None => {}
                }
                entry
            })
            .collect();
        list.push(json!({ "key": "digest", "value": self.digest() }));
        Value::Array(list)
    }
}

/// Writes the lines of one section.
fn section<'a>(text: &mut String, values: impl Iterator<Item = (&'a str, &'a str)> + Clone) {
    let notes = values.clone().find(|(key, _)| *key == "description");
    for line in notes.into_iter().flat_map(|(_, notes)| notes.lines()) {
        let _ = writeln!(text, "#{}", utf8_percent_encode(line, NOTES));
    }
    for (key, value) in values.filter(|(key, _)| *key != "description") {
        let _ = writeln!(text, "{key}: {value}");
    }
}

/// The characters that are escaped in notes.
const NOTES: &AsciiSet = &CONTROLS.add(b'%').add(b':');

/// Returns the method whose parameters are the keys of a configuration. Cached, because it is
/// needed for each key of each guest.
fn creation(kind: Kind) -> Option<&'static Method> {
    static BOTH: OnceLock<[Option<&'static Method>; 2]> = OnceLock::new();
    let both = BOTH.get_or_init(|| {
        ["/nodes/x/qemu", "/nodes/x/lxc"]
            .map(|path| table().find("POST", path).map(|(method, _)| method))
    });
    match kind {
        Kind::Qemu => both[0],
        Kind::Lxc => both[1],
    }
}

/// Converts a value to the type of the API schema; booleans are numbers.
pub(crate) fn typed(kind: Kind, key: &str, value: &str) -> Value {
    let wanted = creation(kind)
        .and_then(|method| table().definition(method, key))
        .and_then(|definition| definition.kind.as_deref());
    // The notes of a container end in a newline.
    if kind == Kind::Lxc && key == "description" {
        return json!(format!("{}\n", value.trim_end_matches('\n')));
    }
    match wanted {
        Some("integer" | "boolean") => value
            .parse::<i64>()
            .map_or_else(|_| json!(value), |number| json!(number)),
        Some("number") => value.parse::<i64>().map_or_else(
            |_| {
                value
                    .parse::<f64>()
                    .map_or_else(|_| json!(value), |number| json!(number))
            },
            |number| json!(number),
        ),
        _ => json!(value),
    }
}

/// Sorts tags, lower case and once each, as PVE does when a configuration is changed.
pub(crate) fn normalize_tags(text: &str) -> String {
    let tags: BTreeSet<String> = format::split_list(text).map(str::to_lowercase).collect();
    let tags: Vec<String> = tags.into_iter().collect();
    tags.join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_value_that_equals_the_current_one_is_dropped() {
        let mut config = Config::default();
        config.set("cores", "2");
        config.set_pending("cores", Some("4".into()));
        assert_eq!(config.value_with_pending("cores"), Some("4"));
        config.set_pending("cores", Some("2".into()));
        assert!(config.pending().is_empty());
    }

    #[test]
    fn memory_of_a_vm_is_a_text_and_of_a_container_a_number() {
        assert_eq!(typed(Kind::Qemu, "memory", "256"), json!("256"));
        assert_eq!(typed(Kind::Lxc, "memory", "256"), json!(256));
        assert_eq!(typed(Kind::Qemu, "cores", "2"), json!(2));
    }

    #[test]
    fn tags_are_sorted_lower_case_and_once() {
        assert_eq!(normalize_tags("zz,aa bb;aa;ZZ"), "aa;bb;zz");
    }

    #[test]
    fn the_digest_is_that_of_the_file() {
        let mut config = Config::default();
        config.set("name", "a");
        config.set("cores", "2");
        config.set("description", "one: 50%\ntwo");
        let file = b"#one%3A 50%25\n#two\ncores: 2\nname: a\n";
        assert_eq!(config.digest(), hex::<Sha1>(file));
    }

    #[test]
    fn the_digest_changes_with_a_pending_change() {
        let mut config = Config::default();
        config.set("cores", "2");
        let before = config.digest();
        config.set_pending("cores", Some("4".into()));
        assert_ne!(before, config.digest());
        assert_eq!(before.len(), 40);
    }
}
