//! JSON of a resolved document with the origin of each value. No `Debug`: it may contain secrets.

use serde_json::{Map, Value as Json};

use super::origin::{Origin, WithOrigin};

/// JSON with the origin of each value.
#[derive(Default)]
pub struct ResolvedJson {
    json: Map<String, Json>,
    origins: Vec<(String, Origin)>,
}

impl ResolvedJson {
    /// Sets a value at a dotted path, with its origin.
    pub fn put(&mut self, path: &str, value: impl Into<Json>, origin: &Origin) {
        self.set(path, value.into());
        self.origins.push((path.to_owned(), origin.clone()));
    }

    /// Sets a value with its origin.
    pub fn put_value<T: Clone + Into<Json>>(&mut self, path: &str, value: &WithOrigin<T>) {
        self.put(path, value.value.clone(), &value.origin);
    }

    /// Sets a value with its origin, as text.
    pub fn put_text<T: ToString>(&mut self, path: &str, value: &WithOrigin<T>) {
        self.put(path, value.value.to_string(), &value.origin);
    }

    /// Sets a value without an origin, such as an empty list.
    pub fn set(&mut self, path: &str, value: Json) {
        let mut at = &mut self.json;
        let mut rest = path;
        while let Some((key, deeper)) = rest.split_once('.') {
            let next = at.entry(key).or_insert_with(|| Json::Object(Map::new()));
            if !next.is_object() {
                *next = Json::Object(Map::new());
            }
            let Json::Object(inner) = next else { return };
            at = inner;
            rest = deeper;
        }
        at.insert(rest.to_owned(), value);
    }

    /// Adds the origin of a part of a value that is set separately.
    pub fn add_origin(&mut self, path: impl Into<String>, origin: Origin) {
        self.origins.push((path.into(), origin));
    }

    /// Returns the JSON.
    pub fn json(&self) -> Json {
        Json::Object(self.json.clone())
    }

    /// Converts it into the JSON, without a copy.
    pub fn into_json(self) -> Json {
        Json::Object(self.json)
    }

    /// Returns the origins in the order the values were set.
    pub fn origins(&self) -> &[(String, Origin)] {
        &self.origins
    }
}
