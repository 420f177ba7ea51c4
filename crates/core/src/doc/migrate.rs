//! Converts a manifest of schema version 1 (`levels`) to version 2 (`nodes`). Everything without a
//! counterpart is reported.

use super::code::Code;
use super::decode::Context;
use super::diagnostic::Diagnostics;
use super::manifest::OnError;
use super::tree::{Data, Entry, Key, Meaning, NO_SPAN, Scalar, Value};

/// Keys of a level that are converted.
const LEVEL_KEYS: &[&str] = &[
    "name",
    "vm_preset",
    "vmid",
    "image",
    "post_scenario",
    "post_scenario_args",
];

/// Why a manifest was not migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMigrated {
    /// It already has version 2.
    AlreadyCurrent,
    /// It has no levels.
    NoLevels,
    /// It has errors, which were reported.
    Invalid,
}

/// Migrates a version 1 manifest. What could not be converted is reported as notices.
pub fn migrate(
    tree: &Value,
    stem: &str,
    diagnostics: &mut Diagnostics,
) -> Result<Value, NotMigrated> {
    let version = tree
        .field("schema_version")
        .and_then(Value::scalar)
        .map(Scalar::meaning);
    if version == Some(Meaning::Int(2)) || tree.field("nodes").is_some() {
        return Err(NotMigrated::AlreadyCurrent);
    }
    let before = diagnostics.errors();
    let mut cx = Context::new(diagnostics);
    let levels = tree
        .field("levels")
        .and_then(Value::items)
        .ok_or(NotMigrated::NoLevels)?;
    let name = tree.field("name").and_then(Value::as_text).unwrap_or(stem);
    let mut document = vec![plain("schema_version", "2"), text("name", name)];
    if let Some(description) = tree.field("description").and_then(Value::as_text) {
        document.push(text("description", description));
    }
    document.push(text(
        "pattern",
        if levels.len() > 1 { "tiered" } else { "flat" },
    ));
    settings(tree, &mut document);
    let mut nodes = Vec::new();
    let mut parent: Option<String> = None;
    for (nth, level) in levels.iter().enumerate() {
        let hosts = nth + 1 < levels.len();
        let Some(entries) = self::level(level, parent.as_deref(), hosts, &mut cx) else {
            continue;
        };
        parent = level
            .field("name")
            .and_then(Value::as_text)
            .map(str::to_owned);
        nodes.push(map(entries));
    }
    if cx.diagnostics.errors() > before || nodes.is_empty() {
        return Err(NotMigrated::Invalid);
    }
    document.push(Entry {
        key: Key::bare("nodes"),
        value: Value {
            span: NO_SPAN,
            data: Data::Seq(nodes),
        },
    });
    Ok(map(document))
}

fn settings(tree: &Value, document: &mut Vec<Entry>) {
    let Some(old) = tree.field("settings").and_then(Value::entries) else {
        return;
    };
    let known = [
        "verify_ssh",
        "cleanup_on_failure",
        "timeout_buffer",
        "on_error",
    ];
    let kept: Vec<Entry> = old
        .iter()
        .filter(|entry| known.contains(&entry.key.text.as_str()))
        .filter(|entry| {
            entry.key.text != "on_error"
                || entry
                    .value
                    .as_text()
                    .is_some_and(|name| OnError::from_name(name).is_some())
        })
        .cloned()
        .collect();
    if !kept.is_empty() {
        document.push(Entry {
            key: Key::bare("settings"),
            value: map(kept),
        });
    }
}

fn level(
    level: &Value,
    parent: Option<&str>,
    hosts: bool,
    cx: &mut Context<'_>,
) -> Option<Vec<Entry>> {
    let Some(name) = level.field("name").and_then(Value::as_text) else {
        cx.missing_key(level.span, &[], "name", "the level");
        return None;
    };
    let scenario = level.field("post_scenario").and_then(Value::as_text);
    let is_pve = hosts || scenario == Some("pve-setup");
    let mut node = vec![
        text("name", name),
        text("type", if is_pve { "pve" } else { "vm" }),
        text("spec", if is_pve { "pve" } else { "base" }),
    ];
    if let Some(preset) = level.field("vm_preset").and_then(Value::as_text) {
        let preset = if preset.starts_with("vm-") {
            preset.to_owned()
        } else {
            format!("vm-{preset}")
        };
        node.push(text("preset", &preset));
    }
    if let Some(image) = level.field("image").and_then(Value::as_text) {
        node.push(text("image", image));
    }
    if let Some(vmid) = level.field("vmid").and_then(Value::scalar) {
        node.push(Entry {
            key: Key::bare("vmid"),
            value: Value {
                span: NO_SPAN,
                data: Data::Scalar(vmid.clone()),
            },
        });
    }
    if let Some(parent) = parent {
        node.push(text("parent", parent));
    }
    for entry in level.entries().unwrap_or_default() {
        let key = entry.key.text.as_str();
        let message = match key {
            "post_scenario" | "post_scenario_args" if scenario == Some("pve-setup") => continue,
            "post_scenario" => {
                format!("`post_scenario` of `{name}` has no counterpart and is dropped")
            }
            "post_scenario_args" => continue,
            _ if LEVEL_KEYS.contains(&key) => continue,
            _ => format!("`{key}` of `{name}` has no counterpart and is dropped"),
        };
        let hint = match key {
            "post_scenario" => "configure it in the node's spec",
            "vmid_offset" => "write `settings: {vmid_base: ...}` or a `vmid` on the node",
            _ => "write `preset`, `image` and `vmid` on the node",
        };
        cx.notice(Code::OldName, entry.key.span, message, hint);
    }
    Some(node)
}

fn text(key: &str, value: &str) -> Entry {
    scalar(key, Scalar::text(value))
}

fn plain(key: &str, value: &str) -> Entry {
    scalar(key, Scalar::plain(value))
}

fn scalar(key: &str, scalar: Scalar) -> Entry {
    Entry {
        key: Key::bare(key),
        value: Value {
            span: NO_SPAN,
            data: Data::Scalar(scalar),
        },
    }
}

fn map(entries: Vec<Entry>) -> Value {
    Value {
        span: NO_SPAN,
        data: Data::Map(entries),
    }
}
