//! Replays recorded answers of servers of earlier versions: this agent must understand them, also with
//! fields that later versions add. `crates/server/tests/it/recorded.rs` records the answers.

use std::collections::BTreeMap;
use std::path::Path;

use homestak_core::firstboot::Enrolment;
use homestak_test_support::server::{Response, Server};
use serde_json::Value;

use super::fake_node::{self, FakeNode};
use super::{Puller, denied};

/// The recorded answers by name.
type Answers = BTreeMap<String, Response>;

/// Reads a recording. Adds an unknown header to each answer, and an unknown field to unsigned JSON.
fn answers(session: &Value) -> Answers {
    let exchanges = session["exchanges"].as_array().expect("exchanges").iter();
    let read = exchanges.map(|exchange| {
        let answer = &exchange["answer"];
        let status = answer["status"].as_u64().expect("a status");
        let headers = answer["headers"].as_object().expect("headers").iter();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let mut headers: Vec<_> = headers
            .map(|(name, value)| (name.clone(), text(value)))
            .collect();
        let mut body = text(&answer["body"]);
        let is_signed = headers.iter().any(|(name, _)| name == "homestak-statement");
        if let (false, Ok(Value::Object(mut fields))) = (is_signed, serde_json::from_str(&body)) {
            fields.insert("added_later".to_owned(), serde_json::json!({ "a": [1] }));
            body = Value::Object(fields).to_string();
        }
        headers.push(("x-added-later".to_owned(), "1".to_owned()));
        let status = u16::try_from(status).expect("a status");
        (
            text(&exchange["name"]),
            Response::Full(status, headers, body),
        )
    });
    read.collect()
}

/// Starts a server that sends recorded answers.
fn server(answers: Answers) -> Server {
    Server::answering(0, move |head| {
        let is_tagged = head.to_lowercase().contains("\r\nif-none-match: ");
        let name = match head.split(" HTTP/").next().unwrap_or_default() {
            "GET /spec/web" if is_tagged => "unchanged",
            "GET /spec/web" => "spec",
            "POST /v1/enrol" => "enrol",
            "POST /v1/renew" => "renew",
            "POST /v1/reports" => "converged",
            _ => return Response::Reply(404, "{}".to_owned()),
        };
        answers[name].clone()
    })
}

/// A machine with the key and the first-boot data of a recording.
fn machine(session: &Value, server: &Server) -> Puller {
    let root = tempfile::tempdir().expect("a directory");
    let store = fake_node::store(root.path());
    let key = session["node_key"].as_str().expect("a key");
    fs_err::write(store.state.join("registration.key"), key).expect("written");
    let enrolment = session["enrolment"].clone();
    let mut enrolment: Enrolment = serde_json::from_value(enrolment).expect("first-boot data");
    enrolment.servers = vec![server.url()];
    enrolment.authorities = vec![server.pem.clone()];
    let puller = Puller {
        root,
        store,
        node: FakeNode::default(),
    };
    puller.enrolment(&enrolment);
    puller
}

fn sessions() -> Vec<Value> {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/recorded");
    let versions = fs_err::read_dir(recorded).expect("recordings");
    let read = versions.map(|version| {
        let path = version.expect("an entry").path().join("session.json");
        let text = fs_err::read_to_string(path).expect("read");
        serde_json::from_str(&text).expect("JSON")
    });
    read.collect()
}

#[test]
fn recorded_answers_of_every_version_are_understood() {
    let sessions = sessions();
    assert!(!sessions.is_empty());
    for session in sessions {
        let answers = answers(&session);
        let Response::Full(_, _, spec) = answers["spec"].clone() else {
            panic!("no spec was recorded");
        };
        let server = server(answers);
        let mut web = machine(&session, &server);
        let done = web.pass().expect("applied");
        assert_eq!(
            (done.generation, done.fetched, done.reported),
            (7, true, true)
        );
        assert_eq!(web.node.applied.as_deref(), Some(spec.as_str()));
        assert!(!web.store.enrolment.exists(), "the token is removed");
        let again = web.pass().expect("nothing to do");
        assert!(!again.fetched && again.reported);
        let before = web.registration().chain;
        web.change(|registration| registration.renew_after = 0);
        web.pass().expect("renewed");
        assert_ne!(web.registration().chain, before);
        let requests = server.requests().concat();
        for path in [
            "POST /v1/enrol ",
            "GET /spec/web ",
            "POST /v1/renew ",
            "POST /v1/reports ",
        ] {
            assert!(requests.contains(path), "{path}");
        }
    }
}

#[test]
fn recorded_refusals_of_every_version_are_understood() {
    for session in sessions() {
        let mut answers = answers(&session);
        let spent = answers["spent"].clone();
        answers.insert("enrol".to_owned(), spent);
        let server = server(answers);
        let mut web = machine(&session, &server);
        let done = web.pass();
        let message = done.as_ref().map(drop).expect_err("refused").message();
        assert!(message.contains("E302"), "{message}");
        assert!(denied(&done));
    }
}
