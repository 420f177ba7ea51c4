//! Every endpoint: methods, spellings, codes, and the document that describes them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use homestak_api::v1::openapi::{OPERATIONS, document};
use homestak_server::route::{ROUTES, route};
use homestak_server::settings::ServerSettings;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::raw::{RawAnswer, RawClient, request};
use crate::site::{DB, TestSite, V1_KEY, V2_KEY, WEB, at, v1, v2};

const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
];

/// Fills the placeholders of a path.
fn filled(path: &str) -> String {
    let path = path.replace("{identity}", "web").replace("{uuid}", WEB);
    path.replace("{architecture}", "x86_64")
        .replace("{id}", "t-web")
        .replace("{repo}", "tools")
        .replace("{path}", "README.md")
        .replace("{job}", &"a".repeat(32))
}

async fn ask(site: &TestSite, bytes: Vec<u8>) -> RawAnswer {
    let mut client = RawClient::connect(site, None).await;
    client.exchange(&bytes).await.expect("an answer")
}

/// Signs anything with the key of tokens of version 1.
pub(crate) fn signed(payload: &str) -> String {
    signed_with(V1_KEY, payload)
}

/// Signs anything as a token, with a key in hexadecimal.
pub(crate) fn signed_with(key: &str, payload: &str) -> String {
    let payload = URL_SAFE_NO_PAD.encode(payload);
    let digit = |at: usize| u8::from_str_radix(&key[at..at + 2], 16).expect("digits");
    let key: Vec<u8> = (0..key.len()).step_by(2).map(digit).collect();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key");
    mac.update(payload.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    format!("{payload}.{signature}")
}

#[test]
fn the_document_lists_the_routes_of_the_server_and_no_others() {
    let mut routes: Vec<(String, &str)> = ROUTES
        .iter()
        .map(|(_, method, path)| (method.to_lowercase(), *path))
        .collect();
    let mut listed: Vec<(String, &str)> = OPERATIONS
        .iter()
        .map(|operation| (operation.method.to_owned(), operation.path))
        .collect();
    routes.sort();
    listed.sort();
    assert_eq!(listed, routes);
    let document = document();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in METHODS {
            let is_listed = !methods[method.to_lowercase()].is_null();
            let is_served = route(method, &filled(path)).is_ok();
            assert_eq!(is_listed, is_served, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_server_answers_each_path_of_the_document_with_a_status_that_it_lists() {
    let site = TestSite::start().await;
    let served = ask(&site, request("GET", "/v1/openapi.json", &[], "")).await;
    let document: Value = serde_json::from_str(&served.body).expect("JSON");
    assert_eq!(document["openapi"], "3.1.0");
    for (nth, (path, methods)) in document["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .enumerate()
    {
        site.clock.set(at(600 * i64::try_from(nth).expect("few")));
        for method in METHODS {
            let answer = ask(&site, request(method, &filled(path), &[], "")).await;
            let operation = &methods[method.to_lowercase()];
            if operation.is_null() {
                assert_eq!(answer.status, 405, "{method} {path}");
                let allowed = answer
                    .header("allow")
                    .expect("the methods that are allowed");
                assert!(!allowed.contains(method), "{method} {path}: {allowed}");
                continue;
            }
            let response = &operation["responses"][answer.status.to_string()];
            assert!(!response.is_null(), "{method} {path}: {}", answer.status);
            let content = &response["content"][answer.header("content-type").expect("a type")];
            assert_eq!(content.is_null(), method == "HEAD", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn head_is_answered_like_get_without_a_body() {
    let site = TestSite::start().await;
    let token = format!("Bearer {}", v1("web", "base"));
    let headers = [("authorization", token.as_str())];
    for path in [
        "/health",
        "/specs",
        "/spec/web",
        "/spec/db",
        "/v1/openapi.json",
        "/v1/nodes",
    ] {
        let get = ask(&site, request("GET", path, &headers, "")).await;
        let mut client = RawClient::connect(&site, None).await;
        let head = client.exchange(&request("HEAD", path, &headers, "")).await;
        let head = head.expect("an answer");
        assert_eq!(head.status, get.status, "{path}");
        for name in [
            "content-length",
            "content-type",
            "etag",
            "homestak-statement",
        ] {
            assert_eq!(head.header(name), get.header(name), "{path}");
        }
        // A body would be read as the beginning of the next answer.
        let next = client.exchange(&request("GET", "/health", &[], "")).await;
        assert_eq!(next.expect("an answer").status, 200, "{path}");
    }
}

#[tokio::test]
async fn bodies_are_those_of_the_reference() {
    let site = TestSite::start().await;
    let unknown = json!({ "error": { "code": "E100", "message": "unknown endpoint" } });
    for (path, status, body) in [
        ("/health", 200, json!({ "status": "ok" })),
        ("/health//", 200, json!({ "status": "ok" })),
        ("/health?x=/v1/", 200, json!({ "status": "ok" })),
        ("/specs/", 200, json!({ "specs": ["base"] })),
        ("/", 400, unknown.clone()),
        ("/spec", 400, unknown.clone()),
        ("/spec/", 400, unknown.clone()),
        ("/spec/web/x", 400, unknown.clone()),
        ("/config/web", 400, unknown.clone()),
        ("//health", 400, unknown),
    ] {
        let answer = ask(&site, request("GET", path, &[], "")).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.body, format!("{body:#}\n"), "{path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    for path in ["/v1", "/v1/", "/v1/nodes/a/b", "/v1/config"] {
        let answer = ask(&site, request("GET", path, &[], "")).await;
        assert_eq!(
            (answer.status, answer.refusal().0),
            (404, "E100".to_owned()),
            "{path}"
        );
        let kind = answer.header("content-type");
        assert_eq!(kind, Some("application/problem+json"), "{path}");
    }
}

#[tokio::test]
async fn a_token_is_verified_in_the_order_of_the_reference() {
    let site = TestSite::start().await;
    let good = v1("web", "base");
    let (payload, signature) = good.split_once('.').expect("two parts");
    let rows: Vec<(&str, Option<String>, u16, &str)> = vec![
        ("0: no header", None, 400, "E300"),
        (
            "0: another scheme",
            Some("Basic dTpw".to_owned()),
            400,
            "E300",
        ),
        (
            "0: the scheme in lower case",
            Some(format!("bearer {good}")),
            400,
            "E300",
        ),
        (
            "0: the scheme in upper case",
            Some(format!("BEARER {good}")),
            400,
            "E300",
        ),
        ("0: no space", Some(format!("Bearer{good}")), 400, "E300"),
        (
            "1: one part",
            Some(format!("Bearer {payload}")),
            400,
            "E300",
        ),
        (
            "1: three parts",
            Some(format!("Bearer {good}.x")),
            400,
            "E300",
        ),
        ("1: nothing", Some("Bearer ".to_owned()), 400, "E300"),
        (
            "3: no base64",
            Some(format!("Bearer {payload}.***")),
            400,
            "E300",
        ),
        (
            "3: padding",
            Some(format!("Bearer {payload}.{signature}=")),
            400,
            "E300",
        ),
        (
            "4: before the payload is read",
            Some("Bearer ***.AAAA".to_owned()),
            401,
            "E301",
        ),
        (
            "4: an empty signature",
            Some(format!("Bearer {payload}.")),
            401,
            "E301",
        ),
        (
            "4: cut",
            Some(format!("Bearer {payload}.{}", &signature[..40])),
            401,
            "E301",
        ),
        (
            "5: no JSON",
            Some(format!("Bearer {}", signed("{"))),
            400,
            "E300",
        ),
        (
            "5: no object",
            Some(format!("Bearer {}", signed("7"))),
            400,
            "E300",
        ),
        (
            "6: version 0",
            Some(format!(
                "Bearer {}",
                signed(r#"{"v":0,"n":"web","s":"base"}"#)
            )),
            400,
            "E300",
        ),
        (
            "6: version as text",
            Some(format!(
                "Bearer {}",
                signed(r#"{"v":"1","n":"web","s":"base"}"#)
            )),
            400,
            "E300",
        ),
        (
            "6: no version",
            Some(format!("Bearer {}", signed(r#"{"n":"web","s":"base"}"#))),
            400,
            "E300",
        ),
        (
            "7: no node",
            Some(format!("Bearer {}", signed(r#"{"v":1,"s":"base"}"#))),
            400,
            "E300",
        ),
        (
            "7: no spec",
            Some(format!("Bearer {}", signed(r#"{"v":1,"n":"web"}"#))),
            400,
            "E300",
        ),
        (
            "7: the node is a number",
            Some(format!("Bearer {}", signed(r#"{"v":1,"n":1,"s":"base"}"#))),
            400,
            "E300",
        ),
        (
            "8: another node",
            Some(format!("Bearer {}", v1("db", "base"))),
            401,
            "E301",
        ),
        (
            "8: another case",
            Some(format!("Bearer {}", v1("Web", "base"))),
            401,
            "E301",
        ),
        (
            "then: another spec",
            Some(format!("Bearer {}", v1("web", "pve"))),
            404,
            "E200",
        ),
        (
            "no time of issue",
            Some(format!(
                "Bearer {}",
                signed(r#"{"v":1,"n":"web","s":"base"}"#)
            )),
            200,
            "",
        ),
        (
            "more claims",
            Some(format!(
                "Bearer {}",
                signed(r#"{"v":1,"n":"web","s":"base","x":[]}"#)
            )),
            200,
            "",
        ),
        ("valid", Some(format!("Bearer {good}")), 200, ""),
    ];
    for (nth, (row, header, status, code)) in rows.into_iter().enumerate() {
        site.clock.set(at(60 * i64::try_from(nth).expect("few")));
        let header = header.as_deref();
        let headers: Vec<_> = header
            .map(|value| ("authorization", value))
            .into_iter()
            .collect();
        let answer = ask(&site, request("GET", "/spec/web", &headers, "")).await;
        assert_eq!(
            (answer.status, answer.refusal().0.as_str()),
            (status, code),
            "{row}"
        );
    }
}

#[tokio::test]
async fn without_a_token_key_the_server_is_at_fault_and_an_invalid_key_is_not_taken() {
    let site = TestSite::start().await;
    let token = format!("Bearer {}", v1("web", "base"));
    let spec = request("GET", "/spec/web", &[("authorization", &token)], "");
    let reload = async || {
        let request = site
            .operator()
            .post(format!("{}/v1/reload", site.url))
            .json(&json!({}));
        request.send().await.expect("an answer").status().as_u16()
    };
    for (row, key) in [("2: no hex", "xyz"), ("2: odd", "abc"), ("2: empty", "")] {
        site.publish_keys(at(0), Some(key), &[]);
        assert_eq!(reload().await, 422, "{row}");
        assert_eq!(
            ask(&site, spec.clone()).await.status,
            200,
            "{row}: the key before counts"
        );
    }
    site.publish_keys(at(0), None, &[]);
    assert_eq!(reload().await, 200);
    let answer = ask(&site, spec.clone()).await;
    assert_eq!(
        (answer.status, answer.refusal().0.as_str()),
        (500, "E500"),
        "0b"
    );
    let none = ask(&site, request("GET", "/spec/web", &[], "")).await;
    assert_eq!(
        (none.status, none.refusal().0.as_str()),
        (400, "E300"),
        "0 comes before 0b"
    );
    let one_part = request("GET", "/spec/web", &[("authorization", "Bearer x")], "");
    let answer = ask(&site, one_part).await;
    assert_eq!(
        (answer.status, answer.refusal().0.as_str()),
        (500, "E500"),
        "0b comes before 1"
    );
}

#[tokio::test]
async fn token_keys_rotate_with_an_overlap() {
    let site = TestSite::start().await;
    let old = format!("Bearer {}", v2(&site.claims(WEB, "web")));
    let spec = request("GET", "/spec/web", &[("authorization", &old)], "");
    let other = V2_KEY.replace("ff", "ee");
    for (keys, status) in [
        (vec![("k1", V2_KEY), ("k2", &*other)], 200),
        (vec![("k2", &*other)], 401),
        (vec![("k1", &*other)], 401),
    ] {
        site.publish_keys(at(0), Some(V1_KEY), &keys);
        assert_eq!((site.reload)().len(), 2, "token keys and intermediate");
        assert_eq!(
            ask(&site, spec.clone()).await.status,
            status,
            "{}",
            keys.len()
        );
    }
}

#[tokio::test]
async fn an_entity_tag_saves_the_body_for_get_and_head() {
    let site = TestSite::start().await;
    let token = format!("Bearer {}", v1("web", "base"));
    let ask_with = async |method, tag: &str| {
        let headers = [("authorization", &*token), ("if-none-match", tag)];
        ask(&site, request(method, "/spec/web", &headers, "")).await
    };
    let full = ask_with("GET", "\"other\"").await;
    assert_eq!(full.status, 200);
    let tag = full.header("etag").expect("an entity tag").to_owned();
    for (method, header) in [
        ("GET", tag.clone()),
        ("HEAD", tag.clone()),
        ("GET", format!("W/{tag}")),
        ("GET", format!("\"other\", {tag}")),
        ("GET", "*".to_owned()),
    ] {
        let answer = ask_with(method, &header).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (304, ""),
            "{method} {header}"
        );
        assert_eq!(answer.header("etag"), Some(tag.as_str()));
    }
    // A valid tag is no proof of who asks.
    let headers = [("if-none-match", &*tag)];
    let answer = ask(&site, request("GET", "/spec/web", &headers, "")).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn an_ambiguous_name_is_a_conflict_for_enrolment_too() {
    let site = TestSite::start_with(ServerSettings::default(), |_| ()).await;
    site.publish("33333333-3333-4333-8333-333333333333", "web", |_| ());
    (site.reload)();
    let token = format!("Bearer {}", v1("web", "base"));
    let headers = [("authorization", token.as_str())];
    let body = json!({ "node": "web", "uuid": WEB, "public_key": "", "agent": "x" }).to_string();
    for bytes in [
        request("GET", "/spec/web", &headers, ""),
        request("POST", "/v1/enrol", &headers, &body),
        request("GET", "/v1/agents/x86_64", &headers, ""),
    ] {
        let answer = ask(&site, bytes).await;
        assert_eq!((answer.status, answer.refusal().0.as_str()), (409, "E201"));
    }
    let token = format!("Bearer {}", v1("db", "base"));
    let db = request("GET", "/spec/db", &[("authorization", &token)], "");
    assert_eq!(
        ask(&site, db).await.status,
        200,
        "{DB} has a name of its own"
    );
}
