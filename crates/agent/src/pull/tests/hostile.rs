//! A compromised server: it has the server's certificate, but no key of the site.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use homestak_api::certificate::{Credential, Role};
use homestak_api::publication::{STATEMENT_HEADER, SpecStatement};
use homestak_api::signature::{Purpose, SiteKey};
use homestak_core::observed::GuestUuid;
use homestak_test_support::server::{Response, Server};

use super::sample::{WEB, at, spec, statement};
use super::site::TestSite;
use super::{Puller, refused};
use crate::error::{AgentError, FetchError, StatementError};

/// A signed statement about a body, changed before it is signed.
fn signed(key: &SiteKey, body: &str, change: impl FnOnce(&mut SpecStatement)) -> Vec<String> {
    let mut statement = statement(body);
    statement.generation = 9;
    statement.keys = vec![key.public()];
    change(&mut statement);
    vec![key.sign(Purpose::Spec, &statement).expect("signed")]
}

/// Starts a server that sends this spec, and accepts every report.
fn hostile(statements: Vec<String>, body: String) -> Server {
    Server::answering(0, move |head| {
        let is_spec = head.starts_with("GET /spec/");
        let header = |text: &String| (STATEMENT_HEADER.to_owned(), text.clone());
        match is_spec {
            true => Response::Full(200, statements.iter().map(header).collect(), body.clone()),
            false => Response::Reply(201, "{\"id\":1}".to_owned()),
        }
    })
}

#[test]
fn a_spec_that_the_site_did_not_sign_for_this_machine_now_is_never_applied() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let (key, stranger) = (&site.key, SiteKey::generate().expect("a key"));
    let evil = spec("evil");
    let other = GuestUuid::new("22222222-2222-4222-8222-222222222222").expect("a UUID");
    let huge = format!("{}{evil}", " ".repeat(17 << 20));
    let good = signed(key, &spec("two"), |_| ());
    let for_agent = key.sign(Purpose::Agent, &statement(&evil)).expect("signed");
    let cut = good[0][..good[0].len() - 8].to_owned();
    let cases: Vec<(&str, Vec<String>, String)> = vec![
        ("unsigned", Vec::new(), evil.clone()),
        ("an empty statement", vec![String::new()], evil.clone()),
        (
            "a statement that is none",
            vec!["a.b".to_owned()],
            evil.clone(),
        ),
        ("a cut statement", vec![cut], spec("two")),
        ("a long statement", vec!["A".repeat(70_000)], evil.clone()),
        ("altered", good.clone(), evil.clone()),
        ("cut", good.clone(), spec("two").trim_end().to_owned()),
        ("empty", good, String::new()),
        (
            "signed by a stranger",
            signed(&stranger, &evil, |_| ()),
            evil.clone(),
        ),
        ("signed as an agent", vec![for_agent], evil.clone()),
        (
            "older",
            signed(key, &evil, |one| one.generation = 6),
            evil.clone(),
        ),
        (
            "the same number",
            signed(key, &evil, |one| one.generation = 7),
            evil.clone(),
        ),
        (
            "for another site",
            signed(key, &evil, |one| one.site = "x".to_owned()),
            evil.clone(),
        ),
        (
            "for another node",
            signed(key, &evil, |one| one.node = "db".to_owned()),
            evil.clone(),
        ),
        (
            "for another guest",
            signed(key, &evil, |one| one.uuid = other),
            evil.clone(),
        ),
        ("huge, although signed", signed(key, &huge, |_| ()), huge),
    ];
    for (what, statements, body) in cases {
        let server = hostile(statements, body);
        let before = web.registration();
        web.change(|registration| {
            registration.contact.servers = vec![server.url()];
            registration.contact.fingerprints = vec![server.fingerprint.clone()];
        });
        let error = web.pass().map(drop).expect_err(what);
        // Not permanent: the server may be repaired.
        assert!(!error.is_permanent(), "{what}: {}", error.message());
        assert_eq!(web.registration().accepted, before.accepted, "{what}");
        assert_eq!(web.registration().site_keys, before.site_keys, "{what}");
        assert_eq!(web.node.tried, [spec("one")], "{what}");
        web.change(|registration| *registration = before);
    }
    site.publish(&spec("two"), |statement| statement.generation = 9);
    web.pass().expect("the honest server is served again");
    assert_eq!(web.node.applied, Some(spec("two")));
}

