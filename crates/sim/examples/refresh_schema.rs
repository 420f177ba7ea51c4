//! Generates the API schema of the simulator, `crates/sim/src/schema/table.json`, from the official
//! API description in JSON. Descriptive text is omitted.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The fields of a parameter that the checks need.
const KEPT: [&str; 14] = [
    "type",
    "optional",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "enum",
    "format",
    "pattern",
    "default_key",
    "alias",
    "keyAlias",
    "items",
    "requires",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = std::env::args()
        .nth(1)
        .ok_or("usage: refresh_schema PVE-API.json")?;
    let tree: Value = serde_json::from_slice(&fs_err::read(source)?)?;
    let mut methods = BTreeMap::new();
    collect(&tree, &mut methods);

    let mut definitions: Vec<Value> = Vec::new();
    let mut rows = Vec::new();
    for (method, path) in homestak_sim::METHODS {
        let Some(info) = methods.get(&(method.to_string(), path.to_string())) else {
            return Err(format!("{method} {path} is not in the API description").into());
        };
        let mut parameters = Map::new();
        if let Some(properties) = info["parameters"]["properties"].as_object() {
            for (name, definition) in properties {
                let trimmed = trim(definition);
                let index = definitions
                    .iter()
                    .position(|known| *known == trimmed)
                    .unwrap_or_else(|| {
                        definitions.push(trimmed.clone());
                        definitions.len() - 1
                    });
                parameters.insert(name.clone(), json!(index));
            }
        }
        let mut row = json!({ "method": method, "path": path, "parameters": parameters });
        for (flag, key) in [("protected", "protected"), ("proxyto", "proxyto")] {
            if let Some(value) = info.get(key).filter(|value| **value != json!(0)) {
                row[flag] = value.clone();
            }
        }
        if let Some(check) = info["permissions"].get("check") {
            row["check"] = check.clone();
        }
        if info["permissions"]["user"] == "world" {
            row["world"] = json!(1);
        }
        rows.push(row);
    }
    let mut text = String::from("{\"definitions\":[\n");
    text.push_str(&lines(&definitions)?);
    text.push_str("\n],\"methods\":[\n");
    text.push_str(&lines(&rows)?);
    text.push_str("\n]}\n");
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/src/schema/table.json");
    fs_err::write(target, text)?;
    Ok(())
}

fn lines(values: &[Value]) -> serde_json::Result<String> {
    let lines: Result<Vec<String>, _> = values.iter().map(serde_json::to_string).collect();
    Ok(lines?.join(",\n"))
}

fn collect(node: &Value, methods: &mut BTreeMap<(String, String), Value>) {
    match node {
        Value::Array(nodes) => nodes.iter().for_each(|node| collect(node, methods)),
        Value::Object(object) => {
            let path = object.get("path").and_then(Value::as_str).unwrap_or("");
            if let Some(info) = object.get("info").and_then(Value::as_object) {
                for (method, info) in info {
                    methods.insert((method.clone(), path.to_owned()), info.clone());
                }
            }
            if let Some(children) = object.get("children") {
                collect(children, methods);
            }
        }
        _ => {}
    }
}

/// Keeps the fields that the checks need. A format that is an object describes a property string.
fn trim(definition: &Value) -> Value {
    let Some(object) = definition.as_object() else {
        return definition.clone();
    };
    let mut kept = Map::new();
    for key in KEPT {
        match object.get(key) {
            Some(Value::Object(parts)) if key == "format" => {
                let parts: Map<String, Value> = parts
                    .iter()
                    .map(|(name, part)| (name.clone(), trim(part)))
                    .collect();
                kept.insert("format".into(), Value::Object(parts));
            }
            Some(items @ Value::Object(_)) if key == "items" => {
                kept.insert("items".into(), trim(items));
            }
            // Some limits are strings in the API description.
            Some(Value::String(text)) if key.starts_with("m") => {
                let number: f64 = text.parse().unwrap_or(0.0);
                kept.insert(key.into(), json!(number));
            }
            Some(value) if !value.is_null() => {
                kept.insert(key.into(), value.clone());
            }
            Some(_) | None => {}
        }
    }
    Value::Object(kept)
}
