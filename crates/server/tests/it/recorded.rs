//! Sessions of agents of earlier versions, recorded and replayed: this server must understand them.
//!
//! `tests/recorded/VERSION` has what was published, the keys of a node, and its requests with the
//! answers. `HOMESTAK_TEST_RECORD=VERSION` records one. The agent's tests read the same files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use homestak_api::certificate::certificates;
use homestak_api::node_key::NodeKey;
use homestak_api::publication::STATEMENT_HEADER;
use homestak_api::trust::{Fingerprint, Trust, client_config_with_credential};
use homestak_api::v1::enrol::{EnrolRequest, EnrolResponse};
use homestak_api::v1::report::{Report, ReportState};
use homestak_core::firstboot::Enrolment;
use homestak_server::settings::ServerSettings;
use homestak_server::{Server, ServerOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::site::{SetClock, TestSite, WEB, at, uuid, v2};

/// Headers of answers that agents read.
const HEADERS: [&str; 3] = ["content-type", "etag", STATEMENT_HEADER];

#[derive(Serialize, Deserialize)]
struct Session {
    /// The version that was recorded.
    version: String,
    /// The time of the server.
    clock: i64,
    /// The first-boot data of the node.
    enrolment: Enrolment,
    /// The private key of the node.
    node_key: String,
    exchanges: Vec<Exchange>,
}

#[derive(Serialize, Deserialize)]
struct Exchange {
    name: String,
    /// Whether the node shows its certificate.
    with_certificate: bool,
    request: RecordedRequest,
    answer: RecordedAnswer,
}

#[derive(Serialize, Deserialize)]
struct RecordedRequest {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct RecordedAnswer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

/// A node that sends the requests of a session.
struct Player {
    url: String,
    authority: Fingerprint,
    key: NodeKey,
    chain: Option<String>,
}

impl Player {
    async fn send(&mut self, request: &RecordedRequest, with_certificate: bool) -> RecordedAnswer {
        let own = self.chain.as_deref().filter(|_| with_certificate);
        let own = own.map(|chain| self.key.with_chain(chain).expect("usable"));
        assert_eq!(own.is_some(), with_certificate);
        let trust = Trust::Site(vec![self.authority]);
        let config = client_config_with_credential(&trust, own).expect("valid");
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .no_proxy()
            .build()
            .expect("a client");
        let method = request.method.parse().expect("a method");
        let mut sent = client.request(method, format!("{}{}", self.url, request.path));
        for (name, value) in &request.headers {
            sent = sent.header(name, value);
        }
        if let Some(body) = &request.body {
            sent = sent.body(body.to_string());
        }
        let answer = sent.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let headers = HEADERS.iter().filter_map(|name| {
            let value = answer.headers().get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), value.to_owned()))
        });
        let headers = headers.collect();
        let body = answer.text().await.expect("a body");
        if let Ok(issued) = serde_json::from_str::<EnrolResponse>(&body) {
            self.chain = Some(issued.chain);
        }
        RecordedAnswer {
            status,
            headers,
            body,
        }
    }
}

