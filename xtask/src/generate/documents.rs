//! Generates `docs/reference/documents.md` from the JSON Schemas: every key with its type, default
//! and meaning. Patterns of values are left to the schemas.

use anyhow::{Context as _, Result, bail};
use homestak_core::doc::DocumentKind;
use serde_json::Value as Json;

use super::markdown::Page;

/// Returns the page.
pub(super) fn page() -> Result<String> {
    let mut page = Page::new("Documents");
    page.paragraph(
        "These are the documents of a site, and every key that they can have. \
         `a.b` is the key `b` of the mapping `a`, `a[].b` the key `b` of each entry of the list `a`, \
         and `a.*.b` the key `b` of each entry of the mapping `a`. \
         A key without a value counts as absent. \
         Editors check documents with the JSON Schemas in [`schema/`](../../schema).",
    );
    for kind in DocumentKind::ALL {
        let schema = kind.schema();
        let keys = keys(&schema).with_context(|| format!("describe the kind {}", kind.name()))?;
        page.heading(2, &title(kind.name()));
        if let Some(about) = keys.about {
            page.paragraph(&about);
        }
        let place = match kind.directory() {
            Some(directory) => format!("`{directory}/*.yaml`"),
            None => format!("`{}.yaml`", kind.name()),
        };
        let name = format!("{}.v{}.json", kind.name(), kind.version());
        page.paragraph(&format!(
            "File: {place}. Schema: [`{name}`](../../schema/{name})."
        ));
        page.table(
            &["key", "type", "required", "default", "meaning"],
            &keys.rows,
        );
    }
    Ok(page.finish())
}

fn title(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

/// The keys of a document, as rows of a table.
struct Keys {
    about: Option<String>,
    rows: Vec<Vec<String>>,
}

fn keys(schema: &Json) -> Result<Keys> {
    let mut walk = Walk {
        definitions: &schema["$defs"],
        open: Vec::new(),
        rows: Vec::new(),
    };
    let root = walk.target(schema)?;
    walk.mapping("", schema)?;
    Ok(Keys {
        about: root["description"].as_str().map(str::to_owned),
        rows: walk.rows,
    })
}

/// A walk through a schema, key by key.
struct Walk<'s> {
    definitions: &'s Json,
    /// Mappings being walked, to stop at one that contains itself.
    open: Vec<&'s str>,
    rows: Vec<Vec<String>>,
}

impl<'s> Walk<'s> {
    /// Adds the keys of a mapping, and of mappings below it.
    fn mapping(&mut self, prefix: &str, schema: &'s Json) -> Result<()> {
        let name = schema["$ref"].as_str().unwrap_or_default();
        if self.open.contains(&name) {
            return Ok(());
        }
        self.open.push(name);
        let target = self.target(schema)?;
        for (key, value) in target["properties"].as_object().into_iter().flatten() {
            if value["deprecated"] == true {
                old_name_has_a_key(key, value, target)?;
                continue;
            }
            let path = if prefix.is_empty() {
                key.clone()
            } else {
                format!("{prefix}.{key}")
            };
            self.row(&path, key, value, target)?;
            self.below(&path, value)?;
        }
        for pattern in target["patternProperties"]
            .as_object()
            .into_iter()
            .flatten()
        {
            let start = pattern.0.trim_start_matches('^');
            let path = format!("{prefix}.{start}*");
            let doc = "Your own data, which homestak does not interpret.";
            self.rows.push(row(&path, "anything", "no", "", doc));
        }
        self.open.pop();
        Ok(())
    }

    /// Adds the row of one key.
    fn row(&mut self, path: &str, key: &str, value: &Json, mapping: &Json) -> Result<()> {
        let listed = mapping["required"]
            .as_array()
            .is_some_and(|keys| keys.iter().any(|required| required == key));
        // An optional key takes null; a required one with an old name is not in `required`.
        let required = listed || !takes_null(value);
        let default = match &value["default"] {
            Json::Null => String::new(),
            default => format!("`{default}`").replace('"', ""),
        };
        let mut meaning = value["description"].as_str().unwrap_or_default().to_owned();
        for (old, schema) in mapping["properties"].as_object().into_iter().flatten() {
            if schema["deprecated"] == true && schema["description"] == old_name_of(key) {
                meaning += &format!(" Old name: `{old}`.");
            }
        }
        let required = if required { "yes" } else { "no" };
        self.rows
            .push(row(path, &self.words(value)?, required, &default, &meaning));
        Ok(())
    }

    /// Continues below a key: into a mapping, a list of mappings, or a mapping of mappings.
    fn below(&mut self, path: &str, value: &'s Json) -> Result<()> {
        for one in choices(value) {
            if one["$ref"].is_string() {
                self.mapping(path, one)?;
            } else if one["items"].is_object() {
                self.below(&format!("{path}[]"), &one["items"])?;
            } else if one["additionalProperties"].is_object() {
                self.below(&format!("{path}.*"), &one["additionalProperties"])?;
            }
        }
        Ok(())
    }

