//! Differences between two records of a node, so that entries need not repeat whole records.

use homestak_core::plan::NodeRecord;
use serde_json::{Map, Value, from_value, to_value};

use super::error::StoreError;

/// Returns the keys that turn `old` into `new`; `None` when that cannot be expressed.
pub(super) fn diff(old: &NodeRecord, new: &NodeRecord) -> Option<String> {
    let (old, new) = (to_value(old).ok()?, to_value(new).ok()?);
    let patch = between(&old, &new);
    // Null deletes a key, so that null values of the record are lost: verify.
    (apply(old, patch.clone()) == new).then(|| patch.to_string())
}

fn between(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(before) if before == value => {}
            Some(before) => drop(patch.insert(key.clone(), between(before, value))),
            None => drop(patch.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

/// Applies a patch.
pub(super) fn apply(old: Value, patch: Value) -> Value {
    let (mut old, patch) = match (old, patch) {
        (Value::Object(old), Value::Object(patch)) => (old, patch),
        (_, patch) => return patch,
    };
    for (key, value) in patch {
        if value.is_null() {
            old.shift_remove(&key);
        } else {
            let before = old.remove(&key).unwrap_or_default();
            old.insert(key, apply(before, value));
        }
    }
    Value::Object(old)
}

/// Decodes a record.
pub(super) fn record(value: &Value) -> Result<NodeRecord, StoreError> {
    from_value(value.clone()).map_err(StoreError::corrupt)
}
