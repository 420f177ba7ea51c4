//! JSON Schema (draft 2020-12) of the documents, for editors. Documents are validated by the
//! decoder.

use serde_json::{Map, Value as Json, json};

/// Collects the schemas of named mappings, so that each is described once.
#[derive(Default)]
pub struct Definitions {
    named: Map<String, Json>,
}

/// The schema of a mapping that is being built.
#[derive(Default)]
pub struct MappingSchema {
    properties: Map<String, Json>,
    required: Vec<&'static str>,
    /// Pattern of additional keys.
    open: Option<&'static str>,
}

impl Definitions {
    /// Adds the schema of a mapping once, and returns a reference to it.
    pub fn mapping(
        &mut self,
        name: &str,
        doc: &[&str],
        describe: impl FnOnce(&mut Self, &mut MappingSchema),
    ) -> Json {
        let reference = json!({ "$ref": format!("#/$defs/{name}") });
        if self.named.contains_key(name) {
            return reference;
        }
        self.named.insert(name.to_owned(), Json::Null);
        let mut mapping = MappingSchema::default();
        describe(self, &mut mapping);
        let mut schema = Map::new();
        schema.insert("description".into(), join(doc).into());
        schema.insert("type".into(), "object".into());
        schema.insert("properties".into(), mapping.properties.into());
        if !mapping.required.is_empty() {
            schema.insert("required".into(), mapping.required.into());
        }
        if let Some(pattern) = mapping.open {
            schema.insert("patternProperties".into(), json!({ pattern: {} }));
        }
        schema.insert("additionalProperties".into(), false.into());
        self.named.insert(name.to_owned(), schema.into());
        reference
    }

    /// Returns the schema of a document with the collected definitions.
    pub fn document(mut self, id: &str, title: &str, root: Json) -> Json {
        self.named.sort_keys();
        let mut schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": format!("https://homestak.dev/schemas/{id}.json"),
            "title": title,
        });
        if let (Json::Object(schema), Json::Object(root)) = (&mut schema, root) {
            schema.extend(root);
            schema.insert("$defs".into(), self.named.into());
        }
        schema
    }
}

impl MappingSchema {
    /// Adds a key.
    pub fn key(
        &mut self,
        key: &'static str,
        schema: Json,
        doc: &[&str],
        required: bool,
        default: Option<&str>,
    ) {
        let mut schema = nullable(schema, required);
        if let Json::Object(schema) = &mut schema {
            schema.insert("description".into(), join(doc).into());
            if let Some(default) = default {
                schema.insert(
                    "default".into(),
                    serde_json::from_str(default).unwrap_or_else(|_| default.into()),
                );
            }
        }
        self.properties.insert(key.to_owned(), schema);
        if required {
            self.required.push(key);
        }
    }

    /// Adds the deprecated name of a key. A required key may then be present under either name.
    pub fn old_key(&mut self, old: &str, new: &'static str, schema: Json) {
        let mut schema = nullable(schema, false);
        if let Json::Object(schema) = &mut schema {
            schema.insert(
                "description".into(),
                format!("Deprecated name of `{new}`.").into(),
            );
            schema.insert("deprecated".into(), true.into());
        }
        self.properties.insert(old.to_owned(), schema);
        self.required.retain(|key| *key != new);
    }

    /// Allows additional keys that match a pattern.
    pub fn open(&mut self, pattern: &'static str) {
        self.open = Some(pattern);
    }
}

/// A key without a value counts as absent, so optional keys accept null.
fn nullable(schema: Json, required: bool) -> Json {
    if required || schema.as_object().is_some_and(Map::is_empty) {
        return schema;
    }
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn join(doc: &[&str]) -> String {
    doc.iter()
        .map(|line| line.trim())
        .collect::<Vec<_>>()
        .join(" ")
}