    /// Follows a reference to a definition.
    fn target(&self, schema: &'s Json) -> Result<&'s Json> {
        match schema["$ref"].as_str() {
            None => Ok(schema),
            Some(reference) => {
                let name = reference.trim_start_matches("#/$defs/");
                let target = &self.definitions[name];
                if target.is_null() {
                    bail!("the schema refers to `{reference}`, which it does not define");
                }
                Ok(target)
            }
        }
    }

    /// Describes the type of a value.
    fn words(&self, value: &Json) -> Result<String> {
        let words: Vec<String> = choices(value)
            .into_iter()
            .map(|one| self.one_in_words(one))
            .collect::<Result<_>>()?;
        Ok(words.join(" or "))
    }

    fn one_in_words(&self, one: &Json) -> Result<String> {
        let literal = |value: &Json| match value.as_str() {
            Some("") => "empty text".to_owned(),
            _ => format!("`{value}`").replace('"', ""),
        };
        if let Some(words) = one["enum"].as_array() {
            return Ok(words.iter().map(literal).collect::<Vec<_>>().join(", "));
        }
        if !one["const"].is_null() {
            return Ok(literal(&one["const"]));
        }
        if one["$ref"].is_string() {
            return Ok("mapping".into());
        }
        Ok(match one["type"].as_str() {
            Some("string") => "text".into(),
            Some("boolean") => "`true` or `false`".into(),
            Some("integer" | "number") => match (&one["minimum"], &one["maximum"]) {
                (Json::Null, Json::Null) => "number".into(),
                (least, Json::Null) => format!("number from {least}"),
                (Json::Null, most) => format!("number up to {most}"),
                (least, most) => format!("number, {least} to {most}"),
            },
            Some("array") => format!("list of {}", plural(&self.words(&one["items"])?)),
            Some("object") if one["additionalProperties"].is_object() => {
                format!(
                    "mapping to {}",
                    plural(&self.words(&one["additionalProperties"])?)
                )
            }
            Some("object") => "mapping".into(),
            None if untyped(one) => "anything".into(),
            other => bail!("no words for a value of type {other:?}: {one}"),
        })
    }
}

/// Returns how the schema describes the old name of a key.
fn old_name_of(key: &str) -> String {
    format!("Deprecated name of `{key}`.")
}

/// Fails if an old name belongs to no key, because it would be missing from the page.
fn old_name_has_a_key(old: &str, value: &Json, mapping: &Json) -> Result<()> {
    let mut keys = mapping["properties"].as_object().into_iter().flatten();
    if !keys.any(|(key, _)| value["description"] == old_name_of(key)) {
        bail!(
            "the old name `{old}` belongs to no key: {}",
            value["description"]
        );
    }
    Ok(())
}

/// Returns the alternatives of a value, without `null`.
fn choices(value: &Json) -> Vec<&Json> {
    match value["anyOf"].as_array() {
        None => vec![value],
        Some(any) => any
            .iter()
            .filter(|one| one["type"] != "null")
            .flat_map(choices)
            .collect(),
    }
}

fn takes_null(value: &Json) -> bool {
    match value["anyOf"].as_array() {
        Some(any) => any.iter().any(takes_null),
        None => value["type"] == "null" || untyped(value),
    }
}

/// Returns whether a key takes any value: it has a description and no type.
fn untyped(value: &Json) -> bool {
    ["type", "$ref", "const", "enum"]
        .iter()
        .all(|key| value[key].is_null())
}

fn plural(words: &str) -> String {
    match words {
        "mapping" => "mappings".into(),
        "text" | "anything" => words.into(),
        _ if words.starts_with("number") => words.replacen("number", "numbers", 1),
        _ => words.into(),
    }
}

fn row(path: &str, kind: &str, required: &str, default: &str, meaning: &str) -> Vec<String> {
    vec![
        format!("`{path}`"),
        kind.into(),
        required.into(),
        default.into(),
        meaning.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows(properties: Json) -> Vec<Vec<String>> {
        let schema = json!({
            "$ref": "#/$defs/Root",
            "$defs": {
                "Root": { "type": "object", "properties": properties, "required": ["name"] },
                "Below": { "type": "object", "properties": {
                    "size": { "anyOf": [{ "type": "integer", "minimum": 1, "maximum": 4 }, { "type": "null" }], "description": "How big." }
                } },
            },
        });
        keys(&schema).unwrap().rows
    }

    #[test]
    fn required_keys_and_defaults_are_shown() {
        let rows = rows(json!({
            "name": { "type": "string", "description": "Its name." },
            "mode": { "anyOf": [{ "enum": ["push", "pull"] }, { "type": "null" }], "default": "push", "description": "Who." },
        }));
        assert_eq!(rows[0], ["`name`", "text", "yes", "", "Its name."]);
        assert_eq!(
            rows[1],
            ["`mode`", "`push`, `pull`", "no", "`push`", "Who."]
        );
    }

    #[test]
    fn keys_below_lists_and_mappings_have_paths() {
        let below = json!({ "$ref": "#/$defs/Below" });
        let rows = rows(json!({
            "name": { "type": "string" },
            "one": { "anyOf": [below, { "type": "null" }] },
            "list": { "type": "array", "items": below },
            "map": { "type": "object", "additionalProperties": below },
        }));
        let paths: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        let expected = [
            "`name`",
            "`one`",
            "`one.size`",
            "`list`",
            "`list[].size`",
            "`map`",
            "`map.*.size`",
        ];
        assert_eq!(paths, expected);
        assert_eq!(rows[2][1], "number, 1 to 4");
        assert_eq!(rows[3][1], "list of mappings");
    }

    #[test]
    fn old_names_are_noted_with_the_new_one() {
        let rows = rows(json!({
            "name": { "type": "string", "description": "Its name." },
            "title": { "anyOf": [{ "type": "string" }, { "type": "null" }], "deprecated": true, "description": "Deprecated name of `name`." },
        }));
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0][4], "Its name. Old name: `title`.");
    }
}
