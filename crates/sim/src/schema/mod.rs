//! The API schema: methods and their parameters, generated from the official API description by
//! `examples/refresh_schema.rs`.

pub(crate) mod check;
pub(crate) mod format;
pub(crate) mod property;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

/// One parameter: its type, limits and format.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Definition {
    #[serde(rename = "type", default)]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) optional: Option<Value>,
    #[serde(default)]
    pub(crate) minimum: Option<f64>,
    #[serde(default)]
    pub(crate) maximum: Option<f64>,
    #[serde(default)]
    pub(crate) min_length: Option<usize>,
    #[serde(default)]
    pub(crate) max_length: Option<usize>,
    #[serde(rename = "enum", default)]
    pub(crate) values: Vec<String>,
    #[serde(default)]
    pub(crate) format: Option<Format>,
    #[serde(default)]
    pub(crate) pattern: Option<String>,
    #[serde(rename = "default_key", default)]
    pub(crate) default_key: Option<Value>,
    #[serde(default)]
    pub(crate) alias: Option<String>,
    #[serde(default)]
    pub(crate) key_alias: Option<String>,
    /// A parameter that this one requires.
    #[serde(default)]
    pub(crate) requires: Option<String>,
}

impl Definition {
    pub(crate) fn is_optional(&self) -> bool {
        match &self.optional {
            Some(Value::Number(number)) => number.as_i64() != Some(0),
            Some(Value::Bool(flag)) => *flag,
            Some(_) => true,
            None => false,
        }
    }
}

/// A named format, or the parts of a property string.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Format {
    Named(String),
    Parts(BTreeMap<String, Definition>),
}

#[derive(Debug, Deserialize)]
struct Row {
    method: String,
    path: String,
    parameters: BTreeMap<String, usize>,
    #[serde(default)]
    protected: Option<Value>,
    #[serde(default)]
    proxyto: Option<Value>,
    #[serde(default)]
    check: Option<Value>,
    #[serde(default)]
    world: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Document {
    definitions: Vec<Definition>,
    methods: Vec<Row>,
}

/// One method of the API.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) verb: String,
    pub(crate) path: String,
    pub(crate) parameters: BTreeMap<String, usize>,
    /// Served by the privileged daemon, which has few workers, instead of the proxy.
    pub(crate) protected: bool,
    /// Belongs to one node; other nodes forward it.
    pub(crate) of_node: bool,
    /// The permission expression of the API description.
    pub(crate) check: Option<Value>,
    /// Needs no authentication.
    pub(crate) world: bool,
    segments: Vec<Segment>,
}

#[derive(Debug)]
enum Segment {
    Literal(String),
    Name(String),
}

/// The schema.
#[derive(Debug)]
pub(crate) struct Table {
    definitions: Vec<Definition>,
    methods: Vec<Method>,
}

/// Returns the schema. It is parsed once.
pub(crate) fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let document: Document = serde_json::from_str(include_str!("table.json"))
            .expect("the table is committed and a test parses it");
        let methods = document.methods.into_iter().map(method).collect();
        Table {
            definitions: document.definitions,
            methods,
        }
    })
}

fn method(row: Row) -> Method {
    let segments = row
        .path
        .split('/')
        .skip(1)
        .map(|part| match part.strip_prefix('{') {
            Some(name) => Segment::Name(name.trim_end_matches('}').to_owned()),
            None => Segment::Literal(part.to_owned()),
        })
        .collect();
    Method {
        verb: row.method,
        path: row.path,
        parameters: row.parameters,
        protected: row.protected.is_some(),
        of_node: row.proxyto.is_some(),
        check: row.check,
        world: row.world.is_some(),
        segments,
    }
}

impl Table {
    /// Finds the method for a path without `/api2/json`. Literal segments take precedence over
    /// parameters.
    pub(crate) fn find(
        &self,
        verb: &str,
        path: &str,
    ) -> Option<(&Method, BTreeMap<String, String>)> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let mut best: Option<(usize, &Method, BTreeMap<String, String>)> = None;
        for method in self.methods.iter().filter(|method| method.verb == verb) {
            let Some((literals, names)) = method.matches(&parts) else {
                continue;
            };
            if best.as_ref().is_none_or(|(most, _, _)| literals > *most) {
                best = Some((literals, method, names));
            }
        }
        best.map(|(_, method, names)| (method, names))
    }

    /// Returns the definition of a parameter; `net3` is `net[n]`.
    pub(crate) fn definition(&self, method: &Method, name: &str) -> Option<&Definition> {
        let index = method.parameters.get(name).or_else(|| {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let digits = &name[stem.len()..];
            let plain = !digits.is_empty() && (digits == "0" || !digits.starts_with('0'));
            let limit = max_count(stem);
            (plain && digits.parse::<u32>().is_ok_and(|n| n < limit))
                .then(|| method.parameters.get(&format!("{stem}[n]")))
                .flatten()
        })?;
        self.definitions.get(*index)
    }
}

/// Returns the maximum count of a numbered parameter.
fn max_count(stem: &str) -> u32 {
    match stem {
        "ide" | "serial" => 4,
        "sata" => 6,
        "scsi" => 31,
        "virtio" | "hostpci" => 16,
        "usb" => 14,
        "parallel" => 3,
        "numa" => 8,
        "virtiofs" => 10,
        "net" | "ipconfig" => 32,
        _ => 256,
    }
}

impl Method {
    fn matches(&self, parts: &[&str]) -> Option<(usize, BTreeMap<String, String>)> {
        let mut names = BTreeMap::new();
        let mut literals = 0;
        let last = self.segments.len().checked_sub(1);
        for (at, segment) in self.segments.iter().enumerate() {
            match segment {
                Segment::Literal(text) => {
                    if parts.get(at) != Some(&text.as_str()) {
                        return None;
                    }
                    literals += 1;
                }
                // A volume id contains slashes, so it takes the rest of the path.
                Segment::Name(name) if Some(at) == last && name == "volume" => {
                    let rest = parts.get(at..).filter(|rest| !rest.is_empty())?;
                    names.insert(name.clone(), rest.join("/"));
                    return Some((literals, names));
                }
                Segment::Name(name) => {
                    names.insert(name.clone(), (*parts.get(at)?).to_owned());
                }
            }
        }
        (parts.len() == self.segments.len()).then_some((literals, names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_contains_every_simulated_method() {
        for (verb, path) in crate::METHODS {
            assert!(
                table()
                    .methods
                    .iter()
                    .any(|m| m.verb == *verb && m.path == *path),
                "{verb} {path}"
            );
        }
    }

    #[test]
    fn a_volume_id_may_contain_a_slash() {
        let (_, names) = table()
            .find(
                "DELETE",
                "/nodes/pve1/storage/local/content/local:iso/a.iso",
            )
            .unwrap();
        assert_eq!(names["volume"], "local:iso/a.iso");
    }
}
