//! Certificates that are self-signed, foreign, stolen, replaced, revoked or expired; older TLS.

use std::sync::Arc;

use homestak_api::certificate::Role;
use homestak_api::trust::{TlsCredential, provider};
use rcgen::KeyPair;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use serde_json::json;

use super::{Target, enrolment};
use crate::raw::{RawClient, request};
use crate::site::{DB, TestSite, WEB, at, credential};

const INVALID: (u16, &str) = (401, "E301");
const FORBIDDEN: (u16, &str) = (403, "E301");
const DAY: i64 = 24 * 3600;

const REPORT: &str = r#"{"run":"1","state":"converged","agent":"0.1.0"}"#;

/// What only nodes may do.
fn of_nodes() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("spec", request("GET", "/spec/web", &[], "")),
        ("report", request("POST", "/v1/reports", &[], REPORT)),
        ("renew", request("POST", "/v1/renew", &[], &enrolment())),
        ("offers", request("GET", "/v1/offers", &[], "")),
        ("take", request("POST", "/v1/jobs/a/take", &[], "{}")),
        (
            "report of a job",
            request("POST", "/v1/jobs/a/report", &[], r#"{"offset":0}"#),
        ),
    ]
}

/// What only operators may do.
fn of_operators() -> Vec<(&'static str, Vec<u8>)> {
    let node = format!("/v1/nodes/{WEB}");
    vec![
        ("nodes", request("GET", "/v1/nodes", &[], "")),
        ("node", request("GET", &node, &[], "")),
        (
            "reports",
            request("GET", &format!("{node}/reports"), &[], ""),
        ),
        (
            "revoke node",
            request("POST", &format!("{node}/revoke"), &[], "{}"),
        ),
        ("tokens", request("GET", "/v1/tokens", &[], "")),
        (
            "revoke token",
            request("POST", "/v1/tokens/t-web/revoke", &[], "{}"),
        ),
        ("reload", request("POST", "/v1/reload", &[], "{}")),
        ("jobs", request("GET", "/v1/jobs", &[], "")),
        ("job", request("GET", "/v1/jobs/a", &[], "")),
        (
            "jobs of a node",
            request("GET", &format!("{node}/jobs"), &[], ""),
        ),
        (
            "submit",
            request(
                "POST",
                &format!("{node}/jobs"),
                &[],
                r#"{"statement":"a.b"}"#,
            ),
        ),
        ("cancel", request("POST", "/v1/jobs/a/cancel", &[], "{}")),
    ]
}

pub(super) fn copy((chain, key): &TlsCredential) -> TlsCredential {
    (chain.clone(), key.clone_key())
}

