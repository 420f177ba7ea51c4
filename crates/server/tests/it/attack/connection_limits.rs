//! Clients that hold many connections do not prevent others from being served.

use base64::Engine as _;
use homestak_api::trust::TlsCredential;
use homestak_server::settings::{Limits, ServerSettings};
use serde_json::json;

use super::Target;
use super::certificates::{copy, self_signed};
use crate::raw::{RawClient, request};
use crate::site::{DB, TestSite, WEB, credential, v1, v2};

async fn target_with_limit(connections: usize) -> Target {
    let limits = Limits {
        connections,
        ..Limits::default()
    };
    let settings = ServerSettings {
        limits,
        ..ServerSettings::default()
    };
    Target::start_with(settings).await
}

async fn ask(client: &mut RawClient, path: &str) -> Option<u16> {
    let answer = client.exchange(&request("GET", path, &[], "")).await;
    answer.map(|answer| answer.status)
}

/// Opens connections on which the body of a request is being received.
async fn slow_bodies(site: &TestSite, own: &TlsCredential, count: usize) -> Vec<RawClient> {
    let mut open = Vec::new();
    for _ in 0..count {
        let mut client = RawClient::connect(site, Some(copy(own))).await;
        let headers = [("expect", "100-continue"), ("content-length", "100")];
        client
            .send(&request("POST", "/v1/reports", &headers, ""))
            .await;
        let answer = client.answer(false).await.expect("an answer");
        assert_eq!(answer.status, 100);
        open.push(client);
    }
    open
}

