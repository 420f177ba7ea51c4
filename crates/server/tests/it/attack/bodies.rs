//! Bodies that are announced and not sent to their end: they use up no memory that others need.

use homestak_api::trust::TlsCredential;
use homestak_server::settings::{Limits, ServerSettings};

use super::Target;
use crate::raw::{RawClient, request};
use crate::site::{DB, TestSite, WEB, at, v1};

/// Half of what is received at a time.
const HALF: usize = 16 << 20;

const REPORT: &str = r#"{"run":"1","state":"converged","agent":"0.1.0"}"#;

async fn target() -> Target {
    let limits = Limits {
        body_bytes: HALF,
        ..Limits::default()
    };
    let settings = ServerSettings {
        limits,
        ..ServerSettings::default()
    };
    Target::start_with(settings).await
}

/// Announces a body, and returns the connection with the status of the first answer.
async fn announce(site: &TestSite, own: Option<TlsCredential>, path: &str) -> (RawClient, u16) {
    let mut client = RawClient::connect(site, own).await;
    let (length, second) = (HALF.to_string(), at(0).as_second().to_string());
    let headers = [
        ("content-length", length.as_str()),
        ("expect", "100-continue"),
        ("webhook-id", "one"),
        ("webhook-timestamp", &second),
        ("webhook-signature", "v1,AAAA"),
    ];
    client.send(&request("POST", path, &headers, "")).await;
    let answer = client.answer(false).await.expect("an answer");
    if answer.status != 100 {
        assert_eq!(answer.refusal().0, "E303");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    (client, answer.status)
}

async fn report(site: &TestSite, own: TlsCredential) -> u16 {
    let mut client = RawClient::connect(site, Some(own)).await;
    let report = request("POST", "/v1/reports", &[], REPORT);
    client.exchange(&report).await.expect("an answer").status
}

#[tokio::test]
async fn bodies_of_unknown_clients_give_way_to_newer_ones_and_to_nodes() {
    let target = target().await;
    let site = &target.site;
    let (web, _) = site.enrolled(WEB, "web").await;
    let mut open = Vec::new();
    for _ in 0..6 {
        let (client, status) = announce(site, None, "/v1/hooks/deploy").await;
        assert_eq!(status, 100);
        open.push(client);
    }
    for closed in &mut open[..4] {
        assert!(closed.is_closed().await);
    }
    assert_eq!(report(site, web).await, 201);
    assert!(open[4].is_closed().await);
    let token = format!("Bearer {}", v1("db", "base"));
    let spec = request("GET", "/spec/db", &[("authorization", &token)], "");
    let answer = RawClient::connect(site, None).await.exchange(&spec).await;
    assert_eq!(answer.expect("an answer").status, 200);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn bodies_of_nodes_do_not_give_way_to_unknown_clients() {
    let target = target().await;
    let site = &target.site;
    let (web, _) = site.enrolled(WEB, "web").await;
    let (db, _) = site.enrolled(DB, "db").await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let own = (web.0.clone(), web.1.clone_key());
        let (client, status) = announce(site, Some(own), "/v1/reports").await;
        assert_eq!(status, 100);
        open.push(client);
    }
    let (mut refused, status) = announce(site, None, "/v1/hooks/deploy").await;
    assert_eq!(status, 503);
    assert!(refused.is_closed().await);
    assert_eq!(report(site, db).await, 201, "another node");
    assert!(open[0].is_closed().await, "the oldest");
    let log = target.log.text();
    assert!(log.contains("too many bodies"), "{log}");
    assert_eq!(target.finish().await, 0);
}
