//! Programs in a trusted network, and tokens of guests that no longer exist.

use homestak_api::publication::{DESTROYED, FirstContact, PublishedRevocation, sha256};
use homestak_server::settings::ServerSettings;
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::raw::{RawClient, request};
use crate::site::{DB, TestSite, WEB, uuid, v1, v2};

/// Sends a request with or without token; returns status and code.
async fn ask(
    site: &TestSite,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> (u16, String) {
    let header = token.map(|token| format!("Bearer {token}"));
    let header = header.as_deref().map(|text| ("authorization", text));
    let headers: Vec<_> = header.into_iter().collect();
    let mut client = RawClient::connect(site, None).await;
    let answer = client
        .exchange(&request(method, path, &headers, body))
        .await;
    let answer = answer.expect("an answer");
    (answer.status, answer.refusal().0)
}

fn enrolment(guest: &str, node: &str, key: &KeyPair) -> String {
    let engine = base64::engine::general_purpose::STANDARD;
    let public = base64::Engine::encode(&engine, key.public_key_raw());
    json!({ "node": node, "uuid": guest, "public_key": public, "agent": "0.1.0" }).to_string()
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn the_network_alone_is_not_enough_for_a_guest_that_a_token_was_issued_for() {
    let trusted = TestSite::start_with(ServerSettings::default(), |info| {
        info.trusted_networks = vec!["127.0.0.0/8".to_owned()];
    });
    let site = trusted.await;
    site.publish(WEB, "web", |spec| {
        spec.first_contact = FirstContact::Network;
    });
    site.publish(DB, "db", |spec| {
        spec.first_contact = FirstContact::Network;
        spec.token = None;
        spec.had_token = false;
    });
    (site.reload)();
    let key = KeyPair::generate().expect("a key");
    let (web, db) = (enrolment(WEB, "web", &key), enrolment(DB, "db", &key));
    let none = refused(400, "E300");
    assert_eq!(ask(&site, "GET", "/spec/web", None, "").await, none);
    assert_eq!(ask(&site, "POST", "/v1/enrol", None, &web).await, none);
    let revoke = format!("{}/v1/tokens/t-web/revoke", site.url);
    let revoke = site.operator().post(revoke).json(&json!({})).send().await;
    assert_eq!(revoke.expect("an answer").status(), 200);
    assert_eq!(ask(&site, "POST", "/v1/enrol", None, &web).await, none);
    assert_eq!(ask(&site, "GET", "/spec/db", None, "").await.0, 200);
    assert_eq!(ask(&site, "POST", "/v1/enrol", None, &db).await.0, 201);
}

/// Sends what a node without certificate may ask for; returns the distinct results.
async fn all(site: &TestSite, token: &str, key: &KeyPair) -> Vec<(u16, String)> {
    let mut found = Vec::new();
    let body = enrolment(WEB, "web", key);
    for (method, path, body) in [
        ("GET", "/spec/web", ""),
        ("GET", "/v1/agents/x86_64", ""),
        ("POST", "/v1/enrol", &*body),
    ] {
        site.clock.advance(10);
        found.push(ask(site, method, path, Some(token), body).await);
    }
    found.dedup();
    found
}

#[tokio::test]
async fn a_token_of_a_former_guest_is_of_no_use_for_a_new_one_with_the_same_uuid() {
    for was_used in [true, false] {
        let mut site = TestSite::start().await;
        site.publish_agent("x86_64", b"program");
        (site.reload)();
        let old = v2(&site.claims(WEB, "web"));
        if was_used {
            site.enrol(WEB, "web").await;
            let revoke = format!("{}/v1/nodes/{WEB}/revoke", site.url);
            let revoke = site.operator().post(revoke);
            let revoke = revoke.json(&json!({ "reason": "destroyed" })).send().await;
            assert_eq!(revoke.expect("an answer").status(), 200);
        }
        site.directory.remove_spec(&uuid(WEB)).expect("removed");
        (site.reload)();
        site.publish(WEB, "web", |spec| {
            spec.token.as_mut().expect("a token").id = "t-new".to_owned();
        });
        (site.reload)();
        let key = KeyPair::generate().expect("a key");
        let spent = [refused(403, "E302")];
        assert_eq!(all(&site, &old, &key).await, spent, "{was_used}");
        site.kill_and_start_again().await;
        assert_eq!(all(&site, &old, &key).await, spent, "{was_used}");

        // The new guest, as on its first boot.
        let mut claims = site.claims(WEB, "web");
        claims.guest.as_mut().expect("version 2").token_id = "t-new".to_owned();
        let new = v2(&claims);
        let agent = ask(&site, "GET", "/v1/agents/x86_64", Some(&new), "").await;
        assert_eq!(agent.0, 200);
        let body = enrolment(WEB, "web", &key);
        for _ in 0..2 {
            let enrolled = ask(&site, "POST", "/v1/enrol", Some(&new), &body).await;
            assert_eq!(enrolled.0, 201, "also again, with the same key");
        }
        assert_eq!(all(&site, &old, &key).await, spent, "with the node's key");
    }
}

#[tokio::test]
async fn a_token_that_was_not_issued_by_the_driver_is_refused_though_its_signature_is_valid() {
    let site = TestSite::start().await;
    let mut claims = site.claims(WEB, "web");
    claims.guest.as_mut().expect("version 2").token_id = "t-unknown".to_owned();
    let key = KeyPair::generate().expect("a key");
    let spent = [refused(403, "E302")];
    assert_eq!(all(&site, &v2(&claims), &key).await, spent);
}

#[tokio::test]
async fn a_node_that_has_not_enrolled_is_listed_and_loses_its_token_when_it_is_revoked() {
    let site = TestSite::start().await;
    site.enrol(WEB, "web").await;
    let get = async |path: &str| -> Value {
        let url = format!("{}/v1/nodes{path}", site.url);
        let answer = site.operator().get(url).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.expect("JSON")
    };
    let nodes = get("").await;
    let nodes = nodes["nodes"].as_array().expect("a list").clone();
    assert_eq!(nodes.len(), 2);
    let [db, web] = [&nodes[0], &nodes[1]];
    assert_eq!((&db["name"], &web["name"]), (&json!("db"), &json!("web")));
    assert!(db["enrolled"].is_null() && web["enrolled"].is_i64());
    let expected = [DB, "lab", "local"].map(Value::from);
    assert_eq!(
        [&db["uuid"], &db["manifest"], &db["host"]],
        expected.each_ref()
    );
    assert_eq!(db["generation"], 7);
    assert_eq!(get(&format!("/{DB}")).await, *db);
    let reports = get(&format!("/{DB}/reports")).await;
    assert_eq!(reports["reports"], json!([]));

    let revoke = site
        .operator()
        .post(format!("{}/v1/nodes/{DB}/revoke", site.url));
    let revoke = revoke.json(&json!({ "reason": "destroyed" })).send().await;
    let revoked: Value = revoke.expect("an answer").json().await.expect("JSON");
    assert!(revoked["revoked"].is_i64(), "{revoked}");
    let tokens = site.operator().get(format!("{}/v1/tokens", site.url));
    let tokens = tokens.send().await.expect("an answer");
    let tokens: Value = tokens.json().await.expect("JSON");
    let of_db = tokens["tokens"].as_array().expect("a list").iter();
    let of_db: Vec<_> = of_db.filter(|token| token["node"] == "db").collect();
    assert!(
        of_db.iter().all(|token| token["revoked"].is_i64()),
        "{tokens}"
    );
    let key = KeyPair::generate().expect("a key");
    let (token, body) = (v2(&site.claims(DB, "db")), enrolment(DB, "db", &key));
    let refusal = ask(&site, "POST", "/v1/enrol", Some(&token), &body).await;
    assert_eq!(refusal, refused(403, "E302"));
}

#[tokio::test]
async fn a_node_whose_spec_was_withdrawn_while_no_server_ran_is_revoked_with_its_token() {
    let mut site = TestSite::start().await;
    site.enrol(WEB, "web").await;
    let why = PublishedRevocation {
        at: 1_700_000_000,
        reason: DESTROYED.to_owned(),
    };
    for guest in [WEB, DB] {
        let withdrawn = site.directory.withdraw_spec(&uuid(guest), &why);
        withdrawn.expect("withdrawn");
    }
    site.kill_and_start_again().await;
    let get = async |site: &TestSite, path: &str| -> Value {
        let url = format!("{}{path}", site.url);
        let answer = site.operator().get(url).send().await.expect("an answer");
        answer.json().await.expect("JSON")
    };
    let nodes = get(&site, "/v1/nodes").await;
    let nodes = nodes["nodes"].as_array().expect("a list");
    // The other one never enrolled, so that nothing is known of it.
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0]["revoked"], why.at);
    assert_eq!(nodes[0]["revoke_reason"], DESTROYED);
    assert!(nodes[0]["generation"].is_null(), "{nodes:?}");
    let tokens = get(&site, "/v1/tokens").await;
    for token in tokens["tokens"].as_array().expect("a list") {
        let is_closed = token["used"].is_i64() || token["revoked"].is_i64();
        assert!(is_closed, "{tokens}");
    }
    // A new guest with the same UUID enrols with a token of its own.
    site.publish(WEB, "web", |spec| {
        spec.token.as_mut().expect("a token").id = "t-new".to_owned();
    });
    (site.reload)();
    let mut claims = site.claims(WEB, "web");
    claims.guest.as_mut().expect("version 2").token_id = "t-new".to_owned();
    let key = KeyPair::generate().expect("a key");
    let body = enrolment(WEB, "web", &key);
    let enrolled = ask(&site, "POST", "/v1/enrol", Some(&v2(&claims)), &body).await;
    assert_eq!(enrolled.0, 201);
}

