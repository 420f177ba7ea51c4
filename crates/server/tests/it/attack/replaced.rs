//! Old copies of certificates, and requests that began before a certificate was revoked.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use homestak_api::trust::TlsCredential;
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::certificates::copy;
use crate::raw::{RawClient, request};
use crate::site::{TestSite, WEB, at, credential};

const DAY: i64 = 24 * 3600;

async fn ask(site: &TestSite, own: &TlsCredential, bytes: &[u8]) -> (u16, String) {
    let mut client = RawClient::connect(site, Some(copy(own))).await;
    let answer = client.exchange(bytes).await.expect("an answer");
    (answer.status, answer.body)
}

async fn spec(site: &TestSite, own: &TlsCredential) -> u16 {
    ask(site, own, &request("GET", "/spec/web", &[], ""))
        .await
        .0
}

fn renewal(key: &KeyPair, headers: &[(&str, &str)]) -> Vec<u8> {
    let public = STANDARD.encode(key.public_key_raw());
    let body = json!({ "node": "web", "uuid": WEB, "public_key": public, "agent": "0.1.0" });
    request("POST", "/v1/renew", headers, &body.to_string())
}

/// Returns the new certificate, or status and code of the refusal.
async fn renew(site: &TestSite, own: &TlsCredential) -> Result<TlsCredential, (u16, String)> {
    let key = KeyPair::generate().expect("a key");
    let (status, body) = ask(site, own, &renewal(&key, &[])).await;
    if status == 201 {
        return Ok(credential(&body, &key));
    }
    let problem: Value = serde_json::from_str(&body).expect("JSON");
    Err((status, problem["code"].as_str().expect("a code").to_owned()))
}

fn refused(status: u16, code: &str) -> Option<(u16, String)> {
    Some((status, code.to_owned()))
}

#[tokio::test]
async fn an_old_copy_of_a_certificate_cannot_renew_after_a_restart_either() {
    let mut site = TestSite::start().await;
    let (old, _) = site.enrolled(WEB, "web").await;
    let new = renew(&site, &old).await.expect("renewed");
    assert_eq!(spec(&site, &new).await, 200);
    assert_eq!(renew(&site, &old).await.err(), refused(401, "E301"));
    site.kill_and_start_again().await;
    assert_eq!(renew(&site, &old).await.err(), refused(401, "E301"));
    assert_eq!(spec(&site, &new).await, 200, "the node has its certificate");
}

#[tokio::test]
async fn a_certificate_whose_replacement_was_lost_still_renews_after_a_restart() {
    let mut site = TestSite::start().await;
    let (old, _) = site.enrolled(WEB, "web").await;
    renew(&site, &old).await.expect("renewed, and lost");
    site.kill_and_start_again().await;
    let new = renew(&site, &old).await.expect("renewed again");
    assert_eq!(spec(&site, &new).await, 200);
    assert_eq!(renew(&site, &old).await.err(), refused(401, "E301"));
}

#[tokio::test]
async fn an_expired_certificate_that_was_replaced_cannot_renew() {
    let mut site = TestSite::start().await;
    let (old, _) = site.enrolled(WEB, "web").await;
    let new = renew(&site, &old).await.expect("renewed");
    site.clock.set(at(40 * DAY));
    site.publish_intermediate(at(40 * DAY));
    (site.reload)();
    for _ in 0..2 {
        assert_eq!(renew(&site, &old).await.err(), refused(403, "E302"));
        site.kill_and_start_again().await;
    }
    // The one that counts has expired too, and renews once.
    let last = renew(&site, &new).await.expect("renewed");
    assert_eq!(renew(&site, &new).await.err(), refused(403, "E302"));
    assert_eq!(spec(&site, &last).await, 200);
    assert_eq!(renew(&site, &new).await.err(), refused(401, "E301"));
}

/// Sends the head of a request, and waits until the server reads the body, which is returned.
async fn begin(client: &mut RawClient, bytes: &[u8]) -> Vec<u8> {
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    let (head, body) = bytes.split_at(end.expect("a head") + 4);
    client.send(head).await;
    let answer = client.answer(false).await.expect("an answer");
    assert_eq!(answer.status, 100);
    body.to_vec()
}

const EXPECT: [(&str, &str); 1] = [("expect", "100-continue")];

#[tokio::test]
async fn a_renewal_that_began_before_the_new_certificate_was_used_is_refused() {
    let site = TestSite::start().await;
    let (old, _) = site.enrolled(WEB, "web").await;
    let new = renew(&site, &old).await.expect("renewed");
    let mut slow = RawClient::connect(&site, Some(copy(&old))).await;
    let key = KeyPair::generate().expect("a key");
    let body = begin(&mut slow, &renewal(&key, &EXPECT)).await;
    assert_eq!(spec(&site, &new).await, 200);
    slow.send(&body).await;
    assert_eq!(slow.answer(false).await.expect("an answer").status, 401);
    assert_eq!(spec(&site, &new).await, 200);
}

#[tokio::test]
async fn a_report_that_began_before_the_revocation_is_refused() {
    let site = TestSite::start().await;
    let (web, _) = site.enrolled(WEB, "web").await;
    let report = r#"{"run":"1","state":"converged","agent":"0.1.0"}"#;
    let mut open = Vec::new();
    for (path, body) in [
        ("/v1/reports", report),
        ("/v1/jobs/a/take", "{}"),
        ("/v1/jobs/a/report", r#"{"offset":0}"#),
    ] {
        let mut client = RawClient::connect(&site, Some(copy(&web))).await;
        let body = begin(&mut client, &request("POST", path, &EXPECT, body)).await;
        open.push((path, client, body));
    }
    let node = format!("{}/v1/nodes/{WEB}", site.url);
    let revoke = site.operator().post(format!("{node}/revoke"));
    let revoke = revoke.json(&json!({ "reason": "stolen" })).send().await;
    assert_eq!(revoke.expect("an answer").status(), 200);
    for (path, mut client, body) in open {
        client.send(&body).await;
        let answer = client.answer(false).await.expect("an answer");
        assert_eq!(answer.status, 401, "{path}: {}", answer.body);
    }
    let reports = site.operator().get(format!("{node}/reports")).send().await;
    let reports: Value = reports.expect("an answer").json().await.expect("JSON");
    assert_eq!(reports["reports"], json!([]));
}
