//! Certificates of nodes: enrolment, renewal, replacement, revocation.

use homestak_api::v1::report::{Report, ReportState};
use rcgen::KeyPair;

use crate::raw::{RawClient, request};
use crate::site::{DB, TestSite, WEB, at, credential, enrol, v1, v2};

fn report() -> Report {
    Report {
        run: "run-1".to_owned(),
        state: ReportState::Converged,
        generation: Some(7),
        step: None,
        changed: Some(true),
        error: None,
        permanent: false,
        drift: Vec::new(),
        agent: "0.1.0".to_owned(),
    }
}

async fn get(client: &reqwest::Client, url: String) -> u16 {
    client
        .get(url)
        .send()
        .await
        .expect("an answer")
        .status()
        .as_u16()
}

async fn send(client: &reqwest::Client, site: &TestSite) -> u16 {
    let request = client
        .post(format!("{}/v1/reports", site.url))
        .json(&report());
    request.send().await.expect("an answer").status().as_u16()
}

async fn renew(client: &reqwest::Client, site: &TestSite, key: &KeyPair) -> (u16, String) {
    use base64::Engine as _;
    let public = base64::engine::general_purpose::STANDARD.encode(key.public_key_raw());
    let body = serde_json::json!({
        "node": "web", "uuid": WEB, "public_key": public, "agent": "0.1.0",
    });
    let request = client.post(format!("{}/v1/renew", site.url)).json(&body);
    let answer = request.send().await.expect("an answer");
    (
        answer.status().as_u16(),
        answer.text().await.expect("a body"),
    )
}

#[tokio::test]
async fn a_token_of_a_guest_counts_also_when_its_spec_was_replaced_by_another_before_first_contact()
{
    let site = TestSite::start().await;
    site.publish(WEB, "web", |spec| spec.spec = "other".to_owned());
    (site.reload)();
    let client = site.client(None);
    let spec = async |token: String| {
        let request = client.get(format!("{}/spec/web", site.url));
        let answer = request.bearer_auth(token).send().await.expect("an answer");
        answer.status().as_u16()
    };
    assert_eq!(spec(v2(&site.claims(WEB, "web"))).await, 200);
    // Version 1 does not name the guest.
    assert_eq!(spec(v1("web", "base")).await, 404);
    let web = site.enrol(WEB, "web").await;
    assert_eq!(get(&web, format!("{}/spec/web", site.url)).await, 200);
}

#[tokio::test]
async fn an_enrolled_node_can_only_read_its_own_spec_and_send_reports() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    assert_eq!(get(&web, format!("{}/spec/web", site.url)).await, 200);
    assert_eq!(send(&web, &site).await, 201);
    for path in ["/spec/db", "/v1/nodes", "/v1/tokens"] {
        assert_eq!(
            get(&web, format!("{}{path}", site.url)).await,
            403,
            "{path}"
        );
    }
    let reports = format!("{}/v1/nodes/{WEB}/reports", site.url);
    assert_eq!(get(&web, reports.clone()).await, 403);
    let reports: serde_json::Value = site
        .operator()
        .get(reports)
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!(reports["reports"][0]["state"], "converged");
}

#[tokio::test]
async fn after_enrolment_only_the_certificate_counts() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    for token in [v2(&site.claims(WEB, "web")), v1("web", "base")] {
        let request = site.client(None).get(format!("{}/spec/web", site.url));
        let answer = request
            .bearer_auth(token.clone())
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 403);
        let key = KeyPair::generate().expect("a key");
        let again = enrol(&site.client(None), &site.url, WEB, "web", &key, &token).await;
        assert_eq!(again.status(), 403);
    }
    assert_eq!(get(&web, format!("{}/spec/web", site.url)).await, 200);
}