#[tokio::test]
async fn a_node_that_is_revoked_before_it_has_enrolled_cannot_enrol_in_any_way() {
    let trusted = TestSite::start_with(ServerSettings::default(), |info| {
        info.trusted_networks = vec!["127.0.0.0/8".to_owned()];
    });
    let mut site = trusted.await;
    site.publish(WEB, "web", |spec| {
        spec.first_contact = FirstContact::SiteToken;
        spec.token_sha256 = Some(sha256(b"shared.by.all"));
    });
    site.publish(DB, "db", |spec| {
        spec.first_contact = FirstContact::Network;
        spec.token = None;
        spec.had_token = false;
    });
    (site.reload)();
    for guest in [WEB, DB] {
        let revoke = format!("{}/v1/nodes/{guest}/revoke", site.url);
        let revoke = site.operator().post(revoke);
        let revoke = revoke.json(&json!({ "reason": "stolen" })).send().await;
        let revoked: Value = revoke.expect("an answer").json().await.expect("JSON");
        assert_eq!(revoked["revoke_reason"], "stolen");
        assert!(revoked["enrolled"].is_null(), "{revoked}");
    }
    let key = KeyPair::generate().expect("a key");
    let (web, db) = (enrolment(WEB, "web", &key), enrolment(DB, "db", &key));
    let (v1, v2) = (v1("web", "base"), v2(&site.claims(WEB, "web")));
    for is_restarted in [false, true] {
        for token in [&*v1, &*v2, "shared.by.all"] {
            for (method, path, body) in [("GET", "/spec/web", ""), ("POST", "/v1/enrol", &*web)] {
                site.clock.advance(10);
                let found = ask(&site, method, path, Some(token), body).await;
                assert_eq!(found, refused(403, "E302"), "{path} {is_restarted}");
            }
        }
        for (method, path, body) in [("GET", "/spec/db", ""), ("POST", "/v1/enrol", &*db)] {
            site.clock.advance(10);
            let found = ask(&site, method, path, None, body).await;
            assert_eq!(found, refused(403, "E302"), "{path} {is_restarted}");
        }
        site.kill_and_start_again().await;
    }
    // A new token lifts it, as that of any node.
    site.publish(WEB, "web", |spec| {
        spec.token.as_mut().expect("a token").id = "t-new".to_owned();
    });
    assert_eq!((site.reload)(), ["`web` may enrol again"]);
    let mut claims = site.claims(WEB, "web");
    claims.guest.as_mut().expect("version 2").token_id = "t-new".to_owned();
    let new = crate::site::v2(&claims);
    assert_eq!(
        ask(&site, "POST", "/v1/enrol", Some(&new), &web).await.0,
        201
    );
}