pub(super) fn self_signed() -> TlsCredential {
    let signed = rcgen::generate_simple_self_signed(["web".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
    (vec![signed.cert.der().clone()], key.into())
}

async fn renew(site: &TestSite, own: &TlsCredential) -> TlsCredential {
    let key = KeyPair::generate().expect("a key");
    let engine = base64::engine::general_purpose::STANDARD;
    let public = base64::Engine::encode(&engine, key.public_key_raw());
    let body = json!({ "node": "web", "uuid": WEB, "public_key": public, "agent": "0.1.0" });
    let post = site
        .client(Some(copy(own)))
        .post(format!("{}/v1/renew", site.url));
    let answer = post.json(&body).send().await.expect("an answer");
    assert_eq!(answer.status(), 201);
    credential(&answer.text().await.expect("a body"), &key)
}

#[tokio::test]
async fn a_certificate_that_is_not_recorded_counts_for_nothing_whoever_signed_it() {
    let mut target = Target::start().await;
    let site = &target.site;
    let other = TestSite::start().await;
    let (web, _) = site.enrolled(WEB, "web").await;
    // Someone who broke into the server has its intermediate.
    let role = Role::Intermediate("site".to_owned());
    let intermediate = site.authority.issue(role, at(0)).expect("issued");
    let issue = |role: Role| {
        let issued = intermediate.issue(role, at(0)).expect("issued");
        issued.for_tls().expect("usable")
    };
    let node = Role::Node {
        name: "web".to_owned(),
        uuid: WEB.to_owned(),
    };
    let operator = Role::Operator("op".to_owned());
    let of_authority = site
        .authority
        .issue(operator.clone(), at(0))
        .expect("issued");
    let renewed = renew(site, &web).await;
    let mut client = RawClient::connect(site, Some(copy(&renewed))).await;
    let spec = client.exchange(&request("GET", "/spec/web", &[], "")).await;
    assert_eq!(
        spec.expect("an answer").status,
        200,
        "the old one is forgotten"
    );
    let certificates = [
        ("self-signed", self_signed()),
        ("another site's node", other.enrolled(WEB, "web").await.0),
        (
            "another site's operator",
            other.operator.for_tls().expect("usable"),
        ),
        ("a node of the intermediate", issue(node)),
        ("an operator of the intermediate", issue(operator)),
        (
            "a server",
            issue(Role::Server(vec!["127.0.0.1".to_owned()])),
        ),
        ("the intermediate", intermediate.for_tls().expect("usable")),
        ("the authority", site.authority.for_tls().expect("usable")),
        (
            "an operator that was not published",
            of_authority.for_tls().expect("usable"),
        ),
        ("replaced", web),
    ];
    for (who, certificate) in &certificates {
        for (what, bytes) in of_nodes().into_iter().chain(of_operators()) {
            let what = format!("{who}: {what}");
            target
                .refuse(&what, Some(certificate), &bytes, INVALID)
                .await;
        }
        let agent = request("GET", "/v1/agents/x86_64", &[], "");
        target.refuse(who, Some(certificate), &agent, INVALID).await;
        // A valid token does not help someone who shows a certificate that is not valid.
        let token = crate::site::v1("db", "base");
        let header = format!("Bearer {token}");
        let spec = request("GET", "/spec/db", &[("authorization", &header)], "");
        target.refuse(who, Some(certificate), &spec, INVALID).await;
        target.secret(&token);
    }
    assert_eq!(target.finish().await, 200);
}

#[tokio::test]
async fn a_node_can_do_nothing_in_the_name_of_another_or_of_an_operator() {
    let mut target = Target::start().await;
    target.site.enrol(WEB, "web").await;
    let (db, _) = target.site.enrolled(DB, "db").await;
    for (what, bytes) in of_operators() {
        target.refuse(what, Some(&db), &bytes, FORBIDDEN).await;
    }
    let spec = request("GET", "/spec/web", &[], "");
    target.refuse("spec", Some(&db), &spec, FORBIDDEN).await;
    let renew = request("POST", "/v1/renew", &[], &enrolment());
    target.refuse("renew", Some(&db), &renew, FORBIDDEN).await;
    let token = crate::site::v1("web", "base");
    target.secret(&token);
    let header = format!("Bearer {token}");
    let headers = [("authorization", header.as_str())];
    let spec = request("GET", "/spec/web", &headers, "");
    target
        .refuse("with its token", Some(&db), &spec, FORBIDDEN)
        .await;
    let enrol = request("POST", "/v1/enrol", &headers, &enrolment());
    target
        .refuse("enrol", Some(&db), &enrol, (400, "E101"))
        .await;

    let operator = target.site.operator.for_tls().expect("usable");
    for (what, bytes) in of_nodes() {
        target
            .refuse(what, Some(&operator), &bytes, FORBIDDEN)
            .await;
    }
    target
        .refuse("enrol", Some(&operator), &enrol, (400, "E101"))
        .await;
    assert_eq!(target.finish().await, 23);
}

/// Lets days pass; the driver renews the intermediate.
fn later(site: &TestSite, days: i64) {
    site.clock.set(at(days * DAY));
    site.publish_intermediate(at(days * DAY));
    (site.reload)();
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_an_expired_one_renews_once() {
    let mut target = Target::start().await;
    let (web, _) = target.site.enrolled(WEB, "web").await;
    let (db, _) = target.site.enrolled(DB, "db").await;
    let url = format!("{}/v1/nodes/{DB}/revoke", target.site.url);
    let revoke = target
        .site
        .operator()
        .post(url)
        .json(&json!({ "reason": "stolen" }));
    assert_eq!(revoke.send().await.expect("an answer").status(), 200);
    for (what, bytes) in of_nodes().into_iter().chain(of_operators()) {
        let what = format!("revoked: {what}");
        target.refuse(&what, Some(&db), &bytes, INVALID).await;
    }
    later(&target.site, 40);
    let spec = request("GET", "/spec/web", &[], "");
    let report = request("POST", "/v1/reports", &[], REPORT);
    target
        .refuse("expired: spec", Some(&web), &spec, INVALID)
        .await;
    target
        .refuse("expired: report", Some(&web), &report, INVALID)
        .await;
    for (what, bytes) in of_operators() {
        target
            .refuse(&format!("expired: {what}"), Some(&web), &bytes, FORBIDDEN)
            .await;
    }
    let renewed = renew(&target.site, &web).await;
    let mut client = RawClient::connect(&target.site, Some(copy(&renewed))).await;
    let answer = client.exchange(&spec).await.expect("an answer");
    assert_eq!(answer.status, 200);
    target.refuse("replaced", Some(&web), &spec, INVALID).await;
    later(&target.site, 80);
    let again = request("POST", "/v1/renew", &[], &enrolment());
    target
        .refuse("a second time", Some(&renewed), &again, (403, "E302"))
        .await;
    target
        .refuse("the first again", Some(&web), &again, INVALID)
        .await;
    assert_eq!(target.finish().await, 35);
}

#[tokio::test]
async fn an_operator_whose_certificate_has_expired_may_do_nothing() {
    let mut target = Target::start().await;
    let operator = target.site.operator.for_tls().expect("usable");
    let mut open = RawClient::connect(&target.site, Some(copy(&operator))).await;
    let nodes = request("GET", "/v1/nodes", &[], "");
    assert_eq!(
        open.exchange(&nodes).await.expect("an answer").status,
        200,
        "before"
    );
    later(&target.site, 366);
    let answer = open.exchange(&nodes).await.expect("an answer");
    assert_eq!(answer.status, 401, "on an open connection");
    assert!(answer.refusal().1.contains("expired"), "{answer:?}");
    for (what, bytes) in of_operators() {
        target.refuse(what, Some(&operator), &bytes, INVALID).await;
    }
    assert_eq!(target.finish().await, of_operators().len());
}

/// Shows a certificate, and signs with the key of another.
#[derive(Debug)]
struct WithoutKey(Arc<CertifiedKey>);

impl ResolvesClientCert for WithoutKey {
    fn resolve(
        &self,
        _hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_stolen_certificate_without_its_key_and_older_tls_end_in_the_handshake() {
    let target = Target::start().await;
    let (web, _) = target.site.enrolled(WEB, "web").await;
    let other_key = KeyPair::generate().expect("a key");
    let other_key = rustls::pki_types::PrivatePkcs8KeyDer::from(other_key.serialize_der());
    let operator = target.site.operator.for_tls().expect("usable");
    for (chain, _) in [web, operator] {
        let key = provider()
            .key_provider
            .load_private_key(other_key.clone_key().into());
        let shown = CertifiedKey::new(chain, key.expect("a key"));
        let mut config = target.site.tls(None);
        config.client_auth_cert_resolver = Arc::new(WithoutKey(Arc::new(shown)));
        // In TLS 1.3 the client is done before the server refuses; it gets no answer.
        let answer = match RawClient::try_connect(&target.site, config).await {
            Ok(mut client) => client.exchange(&request("GET", "/spec/web", &[], "")).await,
            Err(_) => None,
        };
        assert!(answer.is_none(), "{answer:?}");
    }
    let old = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("a version")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let refused = RawClient::try_connect(&target.site, old).await;
    assert!(refused.map(drop).is_err(), "TLS 1.2");
    let log = target.log.text();
    assert_eq!(log.matches("TLS handshake failed").count(), 3, "{log}");
    assert_eq!(target.finish().await, 0);
}