/// What the agent of this version sends, in the order of a first boot and the time after.
fn requests(enrolment: &Enrolment, key: &NodeKey) -> Vec<(&'static str, bool, RecordedRequest)> {
    let request = |method: &str, path: &str, headers: &[(&str, &str)], body: Option<Value>| {
        let headers = headers.iter();
        let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut headers: BTreeMap<_, _> = headers.collect();
        if body.is_some() {
            let kind = "application/json".to_owned();
            headers.insert("content-type".to_owned(), kind);
        }
        RecordedRequest {
            method: method.to_owned(),
            path: path.to_owned(),
            headers,
            body,
        }
    };
    let own = EnrolRequest {
        node: enrolment.identity.clone(),
        uuid: enrolment.uuid.as_str().to_owned(),
        public_key: key.public(),
        agent: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let own = serde_json::to_value(own).expect("JSON");
    let report = |state: ReportState| {
        let report = Report {
            run: "run-1".to_owned(),
            state,
            generation: Some(7),
            step: (state == ReportState::Converging).then(|| "file /etc/motd".to_owned()),
            changed: (state == ReportState::Converged).then_some(true),
            error: (state == ReportState::Failed).then(|| "apt failed".to_owned()),
            permanent: false,
            drift: Vec::new(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let body = serde_json::to_value(report).expect("JSON");
        request("POST", "/v1/reports", &[], Some(body))
    };
    let bearer = format!("Bearer {}", enrolment.token);
    let token = [("authorization", bearer.as_str())];
    let json = ("accept", "application/json");
    let spec = || request("GET", "/spec/web", &[json], None);
    let unchanged = || request("GET", "/spec/web", &[json, ("if-none-match", "ETAG")], None);
    vec![
        (
            "agent",
            false,
            request("GET", "/v1/agents/x86_64", &token, None),
        ),
        (
            "enrol",
            false,
            request("POST", "/v1/enrol", &token, Some(own.clone())),
        ),
        ("fetching", true, report(ReportState::Fetching)),
        ("spec", true, spec()),
        ("converging", true, report(ReportState::Converging)),
        ("converged", true, report(ReportState::Converged)),
        ("unchanged", true, unchanged()),
        ("failed", true, report(ReportState::Failed)),
        ("renew", true, request("POST", "/v1/renew", &[], Some(own))),
        ("spec after the renewal", true, spec()),
        ("spent", false, request("GET", "/spec/web", &token, None)),
        (
            "another node",
            true,
            request("GET", "/spec/db", &[json], None),
        ),
    ]
}

async fn record(version: &str) {
    let site = TestSite::start().await;
    let spec = json!({
        "schema_version": 1,
        "identity": { "hostname": "web" },
        "access": { "posture": "dev", "_posture": { "auth": { "method": "network" } } },
        "config": { "files": [{ "path": "/etc/motd", "content": "recorded" }] },
    });
    site.publish_body(WEB, "web", format!("{spec:#}\n"), |_| ());
    site.publish_agent("x86_64", b"#!/bin/sh\n");
    (site.reload)();
    let enrolment = Enrolment {
        identity: "web".to_owned(),
        uuid: uuid(WEB),
        servers: vec!["https://127.0.0.1:44443".to_owned()],
        authorities: vec![site.authority.issued().chain.clone()],
        site: "site".to_owned(),
        site_keys: vec![site.key.public().to_string()],
        token: v2(&site.claims(WEB, "web")),
        issued: at(0).as_second(),
        agent_generation: 0,
    };
    let key = NodeKey::generate().expect("a key");
    let node_key = key.pem().to_string();
    let planned = requests(&enrolment, &key);
    let fingerprint = Fingerprint::parse(&site.authority.issued().fingerprint);
    let mut player = Player {
        url: site.url.clone(),
        authority: fingerprint.expect("a fingerprint"),
        key,
        chain: None,
    };
    let mut exchanges: Vec<Exchange> = Vec::new();
    for (name, with_certificate, mut request) in planned {
        if let Some(tag) = request.headers.get_mut("if-none-match") {
            let spec = exchanges.iter().find(|one| one.name == "spec");
            *tag = spec.expect("a spec").answer.headers["etag"].clone();
        }
        let answer = player.send(&request, with_certificate).await;
        exchanges.push(Exchange {
            name: name.to_owned(),
            with_certificate,
            request,
            answer,
        });
    }
    let session = Session {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        clock: at(0).as_second(),
        enrolment,
        node_key,
        exchanges,
    };
    let to = directory().join(version);
    copy(site.directory.path(), &to.join("published"));
    let text = serde_json::to_string_pretty(&session).expect("JSON");
    fs_err::write(to.join("session.json"), text + "\n").expect("written");
}

fn copy(from: &Path, to: &Path) {
    fs_err::create_dir_all(to).expect("created");
    for entry in fs_err::read_dir(from).expect("read") {
        let entry = entry.expect("an entry");
        let path = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &path),
            false => _ = fs_err::copy(entry.path(), path).expect("copied"),
        }
    }
}

/// Checks that a value has at least the fields of a recorded one, of the same types. Strings may
/// differ: certificates are issued for each run.
fn has_fields(found: &Value, recorded: &Value, at: &str) {
    match (recorded, found) {
        (Value::Object(recorded), Value::Object(found)) => {
            for (key, value) in recorded {
                let at = format!("{at}.{key}");
                let other = found.get(key).unwrap_or_else(|| panic!("{at} is missing"));
                has_fields(other, value, &at);
            }
        }
        (Value::String(_), Value::String(_)) => {}
        _ => assert_eq!(found, recorded, "{at}"),
    }
}

async fn replay(from: &Path) -> usize {
    let session = fs_err::read_to_string(from.join("session.json")).expect("read");
    let session: Session = serde_json::from_str(&session).expect("a session");
    let root = tempfile::tempdir().expect("a directory");
    copy(&from.join("published"), &root.path().join("published"));
    let settings = ServerSettings {
        bind: [127, 0, 0, 1].into(),
        port: 0,
        ..ServerSettings::default()
    };
    let clock = jiff::Timestamp::from_second(session.clock).expect("a time");
    let server = Server::open(ServerOptions {
        settings: Box::new(move || Ok(settings.clone())),
        published: root.path().join("published"),
        state: root.path().join("state"),
        listener: None,
        clock: Arc::new(SetClock(Mutex::new(clock))),
        hostname: "localhost".to_owned(),
    });
    let server = server.await.expect("what was published then is read now");
    let authority = certificates(&session.enrolment.authorities[0]).expect("PEM");
    let mut player = Player {
        url: format!("https://{}", server.address()),
        authority: Fingerprint::of(&authority[0]),
        key: NodeKey::from_pem(&session.node_key).expect("a key"),
        chain: None,
    };
    let stop = CancellationToken::new();
    tokio::spawn(server.run(stop.clone()));
    for Exchange {
        name,
        with_certificate,
        request,
        answer,
    } in &session.exchanges
    {
        let what = format!("{} {name}", session.version);
        let found = player.send(request, *with_certificate).await;
        assert_eq!(found.status, answer.status, "{what}: {}", found.body);
        for (header, value) in &answer.headers {
            assert_eq!(found.headers.get(header), Some(value), "{what}: {header}");
        }
        match serde_json::from_str::<Value>(&answer.body) {
            // It is signed, so every byte counts.
            _ if answer.headers.contains_key(STATEMENT_HEADER) => {
                assert_eq!(found.body, answer.body, "{what}");
            }
            Ok(recorded) => {
                let found = serde_json::from_str(&found.body).expect("JSON");
                has_fields(&found, &recorded, &what);
                for code in [&["error", "code"][..], &["code"]] {
                    let code_of = |value: &Value| {
                        let mut value = value;
                        for key in code {
                            value = &value[key];
                        }
                        value.clone()
                    };
                    assert_eq!(code_of(&found), code_of(&recorded), "{what}");
                }
            }
            Err(_) => assert_eq!(found.body, answer.body, "{what}"),
        }
    }
    stop.cancel();
    session.exchanges.len()
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "recording is asked for by environment"
)]
async fn recorded_requests_of_every_version_are_answered_as_they_were() {
    if let Ok(version) = std::env::var("HOMESTAK_TEST_RECORD") {
        record(&version).await;
    }
    let mut n_exchanges = 0;
    for version in fs_err::read_dir(directory()).expect("recordings") {
        n_exchanges += replay(&version.expect("an entry").path()).await;
    }
    assert!(n_exchanges >= 12);
}

#[tokio::test]
async fn an_older_server_would_accept_what_a_newer_agent_adds() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    let body = json!({
        "run": "1", "state": "converged", "agent": "9.0.0", "later": { "more": [1, 2] },
    });
    let url = format!("{}/v1/reports?later=1", site.url);
    let sent = web
        .post(url)
        .json(&body)
        .header("x-later", "1")
        .send()
        .await;
    assert_eq!(sent.expect("an answer").status(), 201);
}
