//! The OpenAPI 3.1 document of the server's endpoints, generated from the types of `v1`.

mod operation;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::answer::{ErrorAnswer, Problem};
use crate::publication::STATEMENT_HEADER;
use operation::{Access, Body, Parameter, Request};
pub use operation::{OPERATIONS, Operation};

/// Returns the schema of a type, and adds the types that it uses to the generator.
type SchemaOf = fn(&mut SchemaGenerator) -> Value;

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn generator(is_request: bool) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let settings = match is_request {
        true => settings.for_deserialize(),
        false => settings.for_serialize(),
    };
    settings.into_generator()
}

/// Returns the document.
pub fn document() -> Value {
    let (mut requests, mut answers) = (generator(true), generator(false));
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let written = write(operation, &mut requests, &mut answers);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if operation.method == "get" {
            path["head"] = head(&written);
        }
        path[operation.method] = written;
    }
    let mut schemas = requests.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    schemas.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "homestak server",
            "version": "1",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Signed specs, enrolment, reports and jobs of nodes, over TLS 1.3. \
                Later versions may add fields; ignore fields that you do not know.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": { "schemas": schemas, "securitySchemes": security_schemes() },
    })
}

fn security_schemes() -> Value {
    let certificate =
        |description: &str| json!({ "type": "mutualTLS", "description": description });
    json!({
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The provisioning token of the node, or the token that its posture \
                names; accepted until the node has enrolled.",
        },
        "repository": {
            "type": "http",
            "scheme": "bearer",
            "description": "The token for repositories; it is also accepted as the password of \
                `Basic` authentication, with any user name.",
        },
        "node": certificate("The client certificate of an enrolled node."),
        "operator": certificate("The client certificate of an operator."),
    })
}

fn write(
    operation: &Operation,
    requests: &mut SchemaGenerator,
    answers: &mut SchemaGenerator,
) -> Value {
    let mut written = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "security": security(operation.access),
    });
    if !operation.parameters.is_empty() {
        written["parameters"] = operation.parameters.iter().map(parameter).collect();
    }
    if let Some(request) = &operation.request {
        let content = match request {
            Request::Json(schema) => json!({ "application/json": { "schema": schema(requests) } }),
            Request::Other(kind) => json!({ *kind: {} }),
        };
        written["requestBody"] = json!({ "required": true, "content": content });
    }
    let mut responses = Map::new();
    for (status, body) in operation.answers {
        responses.insert(status.to_string(), success(*status, body, answers));
    }
    let error = match operation.path.starts_with("/v1/") {
        true => json!({ "application/problem+json": { "schema": schema_of::<Problem>(answers) } }),
        false => json!({ "application/json": { "schema": schema_of::<ErrorAnswer>(answers) } }),
    };
    for status in operation.refusals.iter().chain(&[500]) {
        let mut response = json!({ "description": reason(*status), "content": error });
        if let 429 | 503 = *status {
            let seconds = json!({ "type": "integer", "minimum": 1 });
            response["headers"] = json!({
                "Retry-After": { "description": "Seconds to wait.", "required": true, "schema": seconds },
            });
        }
        responses.insert(status.to_string(), response);
    }
    written["responses"] = responses.into();
    written
}

/// Returns the operation that differs from GET in that its answers have no bodies.
fn head(get: &Value) -> Value {
    let mut head = get.clone();
    let id = get["operationId"].as_str().unwrap_or_default();
    head["operationId"] = format!("{id}Head").into();
    let responses = head["responses"].as_object_mut();
    for (_, response) in responses.into_iter().flatten() {
        if let Some(response) = response.as_object_mut() {
            response.remove("content");
        }
    }
    head
}

fn security(access: &[Access]) -> Value {
    let one = |access: &Access| match access {
        Access::Anyone => json!({}),
        Access::Token => json!({ "token": [] }),
        Access::Node => json!({ "node": [] }),
        Access::Operator => json!({ "operator": [] }),
        Access::Repository => json!({ "repository": [] }),
    };
    access.iter().map(one).collect()
}

fn parameter(parameter: &Parameter) -> Value {
    let schema = match parameter.is_number {
        true => json!({ "type": "integer", "minimum": 0 }),
        false => json!({ "type": "string" }),
    };
    json!({
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": schema,
    })
}

