//! Compares recorded and simulated answers: status, reason phrase, error body, field names and
//! types. Values are not compared, because UPIDs, digests, process ids, times and counters differ
//! from run to run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::transcript::Row;
use crate::calls::Answer;

/// Fields that identify the elements of a list, in order of preference.
const IDENTITIES: [&str; 13] = [
    "volid", "upid", "id", "key", "vmid", "roleid", "userid", "tokenid", "iface", "service",
    "storage", "name", "node",
];

/// Returns the differences; empty if the answers agree.
pub(crate) fn differences(row: &Row, answer: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    if row.status != answer.status {
        found.push(format!(
            "status {} instead of {}",
            answer.status, row.status
        ));
    }
    if normalize(&row.reason) != normalize(&answer.reason) {
        found.push(format!(
            "reason `{}` instead of `{}`",
            answer.reason, row.reason
        ));
    }
    if !found.is_empty() {
        return found;
    }
    let recorded = &row.body;
    let raw = recorded.get("_raw").is_some() || recorded.is_null();
    match (answer.body(), raw) {
        (None, true) => {}
        (None, false) => found.push("no body".to_owned()),
        (Some(_), true) => found.push("a body where there was none".to_owned()),
        (Some(body), false) if row.status == 200 => compare_shape(recorded, body, "", &mut found),
        (Some(body), false) => compare_errors(recorded, body, &mut found),
    }
    found
}

/// Compares error bodies, which must be identical.
fn compare_errors(recorded: &Value, body: &Value, found: &mut Vec<String>) {
    for key in ["message", "errors", "data"] {
        let (old, new) = (recorded.get(key), body.get(key));
        let same = match (old, new) {
            (Some(old), Some(new)) => {
                normalize(&old.to_string()) == normalize(&new.to_string()) || old == new
            }
            (None, None) => true,
            _ => false,
        };
        if !same {
            found.push(format!("{key} {new:?} instead of {old:?}"));
        }
    }
}

/// Replaces words that differ from run to run.
pub(crate) fn normalize(text: &str) -> String {
    let mut words = Vec::new();
    for word in text.split(' ') {
        if word.contains("UPID:") || word.contains("pveupload-") {
            words.push("*");
        } else {
            words.push(word);
        }
    }
    words.join(" ")
}

fn compare_shape(old: &Value, new: &Value, path: &str, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let names = |object: &serde_json::Map<String, Value>| -> BTreeSet<String> {
                object.keys().cloned().collect()
            };
            for missing in names(old).difference(&names(new)) {
                found.push(format!("no field `{path}.{missing}`"));
            }
            for extra in names(new).difference(&names(old)) {
                found.push(format!("extra field `{path}.{extra}`"));
            }
            for (key, old) in old {
                if let Some(new) = new.get(key) {
                    compare_shape(old, new, &format!("{path}.{key}"), found);
                }
            }
        }
        (Value::Array(old), Value::Array(new)) => compare_lists(old, new, path, found),
        (old, new) => {
            if type_name(old) != type_name(new) {
                found.push(format!(
                    "`{path}` is {} instead of {}",
                    type_name(new),
                    type_name(old)
                ));
            }
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn compare_lists(old: &[Value], new: &[Value], path: &str, found: &mut Vec<String>) {
    if old.is_empty() != new.is_empty() {
        found.push(format!(
            "`{path}` has {} elements instead of {}",
            new.len(),
            old.len()
        ));
        return;
    }
    let identity = IDENTITIES
        .iter()
        .find(|name| !old.is_empty() && old.iter().all(|element| element.get(**name).is_some()));
    let Some(identity) = identity.filter(|name| **name != "upid") else {
        return compare_any(old, new, path, found);
    };
    let index = |list: &[Value]| -> BTreeMap<String, Value> {
        list.iter()
            .filter_map(|element| Some((element.get(*identity)?.to_string(), element.clone())))
            .collect()
    };
    let (old, new) = (index(old), index(new));
    // Lists of configuration keys and volumes must be complete. Other lists may contain objects that
    // the recording does not otherwise show.
    let complete = matches!(*identity, "key" | "volid");
    let mut common = 0;
    for (id, element) in &old {
        match new.get(id) {
            Some(other) => {
                common += 1;
                compare_shape(element, other, &format!("{path}[{id}]"), found);
            }
            None if complete => found.push(format!("no {id} in `{path}`")),
            None => {}
        }
    }
    if complete {
        for id in new.keys().filter(|id| !old.contains_key(*id)) {
            found.push(format!("extra {id} in `{path}`"));
        }
    }
    if common == 0 && !old.is_empty() {
        // No common names: at least the shapes must match.
        let (old, new): (Vec<Value>, Vec<Value>) =
            (old.into_values().collect(), new.into_values().collect());
        compare_any(&old, &new, path, found);
    }
}

/// Compares lists whose elements have no names: one element must have the shape of a recorded one.
fn compare_any(old: &[Value], new: &[Value], path: &str, found: &mut Vec<String>) {
    if old.is_empty() {
        return;
    }
    let mut best: Option<Vec<String>> = None;
    for element in old {
        for other in new {
            let mut differences = Vec::new();
            compare_shape(element, other, &format!("{path}[]"), &mut differences);
            if differences.is_empty() {
                return;
            }
            if best
                .as_ref()
                .is_none_or(|best| differences.len() < best.len())
            {
                best = Some(differences);
            }
        }
    }
    found.extend(best.unwrap_or_default());
}

/// Returns the comparable outcome of a task. Warnings count as success, because a task can inherit
/// the warning of another request in the same worker.
pub(crate) fn exit_class(exit: &str) -> String {
    if exit == "OK" || exit.starts_with("WARNINGS:") {
        "success".to_owned()
    } else {
        normalize(exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn compare(old: &Value, new: &Value) -> Vec<String> {
        let mut found = Vec::new();
        compare_shape(old, new, "", &mut found);
        found
    }

    #[test]
    fn fields_and_types_are_compared_and_values_are_not() {
        assert!(compare(&json!({"a": 1, "b": "x"}), &json!({"a": 2, "b": "y"})).is_empty());
        assert_eq!(compare(&json!({"a": 1}), &json!({"a": "1"})).len(), 1);
        assert_eq!(compare(&json!({"a": 1}), &json!({"b": 1})).len(), 2);
    }

    #[test]
    fn list_elements_are_matched_by_name() {
        let old = json!([{"vmid": 1, "tags": "a"}, {"vmid": 2}]);
        assert!(compare(&old, &json!([{"vmid": 2}, {"vmid": 1, "tags": "b"}])).is_empty());
        assert_eq!(compare(&old, &json!([{"vmid": 2, "tags": "b"}])).len(), 1);
    }

    #[test]
    fn a_task_with_warnings_is_a_success() {
        assert_eq!(exit_class("WARNINGS: 1"), exit_class("OK"));
        assert_ne!(exit_class("got timeout"), exit_class("OK"));
    }
}
