//! Requests that are malformed, too large or ambiguous, and other spellings of paths.

use serde_json::json;

use super::{Target, enrolment};
use crate::raw::{RawClient, request};
use crate::site::{DB, TestSite, WEB, v1};

const UNKNOWN_ENDPOINT: (u16, &str) = (400, "E100");
const BAD_REQUEST: (u16, &str) = (400, "E101");
const LENGTH_REQUIRED: (u16, &str) = (411, "E101");
const TOO_LARGE: (u16, &str) = (413, "E101");
const WRONG_TYPE: (u16, &str) = (415, "E101");
/// Refused by hyper, without a body.
const BY_PARSER: (u16, &str) = (400, "");

#[tokio::test]
async fn other_spellings_of_a_path_are_refused() {
    let mut target = Target::start().await;
    let token = v1("web", "base");
    target.secret(&token);
    let header = format!("Bearer {token}");
    let headers = [("authorization", header.as_str())];
    for name in [
        "..",
        ".",
        "../db",
        "..%2fdb",
        "..%2Fdb",
        "%2e%2e%2fdb",
        "%2e%2e/db",
        "web/../db",
        "web%2f..%2fdb",
        "./web",
        "%2e/web",
        "..\\db",
        "..%5cdb",
        "..;/db",
        "web%00",
        "web%00.db",
        "web%20",
        "web%0d%0ax",
        "%77eb",
        "WEB",
        "w%C3%A9b",
        "web.",
        "web..",
        "web;id=1",
        "web&db",
        "%",
        "%zz",
        "%252e%252e%252fdb",
        "etc/passwd",
        "../../../../etc/passwd",
        "..%2f..%2f..%2f..%2fetc%2fpasswd",
        "../secrets.json",
        "..%2fsecrets.json",
        "*",
        "'",
        "$(id)",
        "db",
        "web,db",
        WEB,
        DB,
    ] {
        let path = format!("/spec/{name}");
        let expected = match name.contains('/') {
            true => UNKNOWN_ENDPOINT,
            false => (401, "E301"),
        };
        let bytes = request("GET", &path, &headers, "");
        target.refuse(&path, None, &bytes, expected).await;
    }
    let operator = target.site.operator.for_tls().expect("usable");
    for uuid in [
        "..",
        "../tokens",
        "..%2ftokens",
        "%2e%2e",
        &WEB.replace('-', ""),
        &format!("{{{WEB}}}"),
        &format!("urn:uuid:{WEB}"),
        "'%20or%201=1--",
        "%",
        "web",
        "0",
        "-1",
        "null",
        &format!("{WEB}%00"),
        &format!("%20{WEB}"),
    ] {
        for (method, path, body) in [
            ("GET", format!("/v1/nodes/{uuid}"), ""),
            ("GET", format!("/v1/nodes/{uuid}/reports"), ""),
            ("POST", format!("/v1/nodes/{uuid}/revoke"), "{}"),
        ] {
            let code = match uuid.contains('/') {
                true => "E100",
                false => "E200",
            };
            let bytes = request(method, &path, &[], body);
            let what = format!("{method} {path}");
            // `/v1/nodes/../tokens` is no path with one UUID.
            target
                .refuse(&what, Some(&operator), &bytes, (404, code))
                .await;
        }
    }
    for id in [
        "..",
        "t-web%00",
        "'%20or%201=1--",
        "t-web'",
        "T-WEB",
        "*",
        "t-%25",
    ] {
        let path = format!("/v1/tokens/{id}/revoke");
        let bytes = request("POST", &path, &[], "{}");
        target
            .refuse(&path, Some(&operator), &bytes, (404, "E200"))
            .await;
    }
    for architecture in [
        "..",
        "..%2fspecs",
        "x86_64.signed",
        "%2fetc%2fpasswd",
        "X86_64",
    ] {
        let path = format!("/v1/agents/{architecture}");
        let bytes = request("GET", &path, &[], "");
        target
            .refuse(&path, Some(&operator), &bytes, (404, "E200"))
            .await;
    }
    for path in [
        "/config/web",
        "/config",
        "/repos",
        "/secrets.json",
        "/published/secrets.json",
        "/specs/base",
        "/spec//web",
        "//spec/web",
        "/health/../spec/web",
        "/spec/web/.",
        "/%73pec/web",
        "/SPEC/web",
        "/v1spec/web",
    ] {
        let bytes = request("GET", path, &headers, "");
        target.refuse(path, None, &bytes, UNKNOWN_ENDPOINT).await;
    }
    // A token in the path is not written to the log.
    let path = format!("/spec/{token}");
    target
        .refuse(
            "a token as a name",
            None,
            &request("GET", &path, &headers, ""),
            (401, "E301"),
        )
        .await;
    assert_eq!(target.finish().await, 111);
}