fn success(status: u16, body: &Body, answers: &mut SchemaGenerator) -> Value {
    let text = |description: &str| json!({ "description": description, "required": true, "schema": { "type": "string" } });
    let statement = text("What the site's key signed of the content.");
    let etag = text("The entity tag, for `If-None-Match`.");
    match body {
        Body::Json(schema) => json!({
            "description": reason(status),
            "content": { "application/json": { "schema": schema(answers) } },
        }),
        Body::Document(description) => json!({
            "description": description,
            "content": { "application/json": { "schema": { "type": "object" } } },
        }),
        Body::Spec => json!({
            "description": "The resolved spec of the node.",
            "headers": { "ETag": etag, STATEMENT_HEADER: statement },
            "content": { "application/json": { "schema": { "type": "object" } } },
        }),
        Body::Unchanged => json!({
            "description": "The spec has the entity tag of `If-None-Match`.",
            "headers": { "ETag": etag, STATEMENT_HEADER: statement },
        }),
        Body::Program => json!({
            "description": "The agent's program.",
            "headers": { STATEMENT_HEADER: statement },
            "content": { "application/octet-stream": {} },
        }),
        Body::File => json!({
            "description": "The file, or a part of it; its type follows from its name.",
            "content": { "*/*": {} },
        }),
        Body::Other(kind) => json!({ "description": reason(status), "content": { *kind: {} } }),
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "Done.",
        201 => "Created.",
        202 => "Accepted; jobs were queued.",
        400 => "The request is malformed, or has no token.",
        401 => "The token or certificate is not valid.",
        403 => "The caller may not do this, or the token was used, or the node was revoked.",
        404 => "There is no such thing.",
        408 => "The request took too long.",
        409 => {
            "Several nodes have this name, so that the token must name the guest; or the state of \
            the job or node does not allow it."
        }
        411 => "The body was sent without `Content-Length`.",
        413 => "The body, or the file in a repository, is too large.",
        416 => "The part of the file does not exist.",
        415 => "The body has another type or encoding.",
        422 => "What was published or the settings cannot be used; nothing was changed.",
        429 => {
            "Too many failed attempts from this address or with this token, or too many requests of this node."
        }
        503 => "Too many bodies of requests are being received.",
        _ => "The server failed.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(entries) => {
                if let Some(reference) = entries.get("$ref").and_then(Value::as_str) {
                    found.push(reference.to_owned());
                }
                entries.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_has_a_schema_and_every_schema_a_reference() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        let schemas = document["components"]["schemas"].as_object();
        let schemas = schemas.expect("schemas");
        for name in schemas.keys() {
            let reference = format!("#/components/schemas/{name}");
            assert!(found.contains(&reference), "{name} is not used");
        }
        for reference in found {
            let pointer = reference.trim_start_matches('#');
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        assert!(schemas.contains_key("EnrolRequest") && schemas.contains_key("Report"));
    }

    #[test]
    fn a_type_that_is_sent_and_received_has_one_schema() {
        let (mut requests, mut answers) = (generator(true), generator(false));
        for operation in OPERATIONS {
            write(operation, &mut requests, &mut answers);
        }
        let answers = answers.take_definitions(true);
        for (name, schema) in requests.take_definitions(true) {
            let other = answers.get(&name);
            assert!(other.is_none_or(|other| *other == schema), "{name}");
        }
    }

    #[test]
    fn every_placeholder_of_a_path_is_a_parameter() {
        let mut ids = std::collections::BTreeSet::new();
        for operation in OPERATIONS {
            assert!(ids.insert(operation.id), "{} twice", operation.id);
            let placeholders = operation.path.split('/').filter_map(|segment| {
                let name = segment.strip_prefix('{')?;
                Some(name.split_once('}')?.0)
            });
            let of_path = operation.parameters.iter();
            let of_path = of_path.filter(|one| one.place == "path");
            let names: Vec<&str> = of_path.map(|one| one.name).collect();
            assert_eq!(placeholders.collect::<Vec<_>>(), names, "{}", operation.id);
        }
    }
}
