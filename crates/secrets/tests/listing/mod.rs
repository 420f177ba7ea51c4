//! Lists the values of a document in the format of the Python reference: one line per value.

use homestak_core::doc::tree::Meaning;
use homestak_core::doc::{Data, Diagnostics, FileId, Source, Value, yaml};

/// Lists all values with path and type.
pub(crate) fn listing(plain: &str) -> Vec<String> {
    let mut diagnostics = Diagnostics::default();
    let root = yaml::parse(FileId(0), &Source::new("x", plain), &mut diagnostics);
    let mut lines = Vec::new();
    list(&root.expect("documents of tests are YAML"), &[], &mut lines);
    lines
}

fn list(value: &Value, path: &[String], lines: &mut Vec<String>) {
    let inner = |name: String| [path, &[name]].concat();
    match &value.data {
        Data::Map(entries) => {
            for entry in entries {
                list(&entry.value, &inner(entry.key.text.clone()), lines);
            }
        }
        Data::Seq(items) => {
            for (nth, item) in items.iter().enumerate() {
                list(item, &inner(nth.to_string()), lines);
            }
        }
        Data::Scalar(scalar) => {
            let path = path.join("/");
            lines.push(match scalar.meaning() {
                Meaning::Null => format!("{path} null"),
                Meaning::Bool(true) => format!("{path} bool True"),
                Meaning::Bool(false) => format!("{path} bool False"),
                Meaning::Int(number) => format!("{path} int {number}"),
                Meaning::Float(number) => format!("{path} float {number}"),
                Meaning::Ambiguous | Meaning::Text => {
                    format!(
                        "{path} str {}",
                        serde_json::Value::from(scalar.text.as_str())
                    )
                }
            });
        }
    }
}