#[tokio::test]
async fn a_node_that_sends_bodies_slowly_keeps_neither_operators_nor_nodes_out() {
    let target = target_with_limit(12).await;
    let site = &target.site;
    let (web, _) = site.enrolled(WEB, "web").await;
    let (db, _) = site.enrolled(DB, "db").await;
    let mut open = slow_bodies(site, &web, 12).await;
    let operator = site.operator.for_tls().expect("usable");
    let mut operator = RawClient::connect(site, Some(operator)).await;
    assert_eq!(ask(&mut operator, "/v1/nodes").await, Some(200));
    let mut node = RawClient::connect(site, Some(db)).await;
    assert_eq!(ask(&mut node, "/spec/db").await, Some(200));
    open.extend(slow_bodies(site, &web, 12).await);
    assert_eq!(ask(&mut operator, "/v1/nodes").await, Some(200));
    assert_eq!(ask(&mut node, "/spec/db").await, Some(200));
    drop(open);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn a_certificate_that_is_not_recorded_does_not_keep_a_connection_open() {
    let target = target_with_limit(4).await;
    let site = &target.site;
    let (web, _) = site.enrolled(WEB, "web").await;
    let mut node = RawClient::connect(site, Some(web)).await;
    assert_eq!(ask(&mut node, "/spec/web").await, Some(200));
    let mut strangers = Vec::new();
    for _ in 0..8 {
        let mut stranger = RawClient::connect(site, Some(self_signed())).await;
        assert_eq!(ask(&mut stranger, "/health").await, Some(200));
        strangers.push(stranger);
    }
    assert_eq!(ask(&mut node, "/spec/web").await, Some(200));
    assert!(strangers[0].is_closed().await);
    drop(strangers);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn an_answer_that_is_being_sent_is_not_cut_by_newer_connections() {
    let target = target_with_limit(4).await;
    let site = &target.site;
    // More than the buffers of the kernel take.
    let size = 16 << 20;
    site.publish_agent("x86_64", &vec![b'x'; size]);
    (site.reload)();
    let token = format!("Bearer {}", v1("web", "base"));
    let mut slow = RawClient::connect(site, None).await;
    let agent = request("GET", "/v1/agents/x86_64", &[("authorization", &token)], "");
    slow.send(&agent).await;
    target.log.wait_for("path=\"/v1/agents/x86_64\"", 0).await;
    let mut newer = Vec::new();
    for _ in 0..8 {
        let mut client = RawClient::connect(site, None).await;
        assert_eq!(ask(&mut client, "/health").await, Some(200));
        newer.push(client);
    }
    let answer = slow.answer(false).await.expect("an answer");
    assert_eq!((answer.status, answer.body.len()), (200, size));
    // It is idle then, and gives way as others do.
    assert_eq!(ask(&mut slow, "/health").await, Some(200));
    for _ in 0..8 {
        let mut client = RawClient::connect(site, None).await;
        assert_eq!(ask(&mut client, "/health").await, Some(200));
        newer.push(client);
    }
    assert!(slow.is_closed().await);
    drop(newer);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn a_client_that_fails_in_a_loop_does_not_fill_the_log() {
    let target = Target::start().await;
    let site = &target.site;
    let path = format!("/{}", "a/".repeat(6000));
    let mut client = RawClient::connect(site, None).await;
    for _ in 0..30 {
        assert_eq!(ask(&mut client, &path).await, Some(400));
    }
    let log = target.log.text();
    let refused = || log.lines().filter(|line| line.contains("refused"));
    assert_eq!(refused().count(), 20);
    assert!(refused().all(|line| line.len() < 600), "{log}");
    site.clock.advance(60);
    assert_eq!(ask(&mut client, &path).await, Some(400));
    let log = target.log.text();
    assert!(log.contains("more failures of this address"), "{log}");
    assert!(log.contains("not_logged=10"), "{log}");
    assert_eq!(
        log.lines().filter(|line| line.contains("refused")).count(),
        21
    );
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn a_valid_token_or_certificate_that_is_used_in_a_loop_does_not_fill_the_log() {
    let target = Target::start().await;
    let site = &target.site;
    let count = |text: &str| {
        let log = target.log.text();
        log.lines().filter(|line| line.contains(text)).count()
    };
    let bearer = format!("Bearer {}", v2(&site.claims(DB, "db")));
    let with_token = [("authorization", &*bearer)];
    let spec = request("GET", "/spec/db", &with_token, "");
    let mut client = RawClient::connect(site, None).await;
    for _ in 0..30 {
        assert_eq!(client.exchange(&spec).await.expect("sent").status, 200);
    }
    assert_eq!(count("proof of first contact is valid"), 20);

    // The token counts for the same key again. Each time is a signature and a write to the disk.
    let key = rcgen::KeyPair::generate().expect("a key");
    let public = base64::engine::general_purpose::STANDARD.encode(key.public_key_raw());
    let body = json!({ "node": "db", "uuid": DB, "public_key": public, "agent": "0.1.0" });
    let enrol = request("POST", "/v1/enrol", &with_token, &body.to_string());
    let mut statuses = Vec::new();
    let mut own = None;
    for _ in 0..12 {
        let answer = client.exchange(&enrol).await.expect("an answer");
        statuses.push(answer.status);
        if answer.status == 201 {
            own = Some(credential(&answer.body, &key));
        } else {
            assert_eq!(answer.refusal().0, "E303");
            assert_eq!(answer.header("retry-after"), Some("60"));
        }
    }
    assert_eq!(statuses, [[201; 10].as_slice(), &[429; 2]].concat());
    // Shown, though the lines about proofs are used up.
    assert_eq!(count("enrolled"), 10);

    let mut client = RawClient::connect(site, own).await;
    let renew = request("POST", "/v1/renew", &[], &body.to_string());
    for status in [[201; 10].as_slice(), &[429; 2]].concat() {
        let answer = client.exchange(&renew).await.expect("an answer");
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    assert_eq!(count("certificate renewed"), 10);
    site.clock.advance(60);
    let health = ask(&mut client, "/health").await;
    assert_eq!(health, Some(200));
    let answer = RawClient::connect(site, None).await.exchange(&spec).await;
    assert_eq!(answer.expect("an answer").status, 403);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn the_first_request_of_an_operator_on_each_connection_is_logged() {
    let target = Target::start().await;
    let site = &target.site;
    for _ in 0..2 {
        let own = site.operator.for_tls().expect("usable");
        let mut client = RawClient::connect(site, Some(own)).await;
        for path in ["/v1/tokens", "/v1/nodes", "/v1/jobs"] {
            assert_eq!(ask(&mut client, path).await, Some(200));
        }
    }
    let log = target.log.text();
    let lines = log.lines().filter(|line| line.contains("is accepted"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 2, "{log}");
    for part in [
        "INFO",
        "address=127.0.0.1",
        "operator=",
        "path=\"/v1/tokens\"",
    ] {
        assert!(lines[0].contains(part), "no {part}: {}", lines[0]);
    }
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn a_node_that_reports_in_a_loop_is_slowed_down_and_others_are_not() {
    let target = Target::start().await;
    let site = &target.site;
    let report = r#"{"run":"1","state":"converged","agent":"0.1.0"}"#;
    let report = request("POST", "/v1/reports", &[], report);
    let of_job = request("POST", "/v1/jobs/a/report", &[], r#"{"offset":0}"#);
    let (web, db) = (
        site.enrolled(WEB, "web").await,
        site.enrolled(DB, "db").await,
    );
    let mut client = RawClient::connect(site, Some(web.0)).await;
    let mut other = RawClient::connect(site, Some(db.0)).await;
    let offers = request("GET", "/v1/offers", &[], "");
    for (bytes, expected) in [(&report, 201), (&of_job, 404), (&offers, 200)] {
        for _ in 0..200 {
            let answer = client.exchange(bytes).await.expect("an answer");
            assert_eq!(answer.status, expected);
        }
        let answer = client.exchange(bytes).await.expect("an answer");
        assert_eq!((answer.status, &*answer.refusal().0), (429, "E303"));
        assert_eq!(answer.header("retry-after"), Some("1"));
        let answer = other.exchange(bytes).await.expect("an answer");
        assert_eq!(answer.status, expected, "another node");
    }
    assert_eq!(ask(&mut client, "/spec/web").await, Some(200));
    site.clock.advance(1);
    let answer = client.exchange(&report).await.expect("an answer");
    assert_eq!(answer.status, 201);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn a_client_with_an_unknown_certificate_is_slowed_down() {
    let target = Target::start().await;
    let site = &target.site;
    let mut client = RawClient::connect(site, Some(self_signed())).await;
    for _ in 0..10 {
        assert_eq!(ask(&mut client, "/spec/web").await, Some(401));
    }
    for path in ["/spec/web", "/v1/nodes", "/v1/agents/x86_64"] {
        assert_eq!(ask(&mut client, path).await, Some(429), "{path}");
    }
    assert_eq!(ask(&mut client, "/health").await, Some(200));
    site.clock.advance(60);
    assert_eq!(ask(&mut client, "/spec/web").await, Some(401));
    assert_eq!(target.finish().await, 0);
}