#[tokio::test]
async fn a_node_that_did_not_get_the_answer_enrols_again_with_the_same_key() {
    let site = TestSite::start().await;
    let client = site.client(None);
    let (key, token) = (
        KeyPair::generate().expect("a key"),
        v2(&site.claims(WEB, "web")),
    );
    let mut bodies = Vec::new();
    for _ in 0..3 {
        let answer = enrol(&client, &site.url, WEB, "web", &key, &token).await;
        assert_eq!(answer.status(), 201);
        bodies.push(answer.text().await.expect("a body"));
    }
    let last = site.client(Some(credential(&bodies[2], &key)));
    assert_eq!(send(&last, &site).await, 201);
    let first = site.client(Some(credential(&bodies[0], &key)));
    assert_eq!(send(&first, &site).await, 401);
    let other = KeyPair::generate().expect("a key");
    let refused = enrol(&client, &site.url, WEB, "web", &other, &token).await;
    assert_eq!(refused.status(), 403);
    let url = format!("{}/v1/tokens/t-web/revoke", site.url);
    let revoke = site.operator().post(url).json(&serde_json::json!({}));
    assert_eq!(revoke.send().await.expect("an answer").status(), 200);
    let refused = enrol(&client, &site.url, WEB, "web", &key, &token).await;
    assert_eq!(refused.status(), 403, "the token was revoked");
    assert_eq!(send(&last, &site).await, 201);
}

#[tokio::test]
async fn of_two_keys_at_the_same_time_one_enrols() {
    let site = TestSite::start().await;
    let (client, token) = (site.client(None), v1("web", "base"));
    let (one, two) = (
        KeyPair::generate().expect("a key"),
        KeyPair::generate().expect("a key"),
    );
    let (one, two) = tokio::join!(
        enrol(&client, &site.url, WEB, "web", &one, &token),
        enrol(&client, &site.url, WEB, "web", &two, &token)
    );
    let mut statuses = [one.status().as_u16(), two.status().as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 403]);
}

#[tokio::test]
async fn a_node_that_did_not_get_its_renewed_certificate_renews_again_with_the_old_one() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    let key = KeyPair::generate().expect("a key");
    let mut last = String::new();
    for _ in 0..3 {
        let (status, body) = renew(&web, &site, &key).await;
        assert_eq!(status, 201, "{body}");
        last = body;
        // It can renew, and nothing else.
        assert_eq!(send(&web, &site).await, 401);
    }
    let renewed = site.client(Some(credential(&last, &key)));
    assert_eq!(send(&renewed, &site).await, 201);
    assert_eq!(renew(&web, &site, &key).await.0, 401, "the new one is used");
    assert_eq!(send(&renewed, &site).await, 201);
}

#[tokio::test]
async fn a_token_enrols_its_own_guest_only() {
    let site = TestSite::start().await;
    let key = KeyPair::generate().expect("a key");
    let token = v2(&site.claims(WEB, "web"));
    let client = site.client(None);
    for (guest, node, status) in [(DB, "web", 401), (WEB, "db", 401), (DB, "db", 401)] {
        let answer = enrol(&client, &site.url, guest, node, &key, &token).await;
        assert_eq!(answer.status(), status, "{guest} {node}");
    }
}

#[tokio::test]
async fn a_revoked_node_is_refused_immediately_on_its_open_connection() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    assert_eq!(send(&web, &site).await, 201);
    let url = format!("{}/v1/nodes/{WEB}/revoke", site.url);
    let revoke = site
        .operator()
        .post(url)
        .json(&serde_json::json!({ "reason": "stolen" }));
    assert_eq!(revoke.send().await.expect("an answer").status(), 200);
    assert_eq!(send(&web, &site).await, 401);
    assert_eq!(get(&web, format!("{}/spec/web", site.url)).await, 401);
    let key = KeyPair::generate().expect("a key");
    let token = v2(&site.claims(WEB, "web"));
    let again = enrol(&site.client(None), &site.url, WEB, "web", &key, &token).await;
    assert_eq!(again.status(), 403);
}

#[tokio::test]
async fn an_expired_certificate_renews_once() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    let key = KeyPair::generate().expect("a key");
    let renew = async |client: &reqwest::Client| renew(client, &site, &key).await;
    let (status, body) = renew(&web).await;
    assert_eq!(status, 201);
    let renewed = site.client(Some(credential(&body, &key)));
    assert_eq!(send(&renewed, &site).await, 201);
    assert_eq!(send(&web, &site).await, 401, "the previous one is invalid");
    // No server ran for two months; the driver published a new intermediate since.
    site.clock.set(at(60 * 24 * 3600));
    site.publish_intermediate(at(60 * 24 * 3600));
    (site.reload)();
    assert_eq!(send(&renewed, &site).await, 401, "expired");
    let (status, body) = renew(&renewed).await;
    assert_eq!(status, 201, "{body}");
    let renewed = site.client(Some(credential(&body, &key)));
    assert_eq!(send(&renewed, &site).await, 201);
    site.clock.set(at(120 * 24 * 3600));
    site.publish_intermediate(at(120 * 24 * 3600));
    (site.reload)();
    assert_eq!(renew(&renewed).await.0, 403, "a second time");
}