#[tokio::test]
async fn other_methods_are_refused_whatever_the_headers_say() {
    let mut target = Target::start().await;
    let operator = target.site.operator.for_tls().expect("usable");
    let revoke = format!("/v1/nodes/{WEB}/revoke");
    for (method, path) in [
        ("POST", "/health"),
        ("PUT", "/spec/web"),
        ("POST", "/spec/web"),
        ("DELETE", "/spec/web"),
        ("PATCH", "/spec/web"),
        ("OPTIONS", "/spec/web"),
        ("TRACE", "/spec/web"),
        ("get", "/health"),
        ("GETX", "/health"),
        ("PROPFIND", "/specs"),
        ("GET", "/v1/enrol"),
        ("PUT", "/v1/enrol"),
        ("GET", &*revoke),
        ("HEAD", "/v1/reload"),
        ("GET", "/v1/reload"),
        ("DELETE", "/v1/nodes"),
        ("PUT", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("POST", "/v1/openapi.json"),
    ] {
        let headers = [
            ("x-http-method-override", "GET"),
            ("x-method-override", "POST"),
        ];
        let bytes = request(method, path, &headers, "");
        if method == "HEAD" {
            let mut client = RawClient::connect(&target.site, None).await;
            let answer = client.exchange(&bytes).await.expect("an answer");
            assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
            continue;
        }
        let what = format!("{method} {path}");
        target
            .refuse(&what, Some(&operator), &bytes, (405, "E100"))
            .await;
    }
    assert_eq!(target.finish().await, 18);
}

#[tokio::test]
async fn a_body_that_is_not_what_it_should_be_is_refused() {
    let mut target = Target::start().await;
    let good = enrolment();
    let secret = "correct-horse-battery-staple";
    target.secret(secret);
    let changed = |field: &str, to: serde_json::Value| {
        let mut body: serde_json::Value = serde_json::from_str(&good).expect("JSON");
        body[field] = to;
        body.to_string()
    };
    let deep = format!("{}{}", "[".repeat(1_500), "]".repeat(1_500));
    let bodies = [
        String::new(),
        " ".to_owned(),
        "{".to_owned(),
        "}".to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        "\"x\"".to_owned(),
        "NaN".to_owned(),
        "1e999".to_owned(),
        "{\"node\":1}".to_owned(),
        deep.clone(),
        format!("{{\"node\":{deep}}}"),
        good.replace('{', "{\"node\":\"db\","),
        good[..good.len() - 1].to_owned(),
        format!("{good}{good}"),
        format!("\u{feff}{good}"),
        "%7B%7D".to_owned(),
        "<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY b SYSTEM \"file:///etc/passwd\">]>"
            .to_owned(),
        changed("uuid", json!(null)),
        changed("uuid", json!([secret])),
        changed("node", json!({ "$ne": secret })),
        changed("agent", json!(7)),
    ];
    let token = v1("web", "base");
    target.secret(&token);
    let header = format!("Bearer {token}");
    let headers = [("authorization", header.as_str())];
    for body in &bodies {
        let bytes = request("POST", "/v1/enrol", &headers, body);
        let what = format!("enrol: {}", body.chars().take(60).collect::<String>());
        target.refuse(&what, None, &bytes, BAD_REQUEST).await;
    }
    for (what, key) in [
        ("no key", ""),
        ("no base64", "***"),
        ("no point", "AAAA"),
        ("compressed", "AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        ("PEM", "-----BEGIN PUBLIC KEY-----"),
    ] {
        let bytes = request(
            "POST",
            "/v1/enrol",
            &headers,
            &changed("public_key", json!(key)),
        );
        target.refuse(what, None, &bytes, BAD_REQUEST).await;
    }
    for (what, field, value, expected) in [
        ("another guest", "uuid", DB, (401, "E301")),
        ("no guest", "uuid", "", (401, "E301")),
        ("another node", "node", "db", (401, "E301")),
        ("a path as node", "node", "../db", (401, "E301")),
        ("no node", "node", "", (401, "E301")),
    ] {
        let bytes = request("POST", "/v1/enrol", &headers, &changed(field, json!(value)));
        target.refuse(what, None, &bytes, expected).await;
    }
    let (web, _) = target.site.enrolled(WEB, "web").await;
    for body in [
        "",
        "{}",
        "[1]",
        r#"{"run":"1","state":"owned","agent":"x"}"#,
        r#"{"state":"failed"}"#,
    ] {
        let bytes = request("POST", "/v1/reports", &[], body);
        target
            .refuse(&format!("report: {body}"), Some(&web), &bytes, BAD_REQUEST)
            .await;
    }
    let operator = target.site.operator.for_tls().expect("usable");
    for query in [
        "after=-1",
        "after=x",
        "after=",
        "wait=1.5",
        "wait=-1",
        "after=99999999999999999999",
    ] {
        let path = format!("/v1/nodes/{WEB}/reports?{query}");
        let bytes = request("GET", &path, &[], "");
        target
            .refuse(&path, Some(&operator), &bytes, BAD_REQUEST)
            .await;
    }
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
        "application/jsonx",
    ] {
        let headers = [("authorization", &*header), ("content-type", kind)];
        let bytes = request("POST", "/v1/enrol", &headers, &good);
        target
            .refuse(&format!("type `{kind}`"), None, &bytes, WRONG_TYPE)
            .await;
        // A page in the browser of an operator can send these without being asked.
        let bytes = request("POST", "/v1/reload", &[("content-type", kind)], "{}");
        target
            .refuse(
                &format!("type `{kind}`"),
                Some(&operator),
                &bytes,
                WRONG_TYPE,
            )
            .await;
    }
    assert_eq!(target.finish().await, 54);
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_before_it_is_read() {
    let mut target = Target::start().await;
    // Anyone may send one: its limit is below that of other bodies.
    let limit = 4 << 10;
    let large = format!("{{\"node\":\"{}\"}}", "x".repeat(limit));
    target
        .refuse(
            "body",
            None,
            &request("POST", "/v1/enrol", &[], &large),
            TOO_LARGE,
        )
        .await;
    for length in [
        (limit + 1).to_string(),
        "4294967296".to_owned(),
        "18446744073709551613".to_owned(),
    ] {
        let headers = [("content-length", length.as_str())];
        let bytes = request("POST", "/v1/enrol", &headers, "");
        target.refuse(&length, None, &bytes, TOO_LARGE).await;
    }
    let long = "x".repeat(20 << 10);
    let bytes = request("GET", "/health", &[("x-long", &long)], "");
    target.refuse("header", None, &bytes, (431, "")).await;
    let many: Vec<(&str, &str)> = vec![("x", "y"); 200];
    let bytes = request("GET", "/health", &many, "");
    target.refuse("headers", None, &bytes, (431, "")).await;
    let path = format!("/{}", "x".repeat(12 << 10));
    let bytes = request("GET", &path, &[], "");
    target.refuse("path", None, &bytes, UNKNOWN_ENDPOINT).await;
    assert_eq!(target.finish().await, 7);
}

#[tokio::test]
async fn a_request_with_two_meanings_is_refused_and_ends_the_connection() {
    let mut target = Target::start().await;
    // If the body ended earlier than the server thinks, this would be a request of its own.
    let hidden = "0\r\n\r\nGET /v1/nodes HTTP/1.1\r\nhost: x\r\n\r\n";
    let post = |headers: &str| {
        let text = format!(
            "POST /v1/enrol HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             {headers}\r\n{hidden}"
        );
        text.into_bytes()
    };
    for (what, headers, expected) in [
        ("chunked", "transfer-encoding: chunked\r\n", LENGTH_REQUIRED),
        (
            "length, then chunked",
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            LENGTH_REQUIRED,
        ),
        (
            "chunked, then length",
            "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
            LENGTH_REQUIRED,
        ),
        (
            "chunked in capitals",
            "Transfer-Encoding: CHUNKED\r\n",
            LENGTH_REQUIRED,
        ),
        (
            "chunked twice",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            LENGTH_REQUIRED,
        ),
        ("identity", "transfer-encoding: identity\r\n", BY_PARSER),
        (
            "chunked, identity",
            "transfer-encoding: chunked, identity\r\n",
            BY_PARSER,
        ),
        ("xchunked", "transfer-encoding: xchunked\r\n", BY_PARSER),
        (
            "two lengths",
            "content-length: 5\r\ncontent-length: 6\r\n",
            BY_PARSER,
        ),
        ("a list of lengths", "content-length: 5, 6\r\n", BY_PARSER),
        ("a signed length", "content-length: +5\r\n", BY_PARSER),
        ("a negative length", "content-length: -1\r\n", BY_PARSER),
        (
            "a length in hexadecimal",
            "content-length: 0x5\r\n",
            BY_PARSER,
        ),
        (
            "a length that is no number",
            "content-length: five\r\n",
            BY_PARSER,
        ),
        (
            "a space before the colon",
            "content-length : 5\r\n",
            BY_PARSER,
        ),
        (
            "a folded header",
            "x: a\r\n b\r\ncontent-length: 5\r\n",
            BY_PARSER,
        ),
        ("a NUL in a header", "x: a\0b\r\n", BY_PARSER),
        ("a carriage return in a header", "x: a\rb\r\n", BY_PARSER),
        ("a header without a name", ": x\r\n", BY_PARSER),
    ] {
        target.refuse(what, None, &post(headers), expected).await;
        let mut client = RawClient::connect(&target.site, None).await;
        client.send(&post(headers)).await;
        assert!(client.answer(false).await.is_some(), "{what}");
        assert!(
            client.is_closed().await,
            "{what}: the hidden request was answered"
        );
    }
    for (what, bytes) in [
        ("another protocol", &b"SSH-2.0-OpenSSH_10.0\r\n\r\n"[..]),
        ("a version of the future", b"GET /health HTTP/9.9\r\n\r\n"),
        ("no version", b"GET /health\r\n\r\n"),
        ("a space in the path", b"GET /spec/web db HTTP/1.1\r\n\r\n"),
        (
            "a control character in the path",
            b"GET /spec/\x01 HTTP/1.1\r\n\r\n",
        ),
        ("no method", b" /health HTTP/1.1\r\n\r\n"),
        ("bytes", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"),
    ] {
        target.refuse(what, None, bytes, BY_PARSER).await;
    }
    let before = target.log.text().len();
    let mut client = RawClient::connect(&target.site, None).await;
    let answer = client.exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(answer.is_none(), "HTTP/2 was not agreed on");
    target.log.wait_for(super::BY_PARSER, before).await;
    let token = v1("web", "base");
    target.secret(&token);
    let (good, bad) = (format!("Bearer {token}"), "Bearer x.y".to_owned());
    for (one, two) in [(&good, &bad), (&bad, &good), (&good, &good)] {
        let headers = [
            ("authorization", one.as_str()),
            ("Authorization", two.as_str()),
        ];
        let bytes = request("GET", "/spec/web", &headers, "");
        target
            .refuse("two tokens", None, &bytes, (400, "E300"))
            .await;
    }
    for (what, value) in [
        ("bytes", &b"Bearer \xff\xfe.\xff"[..]),
        ("a tab", b"Bearer\tx.y"),
        ("a list", b"Bearer x.y, Basic z"),
    ] {
        let head = b"GET /spec/web HTTP/1.1\r\nhost: x\r\nauthorization: ";
        let bytes = [&head[..], value, b"\r\n\r\n"].concat();
        target.refuse(what, None, &bytes, (400, "E300")).await;
    }
    assert_eq!(target.finish().await, 32);
}

#[tokio::test]
async fn a_request_names_one_host() {
    let site = TestSite::start().await;
    for (version, hosts, status) in [
        ("1.1", "Host: x\r\n", 200),
        ("1.1", "", 400),
        ("1.1", "Host: x\r\nHost: y\r\n", 400),
        ("1.1", "Host: x\r\nhost: x\r\n", 400),
    ] {
        let text = format!("GET /health HTTP/{version}\r\n{hosts}\r\n");
        let mut client = RawClient::connect(&site, None).await;
        client.send(text.as_bytes()).await;
        let answer = client.answer(false).await.expect("an answer");
        assert_eq!(answer.status, status, "{hosts}");
    }
}
