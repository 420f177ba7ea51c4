//! Checks of `--json-output`: what a program prints is of the type and schema of its kind.

use homestak_api::v1::OUTPUTS;
use serde_json::Value;

/// Checks every output in what a program printed: one document, or one in a line after events.
/// What has no `kind` and `version` is no output.
pub fn check(printed: &str) {
    match serde_json::from_str::<Value>(printed) {
        Ok(document) => check_document(&document),
        Err(_) => {
            let documents = printed
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            documents.for_each(|document: Value| check_document(&document));
        }
    }
}

fn check_document(document: &Value) {
    let (Some(kind), Some(_)) = (document["kind"].as_str(), document.get("version")) else {
        return;
    };
    let mut errors = Vec::new();
    // Two programs may have the same kind.
    for output in OUTPUTS.iter().filter(|output| output.kind == kind) {
        match error_of(document, &output.json_schema(), output.round_trip) {
            None => return,
            Some(error) => errors.push(error),
        }
    }
    let errors = errors.join("\n");
    panic!(
        "not an output of kind `{kind}` as homestak_api::v1 declares it:\n{errors}\n{document:#}"
    );
}

fn error_of(
    document: &Value,
    schema: &Value,
    round_trip: fn(Value) -> serde_json::Result<Value>,
) -> Option<String> {
    let validator = jsonschema::draft202012::new(schema).unwrap();
    if let Err(error) = validator.validate(document) {
        return Some(format!("{}: {error}", error.instance_path()));
    }
    match round_trip(document.clone()) {
        Err(error) => Some(error.to_string()),
        Ok(same) if same == *document => None,
        Ok(other) => Some(format!("it is read as {other:#}")),
    }
}
