//! `/health`, `/specs`, `/spec/{identity}`.

use homestak_api::publication::{FirstContact, STATEMENT_HEADER, sha256, verify_spec};
use homestak_core::token::{SigningKey, mint};
use homestak_server::settings::ServerSettings;

use crate::site::{DB, TestSite, V1_KEY, WEB, at, v1, v2};

async fn status(site: &TestSite, path: &str, token: Option<&str>) -> (u16, String) {
    let mut request = site.client(None).get(format!("{}{path}", site.url));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    let body: serde_json::Value = answer.json().await.expect("JSON");
    (
        status,
        body["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    )
}

#[tokio::test]
async fn health_and_the_names_of_specs_are_public() {
    let site = TestSite::start().await;
    let client = site.client(None);
    let get = |path| client.get(format!("{}{path}", site.url)).send();
    let text = get("/health")
        .await
        .expect("an answer")
        .text()
        .await
        .expect("text");
    assert_eq!(text, "{\n  \"status\": \"ok\"\n}\n");
    let specs: serde_json::Value = get("/specs/")
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!(specs, serde_json::json!({ "specs": ["base"] }));
}

#[tokio::test]
async fn a_token_of_either_version_gets_its_own_node_the_signed_spec() {
    let site = TestSite::start().await;
    for token in [v1("web", "base"), v2(&site.claims(WEB, "web"))] {
        let request = site.client(None).get(format!("{}/spec/web", site.url));
        let answer = request.bearer_auth(token).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let statement = answer.headers()[STATEMENT_HEADER]
            .to_str()
            .expect("text")
            .to_owned();
        let etag = answer.headers()["etag"].clone();
        let body = answer.bytes().await.expect("a body");
        let statement = verify_spec(&statement, &body, &[site.key.public()]).expect("signed");
        assert_eq!((statement.node.as_str(), statement.generation), ("web", 7));
        let again = site.client(None).get(format!("{}/spec/web", site.url));
        let again = again
            .bearer_auth(v1("web", "base"))
            .header("if-none-match", etag);
        let again = again.send().await.expect("an answer");
        assert_eq!(again.status(), 304);
        assert!(again.bytes().await.expect("no body").is_empty());
    }
}

#[tokio::test]
async fn an_invalid_token_is_refused_with_its_code() {
    let site = TestSite::start().await;
    let good = site.claims(WEB, "web");
    let changed = |change: fn(&mut homestak_core::token::GuestClaims)| {
        let mut claims = good.clone();
        claims.guest.as_mut().map(change);
        v2(&claims)
    };
    let other_key = SigningKey::from_hex(&V1_KEY.replace("00", "01")).expect("a key");
    let cut = v2(&good);
    let cases = [
        (None, 400, "E300"),
        (Some("nonsense".to_owned()), 400, "E300"),
        (Some("a.b.c".to_owned()), 400, "E300"),
        (Some(cut[..cut.len() - 3].to_owned()), 401, "E301"),
        (Some(mint(&good, &other_key)), 401, "E301"),
        (
            Some(mint(&good, &SigningKey::from_hex(V1_KEY).expect("a key"))),
            401,
            "E301",
        ),
        (Some(v1("db", "base")), 401, "E301"),
        (Some(v1("web", "pve")), 404, "E200"),
        (Some(v2(&site.claims(DB, "db"))), 401, "E301"),
        (Some(v2(&site.claims(DB, "web"))), 404, "E200"),
        (
            Some(changed(|guest| guest.site = "other".to_owned())),
            401,
            "E301",
        ),
        (
            Some(changed(|guest| guest.expires_at = 1_799_999_999)),
            401,
            "E301",
        ),
        (
            Some(changed(|guest| guest.key_id = "k2".to_owned())),
            401,
            "E301",
        ),
    ];
    for (token, code, error) in cases {
        // A new server for each, without earlier failures.
        let site = TestSite::start().await;
        let found = status(&site, "/spec/web", token.as_deref()).await;
        assert_eq!(found, (code, error.to_owned()), "{token:?}");
    }
    let found = status(&site, "/spec/web/../db", Some(&v1("web", "base"))).await;
    assert_eq!(found.0, 401, "the client resolves it to another node");
    assert_eq!(
        status(&site, "/other", None).await,
        (400, "E100".to_owned())
    );
}

#[tokio::test]
async fn an_ambiguous_name_needs_a_token_that_names_the_guest() {
    let site = TestSite::start().await;
    let third = "33333333-3333-4333-8333-333333333333";
    let other = "44444444-4444-4444-8444-444444444444";
    for guest in [third, other] {
        site.publish(guest, "twin", |_| ());
    }
    assert_eq!((site.reload)().len(), 2);
    let found = status(&site, "/spec/twin", Some(&v1("twin", "base"))).await;
    assert_eq!(found, (409, "E201".to_owned()));
    let token = v2(&site.claims(third, "twin"));
    assert_eq!(status(&site, "/spec/twin", Some(&token)).await.0, 200);
}

#[tokio::test]
async fn the_posture_allows_an_additional_authentication_method() {
    let settings = ServerSettings::default();
    let site = TestSite::start_with(settings, |info| {
        info.trusted_networks = vec!["127.0.0.0/8".to_owned()];
    });
    let site = site.await;
    site.publish(WEB, "web", |spec| {
        spec.first_contact = FirstContact::Network;
        spec.token = None;
        spec.had_token = false;
    });
    site.publish(DB, "db", |spec| {
        spec.first_contact = FirstContact::SiteToken;
        spec.token_sha256 = Some(sha256(b"shared.by.all"));
    });
    (site.reload)();
    assert_eq!(status(&site, "/spec/web", None).await.0, 200);
    assert_eq!(status(&site, "/spec/db", None).await.0, 400);
    assert_eq!(
        status(&site, "/spec/db", Some("shared.by.all")).await.0,
        200
    );
    assert_eq!(status(&site, "/spec/db", Some("shared.by.al")).await.0, 400);
    assert_eq!(
        status(&site, "/spec/web", Some("shared.by.all")).await.0,
        400
    );
    assert_eq!(
        status(&site, "/spec/db", Some(&v1("db", "base"))).await.0,
        200
    );
}

#[tokio::test]
async fn clients_that_fail_too_often_are_throttled() {
    let site = TestSite::start().await;
    for _ in 0..10 {
        assert_eq!(status(&site, "/spec/web", Some("a.b")).await.0, 400);
    }
    let good = v1("web", "base");
    assert_eq!(status(&site, "/spec/web", Some(&good)).await.0, 429);
    assert_eq!(status(&site, "/health", None).await.0, 200);
    site.clock.set(at(60));
    assert_eq!(status(&site, "/spec/web", Some(&good)).await.0, 200);
}