#[test]
fn an_entity_tag_of_a_compromised_server_does_not_keep_later_specs_away() {
    for tag in [
        "*",
        "\"x\", *",
        "\"10-0\", \"11-0\", *, \"12-0\"",
        "W/*",
        "\"",
        "",
    ] {
        let site = TestSite::start();
        let mut web = Puller::new(&site);
        web.pass().expect("applied");
        let statement = signed(&site.key, &spec("two"), |_| ()).remove(0);
        let server = Server::answering(0, move |head| {
            let tag = ("ETag".to_owned(), tag.to_owned());
            let headers = vec![(STATEMENT_HEADER.to_owned(), statement.clone()), tag];
            match head.starts_with("GET /spec/") {
                true => Response::Full(200, headers, spec("two")),
                false => Response::Reply(201, "{\"id\":1}".to_owned()),
            }
        });
        let before = web.registration().contact;
        web.change(|registration| {
            registration.contact.servers = vec![server.url()];
            registration.contact.fingerprints = vec![server.fingerprint.clone()];
        });
        web.pass().expect("it is signed");
        web.change(|registration| registration.contact = before);
        site.publish(&spec("three"), |statement| statement.generation = 10);
        assert!(web.pass().expect("sent").changed, "{tag}");
        assert_eq!(web.node.applied, Some(spec("three")), "{tag}");
    }
}

#[test]
fn a_renewed_certificate_that_is_too_long_is_not_stored() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let before = web.registration();
    // For the key of this machine, and with the authority a thousand times.
    let chain = format!(
        "{}{}",
        before.chain,
        site.enrolment().authorities[0].repeat(1_000)
    );
    let issued = serde_json::json!({ "chain": chain, "not_after": 2_000_000_000_i64 });
    let issued = issued.to_string();
    let server = Server::answering(0, move |head| match head.starts_with("POST /v1/renew") {
        true => Response::Reply(201, issued.clone()),
        false => Response::Reply(503, String::new()),
    });
    web.change(|registration| {
        registration.contact.servers = vec![server.url()];
        registration.contact.fingerprints = vec![server.fingerprint.clone()];
        registration.renew_after = 0;
    });
    web.pass().map(drop).expect_err("it serves no spec");
    assert!(
        server
            .requests()
            .iter()
            .any(|head| head.starts_with("POST /v1/renew"))
    );
    assert_eq!(web.registration().chain, before.chain);
    web.change(|registration| *registration = before);
    assert!(web.pass().expect("the honest server accepts it").reported);
}

/// Starts a server that issues certificates which the registry of the site does not know, each to be
/// renewed at once, and answers requests for the spec with a status.
fn issuing(intermediate: Credential, public_key: &str, status: u16) -> Server {
    let key = STANDARD.decode(public_key).expect("base64");
    let role = Role::Node {
        name: "web".to_owned(),
        uuid: WEB.to_owned(),
    };
    Server::answering(0, move |head| {
        if head.starts_with("GET /spec/") {
            return Response::Reply(status, String::new());
        }
        if !head.starts_with("POST /v1/renew") {
            return Response::Reply(201, "{\"id\":1}".to_owned());
        }
        let issued = intermediate.issue_to(&role, &key, at(0)).expect("issued");
        let answer = serde_json::json!({ "chain": issued.chain, "not_after": 0 });
        Response::Reply(201, answer.to_string())
    })
}

