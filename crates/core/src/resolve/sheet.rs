//! A resolved thing as JSON, beside the origin of each of its values.
//!
//! In: dotted paths, values, origins. Out: ordered JSON and a list of origins.
//! Never: `Debug`; a sheet made with exposed secrets holds them.

use serde_json::{Map, Value as Json};

use super::origin::{Origin, Valued};

/// JSON with the origin of each value.
#[derive(Default)]
pub struct Sheet {
    json: Map<String, Json>,
    origins: Vec<(String, Origin)>,
}

impl Sheet {
    /// Puts a value at a dotted path.
    pub fn put(&mut self, path: &str, value: impl Into<Json>, origin: &Origin) {
        self.set(path, value.into());
        self.origins.push((path.to_owned(), origin.clone()));
    }

    /// Puts a value that has an origin.
    pub fn put_valued<T: Clone + Into<Json>>(&mut self, path: &str, valued: &Valued<T>) {
        self.put(path, valued.value.clone(), &valued.origin);
    }

    /// Puts a value that has an origin, as text.
    pub fn put_text<T: ToString>(&mut self, path: &str, valued: &Valued<T>) {
        self.put(path, valued.value.to_string(), &valued.origin);
    }

    /// Puts structure without an origin, such as an empty list.
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

    /// Adds an origin without a value, for a part of something already put.
    pub fn note(&mut self, path: impl Into<String>, origin: Origin) {
        self.origins.push((path.into(), origin));
    }

    /// Returns the JSON.
    pub fn json(&self) -> Json {
        Json::Object(self.json.clone())
    }

    /// Returns the JSON, without a copy.
    pub fn into_json(self) -> Json {
        Json::Object(self.json)
    }

    /// Returns the origins in the order values were put.
    pub fn origins(&self) -> &[(String, Origin)] {
        &self.origins
    }
}
