//! Storage settings, permissions and usage that a recording shows but does not set.

use std::collections::BTreeSet;

use serde_json::Value;

use super::transcript::Row;
use crate::world::World;
use crate::world::access::Grant;

/// Sets the retention settings that lists of storages show.
pub(super) fn definitions(rows: &[Row], world: &World) {
    let lists = rows.iter().filter(|row| row.api_path() == "/storage");
    for entry in lists.filter_map(|row| row.data().as_array()).flatten() {
        let name = entry["storage"].as_str().unwrap_or("");
        if let (Some(storage), Some(kept)) = (
            world.state().storages.get_mut(name),
            entry["prune-backups"].as_str(),
        ) {
            let key = "prune-backups".to_owned();
            storage.options.insert(key, kept.to_owned());
        }
    }
}

/// Adds the permissions that a list shows and no row sets.
pub(super) fn grants(rows: &[Row], world: &World) {
    let changes = |row: &&Row| row.api_path() == "/access/acl" && row.method == "PUT";
    let changed: BTreeSet<String> = rows
        .iter()
        .filter(changes)
        .flat_map(|row| [row.parameter("users"), row.parameter("tokens")])
        .flatten()
        .collect();
    let lists = rows
        .iter()
        .filter(|row| row.api_path() == "/access/acl" && row.method == "GET");
    for entry in lists.filter_map(|row| row.data().as_array()).flatten() {
        let text = |key: &str| entry[key].as_str().unwrap_or("").to_owned();
        let kind = match entry["type"].as_str() {
            Some("token") => "token",
            Some("user") => "user",
            _ => continue,
        };
        if !changed.contains(&text("ugid")) {
            let grant = Grant {
                path: text("path"),
                kind,
                subject: text("ugid"),
                role: text("roleid"),
                propagate: entry["propagate"] == 1,
            };
            world.state().access.grants.push(grant);
        }
    }
}

/// Sets size, fullness and mount state of storages as a row shows them.
pub(crate) fn set_usage(world: &World, row: &Row) {
    let parts: Vec<&str> = row.api_path().split('/').skip(1).collect();
    let name = match parts[..] {
        ["nodes", _, "storage"] => None,
        ["nodes", _, "storage", name, "status"] => Some(name),
        _ => return,
    };
    let entries = match row.data() {
        Value::Array(entries) => entries.iter().collect(),
        entry => vec![entry],
    };
    for entry in entries {
        let name = name.or(entry["storage"].as_str()).unwrap_or("");
        let number = |key: &str| entry[key].as_u64();
        let mut state = world.state();
        let (Some(storage), Some(total), Some(free)) = (
            state.storages.get_mut(name),
            number("total"),
            number("avail"),
        ) else {
            continue;
        };
        if entry["enabled"] == 1 {
            storage.mounted = entry["active"] == 1;
        }
        if total > 0 {
            (storage.total, storage.full) = (total, free == 0);
        }
    }
}