#[tokio::test]
async fn replacing_a_guest_invalidates_its_certificate() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    let rebuilt = "55555555-5555-4555-8555-555555555555";
    site.directory
        .remove_spec(&crate::site::uuid(WEB))
        .expect("removed");
    site.publish(rebuilt, "web", |spec| {
        spec.token.as_mut().expect("a token").id = "t-new".to_owned();
    });
    (site.reload)();
    assert_eq!(send(&web, &site).await, 401);
    let mut claims = site.claims(rebuilt, "web");
    claims.guest.as_mut().expect("version 2").token_id = "t-new".to_owned();
    let key = KeyPair::generate().expect("a key");
    let answer = enrol(
        &site.client(None),
        &site.url,
        rebuilt,
        "web",
        &key,
        &v2(&claims),
    )
    .await;
    assert_eq!(answer.status(), 201);
}

#[tokio::test]
async fn a_node_that_was_destroyed_while_no_server_ran_can_do_nothing_with_its_certificate() {
    let mut site = TestSite::start().await;
    site.publish_agent("x86_64", b"program");
    let web = site.enrol(WEB, "web").await;
    let db = site.enrol(DB, "db").await;
    // The driver removes the spec; no server is there to revoke the certificate.
    site.directory
        .remove_spec(&crate::site::uuid(WEB))
        .expect("removed");
    site.kill_and_start_again().await;
    let at = |path: &str| format!("{}{path}", site.url);
    for path in ["/spec/web", "/v1/agents/x86_64", "/v1/offers"] {
        assert_eq!(get(&web, at(path)).await, 404, "{path}");
    }
    let key = KeyPair::generate().expect("a key");
    let (status, body) = renew(&web, &site, &key).await;
    assert_eq!(status, 404);
    assert!(body.contains("E200"), "{body}");
    assert_eq!(send(&web, &site).await, 404);
    let take = web.post(at("/v1/jobs/a/take")).json(&serde_json::json!({}));
    assert_eq!(take.send().await.expect("an answer").status(), 404);
    for path in ["/spec/db", "/v1/agents/x86_64"] {
        assert_eq!(get(&db, at(path)).await, 200, "{path}");
    }
    // Its spec was missing, and is published again: it was not revoked.
    site.publish(WEB, "web", |_| ());
    (site.reload)();
    assert_eq!(send(&web, &site).await, 201);
}

#[tokio::test]
async fn a_certificate_of_another_site_is_refused() {
    let site = TestSite::start().await;
    let other = TestSite::start().await;
    let key = KeyPair::generate().expect("a key");
    let token = v2(&other.claims(WEB, "web"));
    let answer = enrol(&other.client(None), &other.url, WEB, "web", &key, &token).await;
    let body = answer.text().await.expect("a body");
    let stranger = site.client(Some(credential(&body, &key)));
    assert_eq!(get(&stranger, format!("{}/spec/web", site.url)).await, 401);
    assert_eq!(get(&stranger, format!("{}/v1/nodes", site.url)).await, 401);
    let their_operator = site.client(Some(other.operator.for_tls().expect("usable")));
    assert_eq!(
        get(&their_operator, format!("{}/v1/nodes", site.url)).await,
        401
    );
}

#[tokio::test]
async fn a_node_whose_spec_is_withdrawn_while_it_is_revoked_is_missing() {
    let site = TestSite::start().await;
    let own = Some(site.operator.for_tls().expect("usable"));
    let mut client = RawClient::connect(&site, own).await;
    let path = format!("/v1/nodes/{WEB}/revoke");
    let headers = [("content-length", "2"), ("expect", "100-continue")];
    client.send(&request("POST", &path, &headers, "")).await;
    // The server has found the node, and waits for the body.
    let answer = client.answer(true).await.expect("an answer");
    assert_eq!(answer.status, 100, "{}", answer.head);
    let uuid = crate::site::uuid(WEB);
    site.directory.remove_spec(&uuid).expect("removed");
    (site.reload)();
    client.send(b"{}").await;
    let answer = client.answer(false).await.expect("an answer");
    assert_eq!(answer.status, 404, "{}", answer.body);
    assert_eq!(answer.refusal().0, "E200");
}