#[test]
fn a_node_whose_certificate_a_compromised_server_replaced_is_accepted_by_the_repaired_one() {
    // The server refuses every certificate, or accepts those that it issued.
    for status in [401, 304] {
        let site = TestSite::start();
        let mut web = Puller::new(&site);
        web.pass().expect("applied");
        let key = web.store.key().expect("a key").public();
        let server = issuing(site.stolen_intermediate(), &key, status);
        let before = web.registration();
        web.change(|registration| {
            registration.contact.servers = vec![server.url()];
            registration.contact.fingerprints = vec![server.fingerprint.clone()];
            registration.renew_after = 0;
        });
        for _ in 0..6 {
            let chain = web.registration().chain;
            let done = web.pass();
            assert_eq!(done.is_ok(), status == 304);
            if let Err(error) = done {
                let message = error.message();
                assert!(!error.is_permanent(), "{message}");
                assert!(message.contains("or the certificate"), "{message}");
            }
            assert_ne!(web.registration().chain, chain, "replaced");
        }
        web.change(|registration| registration.contact = before.contact.clone());
        let done = web.pass();
        let error = done.as_ref().err().map(AgentError::message);
        assert!(done.is_ok_and(|done| done.reported), "{status}: {error:?}");
        assert!(web.pass().expect("nothing to do").reported, "{status}");
        site.publish(&spec("two"), |statement| statement.generation = 9);
        assert!(web.pass().expect("applied").changed, "{status}");
    }
}

#[test]
fn a_node_that_poses_as_the_server_is_sent_nothing() {
    let site = TestSite::start();
    let anything = Response::Reply(200, "{}".to_owned());
    let node = Server::with_credential(site.node_credential(), anything);
    let mut web = Puller::new(&site);
    let mut enrolment = site.enrolment();
    enrolment.servers = vec![node.url()];
    web.enrolment(&enrolment);
    let error = web.pass().map(drop).expect_err("not trusted");
    assert!(
        matches!(error, AgentError::Fetch(FetchError::Certificate { .. })),
        "{}",
        error.message()
    );
    assert!(!error.is_permanent());
    assert!(node.requests().is_empty(), "{:?}", node.requests());
    web.enrolment(&site.enrolment());
    web.pass().expect("applied");
}

#[test]
fn a_server_that_issues_no_usable_certificate_does_not_end_an_enrolment() {
    // A certificate of the site, for the key of someone else.
    let site = TestSite::start();
    let mut other = Puller::new(&site);
    other.pass().expect("applied");
    let foreign = serde_json::json!({ "chain": other.registration().chain, "not_after": 1 });
    let foreign = foreign.to_string();
    for body in [
        &*foreign,
        "",
        "{}",
        "[]",
        "null",
        "{\"chain\":7,\"not_after\":1}",
        "{\"chain\":\"\",\"not_after\":1}",
        "{\"chain\":\"PEM\",\"not_after\":1}",
    ] {
        let site = TestSite::start();
        let mut web = Puller::new(&site);
        let server = Server::new(vec![Response::Reply(201, body.to_owned())]);
        let mut enrolment = site.enrolment();
        enrolment.servers = vec![server.url()];
        enrolment.authorities.push(server.pem.clone());
        web.enrolment(&enrolment);
        let error = web.pass().map(drop).expect_err(body);
        assert!(!error.is_permanent(), "{body}: {}", error.message());
        assert!(web.node.tried.is_empty(), "{body}");
        assert!(web.store.enrolment.exists(), "{body}");
        web.enrolment(&site.enrolment());
        let honest = web.pass().map(drop).err();
        assert!(
            honest.is_none(),
            "{body}: {}",
            honest.expect("an error").message()
        );
    }
}

#[test]
fn a_recreated_machine_refuses_the_spec_of_the_former_guest_with_its_uuid() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let mut enrolment = site.enrolment();
    enrolment.issued += 1;
    web.enrolment(&enrolment);
    assert_eq!(refused(web.pass()), (StatementError::BeforeEnrolment, true));
    assert!(web.node.tried.is_empty());
    site.publish(&spec("two"), |statement| {
        statement.generation = 8;
        statement.issued = enrolment.issued;
    });
    web.pass().expect("applied");
    assert_eq!(web.node.applied, Some(spec("two")));
}
