//! The configuration file of a guest: values, pending changes, digest.
//!
//! In: keys and values as texts. Out: JSON with the types the description gives each key.
//! Never: knowledge of whether a change may be made now.

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

/// Values, and the changes that wait for the guest to stop. A change to nothing is a removal.
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

    pub(crate) fn set_later(&mut self, key: &str, value: Option<String>) {
        if self.values.get(key) == value.as_ref() {
            self.pending.remove(key);
        } else {
            self.pending.insert(key.to_owned(), value);
        }
    }

    pub(crate) fn forget_pending(&mut self, key: &str) {
        self.pending.remove(key);
    }

    #[cfg(test)]
    pub(crate) fn pending(&self) -> &BTreeMap<String, Option<String>> {
        &self.pending
    }

    pub(crate) fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// Makes the pending changes, as stopping does.
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

    /// Returns the value a key will have, pending changes included.
    pub(crate) fn future(&self, key: &str) -> Option<&str> {
        match self.pending.get(key) {
            Some(change) => change.as_deref(),
            None => self.value(key),
        }
    }

    /// Returns the file without what is pending: notes as comments, then keys in order.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let values = self.values.iter();
        section(&mut text, values.map(|(key, value)| (&**key, &**value)));
        text
    }

    /// Returns the digest of the file as it is on disk.
    pub(crate) fn digest(&self) -> String {
        let mut text = self.text();
        if !self.pending.is_empty() {
            text.push_str("\n[PENDING]\n");
            let gone = self.pending.iter().filter(|(_, value)| value.is_none());
            let gone: Vec<&str> = gone.map(|(key, _)| key.as_str()).collect();
            let gone = gone.join(",");
            let mut all: BTreeMap<&str, &str> = BTreeMap::new();
            for (key, value) in &self.pending {
                if let Some(value) = value {
                    all.insert(key, value);
                }
            }
            if !gone.is_empty() {
                all.insert("delete", &gone);
            }
            section(&mut text, all.iter().map(|(key, value)| (*key, *value)));
        }
        hex::<Sha1>(text.as_bytes())
    }

    /// Shows the file: the future when pending changes count, the present otherwise.
    pub(crate) fn render(&self, kind: Kind, current: bool) -> Map<String, Value> {
        let mut shown = Map::new();
        let keys: BTreeSet<&String> = self.values.keys().chain(self.pending.keys()).collect();
        for key in keys {
            let value = if current {
                self.value(key)
            } else {
                self.future(key)
            };
            if let Some(value) = value {
                shown.insert(key.clone(), typed(kind, key, value));
            }
        }
        shown.insert("digest".into(), json!(self.digest()));
        shown
    }

    /// Shows every key with what waits for it.
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

/// What is escaped in notes.
const NOTES: &AsciiSet = &CONTROLS.add(b'%').add(b':');

/// Returns the method whose parameters are the keys of a configuration. Asked for each key of each
/// guest, so it is looked up once.
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

/// Gives a value the type the description names: numbers and booleans are numbers.
pub(crate) fn typed(kind: Kind, key: &str, value: &str) -> Value {
    let wanted = creation(kind)
        .and_then(|method| table().definition(method, key))
        .and_then(|definition| definition.kind.as_deref());
    // The file of a container keeps the end of the last line of its notes.
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
pub(crate) fn normal_tags(text: &str) -> String {
    let tags: BTreeSet<String> = format::split_list(text).map(str::to_lowercase).collect();
    let tags: Vec<String> = tags.into_iter().collect();
    tags.join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_value_that_equals_the_present_is_none() {
        let mut config = Config::default();
        config.set("cores", "2");
        config.set_later("cores", Some("4".into()));
        assert_eq!(config.future("cores"), Some("4"));
        config.set_later("cores", Some("2".into()));
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
        assert_eq!(normal_tags("zz,aa bb;aa;ZZ"), "aa;bb;zz");
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
        config.set_later("cores", Some("4".into()));
        assert_ne!(before, config.digest());
        assert_eq!(before.len(), 40);
    }
}
