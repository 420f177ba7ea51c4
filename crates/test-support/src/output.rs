//! Checks that the JSON that a program prints or writes matches its type and schema in `api::v1`.

use homestak_api::v1::kind::WITHOUT_KIND;
use homestak_api::v1::{OUTPUTS, Program, UNTAGGED};
use serde_json::Value;

/// Checks every document that a program printed: one document, or one per line of events.
/// Documents that are neither an output of a kind nor an event are ignored.
pub fn check(printed: &str) {
    for document in documents(printed) {
        check_document(&document);
    }
}

/// Checks what a program printed. With `--json-output` among its arguments, it must have printed
/// exactly one output of a kind, unless its command prints none; a failure may print nothing.
pub fn check_run<S: AsRef<str>>(arguments: &[S], printed: &str, success: bool) {
    check(printed);
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    let is_empty = printed.is_empty() && !success;
    if !is_json(&arguments) || is_empty || prints_no_kind(&arguments) {
        return;
    }
    let kinds = kinds(printed);
    let is_known = |kind: &String| OUTPUTS.iter().any(|output| output.kind == kind);
    assert!(
        kinds.len() == 1 && kinds.iter().all(is_known),
        "{arguments:?} prints the kinds {kinds:?}, not one of homestak_api::v1:\n{printed}"
    );
}

/// Checks a document without `kind`: a file, by the name of its schema.
pub fn check_untagged(program: Program, name: &str, document: &Value) {
    let mut all = UNTAGGED.iter();
    let output = all.find(|one| one.program == program && one.name == name);
    let output = output.expect("a name in the table");
    if let Some(error) = error_of(document, &(output.schema)(), output.round_trip) {
        panic!("not a `{name}` as homestak_api::v1 declares it:\n{error}\n{document:#}");
    }
}

/// Returns the kinds of the outputs that a program printed.
pub fn kinds(printed: &str) -> Vec<String> {
    let kind = |document: Value| document["kind"].as_str().map(str::to_owned);
    documents(printed).into_iter().filter_map(kind).collect()
}

/// Returns the documents in what was printed; if it is not only JSON, those that are lines.
fn documents(printed: &str) -> Vec<Value> {
    let all: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(printed)
        .into_iter()
        .collect();
    all.unwrap_or_else(|_| {
        let lines = printed.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    })
}

/// Returns whether `--json-output`, or a spelling of it, is among the arguments of the program. What
/// follows `--` is for another one.
fn is_json(arguments: &[&str]) -> bool {
    let mut own = arguments.iter().take_while(|word| **word != "--");
    own.any(|word| ["--json-output", "--json"].contains(word))
}

/// Returns whether the command is one that prints no output of a kind. Words before the command are
/// values of options.
fn prints_no_kind(arguments: &[&str]) -> bool {
    let words = arguments.iter().filter(|word| !word.starts_with('-'));
    let words: Vec<&str> = words.copied().collect();
    let name = |command: &'static str| command.split(" --").next().unwrap();
    let starts = |at: usize, command: &'static str| {
        let command: Vec<&str> = name(command).split(' ').collect();
        words[at..].starts_with(&command)
    };
    // One word that has a kind too, such as `schema`, is one that prints none.
    let with_kind = |at| {
        let mut commands = OUTPUTS.iter().flat_map(|output| output.commands);
        commands.any(|command| name(command).contains(' ') && starts(at, command))
    };
    let without = |at| WITHOUT_KIND.iter().any(|(command, _)| starts(at, command));
    let mut places = 0..words.len();
    let command = places.find(|at| with_kind(*at) || without(*at));
    command.is_some_and(|at| without(at) && !with_kind(at))
}

fn check_document(document: &Value) {
    let has = |key: &str| document.get(key).is_some();
    match document["kind"].as_str() {
        Some(kind) if has("version") => check_kind(document, kind),
        _ if has("event") && has("at") && has("run") => {
            check_untagged(Program::Homestak, "event", document);
        }
        _ if has("event") && has("n") => check_untagged(Program::Agent, "event", document),
        _ => {}
    }
}

fn check_kind(document: &Value, kind: &str) {
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
