//! Passes of the agent (fetch, verify, apply, report) against a real server.

mod confirm;
pub(super) mod fake_node;
mod hostile;
mod jobs;
mod logged;
mod recorded;
mod renewal;
pub(super) mod sample;
mod script;
mod site;
mod update;

use std::time::Duration;

use homestak_test_support::server::{Response, Server};

use self::fake_node::FakeNode;
use self::sample::{WEB, spec};
use self::site::TestSite;
use super::client::Client;
use super::daemon::{asks_again, first_pause};
use super::pass::{Apply, PassReport, pass};
use super::registration::Registration;
use super::session::Session;
use super::store::Store;
use crate::error::{AgentError, FetchError, PullError, StatementError};

/// A machine that pulls from a site.
struct Puller {
    root: tempfile::TempDir,
    store: Store,
    node: FakeNode,
}

impl Puller {
    /// A machine before its first boot.
    fn new(site: &TestSite) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let store = fake_node::store(root.path());
        let puller = Self {
            root,
            store,
            node: FakeNode::default(),
        };
        puller.enrolment(&site.enrolment());
        puller
    }

    fn enrolment(&self, enrolment: &homestak_core::firstboot::Enrolment) {
        let text = serde_json::to_string_pretty(enrolment).expect("JSON");
        self.store.put_enrolment(&text).expect("stored");
    }

    fn pass(&mut self) -> Result<PassReport, AgentError> {
        pass(&self.store, &mut self.node, Apply::WhenPending, None)
    }

    fn registration(&self) -> Registration {
        let found = self.store.registration().expect("read");
        found.expect("it enrolled")
    }

    fn change(&self, change: impl FnOnce(&mut Registration)) {
        let mut registration = self.registration();
        change(&mut registration);
        self.store.put_registration(&registration).expect("stored");
    }
}

fn denied(done: &Result<PassReport, AgentError>) -> bool {
    let denied = matches!(
        done,
        Err(AgentError::Pull(
            PullError::Denied(_) | PullError::CertificateDenied(_)
        ))
    );
    denied && done.as_ref().is_err_and(|error| error.code() == 3)
}

fn refused(done: Result<PassReport, AgentError>) -> (StatementError, bool) {
    match done {
        Err(AgentError::Pull(PullError::Statement { why, is_first })) => (why, is_first),
        Err(other) => panic!("{}", other.message()),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn a_machine_enrols_applies_its_spec_reports_and_forgets_its_token() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let token = site.enrolment().token.clone();
    let copy = web.root.path().join("cloud/user-data.txt");
    fs_err::write(&copy, &token).expect("written");
    let done = web.pass().expect("applied");
    assert_eq!(
        (done.generation, done.fetched, done.changed),
        (7, true, true)
    );
    assert!(done.reported);
    assert_eq!(web.node.applied, Some(spec("one")));
    assert!(!web.store.enrolment.exists());
    assert!(
        !fs_err::read_to_string(&copy)
            .expect("read")
            .contains(&token)
    );
    assert_eq!(site.reports(), ["fetching", "converging", "converged"]);
    let status = site.ask("GET", &format!("/v1/nodes/{WEB}"));
    assert_eq!(status["name"], "web");

    // No newer spec: nothing is applied, and `converged` is reported.
    let again = web.pass().expect("nothing to do");
    assert_eq!(
        (again.fetched, again.changed, again.reported),
        (false, false, true)
    );
    assert_eq!(web.node.tried.len(), 1);
    assert_eq!(site.reports().last().map(String::as_str), Some("converged"));
    // Unless it is requested.
    let asked = pass(&web.store, &mut web.node, Apply::Always, None).expect("applied");
    assert!(!asked.changed);
    assert_eq!(web.node.tried.len(), 2);
}

#[test]
fn a_newer_spec_is_applied_and_an_older_or_changed_one_is_refused() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    site.publish(&spec("two"), |statement| statement.generation = 9);
    assert!(web.pass().expect("applied").changed);
    for (generation, body, why) in [
        (8, "one", StatementError::Older { found: 8, last: 9 }),
        (9, "three", StatementError::Changed(9)),
    ] {
        site.publish(&spec(body), |statement| statement.generation = generation);
        assert_eq!(refused(web.pass()), (why, false));
        assert_eq!(web.node.applied, Some(spec("two")));
        assert_eq!(site.reports().last().map(String::as_str), Some("failed"));
    }
    site.publish(&spec("three"), |statement| statement.generation = 10);
    web.pass().expect("applied");
    assert_eq!(web.node.applied, Some(spec("three")));
}

#[test]
fn servers_of_a_new_enrolment_are_kept_when_the_spec_is_the_same() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let mut moved = site.enrolment();
    moved.servers.insert(0, "https://127.0.0.1:1".to_owned());
    web.enrolment(&moved);
    assert!(!web.pass().expect("nothing to do").fetched);
    assert!(!web.store.enrolment.exists());
    assert_eq!(web.registration().contact.servers, moved.servers);
}

#[test]
fn after_an_enrolment_generations_may_restart_but_not_roll_back() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let signed = |body: &str, generation, at: i64| {
        site.publish(&spec(body), |statement| {
            statement.generation = generation;
            statement.issued = sample::at(at).as_second();
        });
    };
    // The clock of the driver was years ahead; then it lost its state directory.
    let year = 365 * 24 * 3600;
    signed("two", 4_000_000_000, 60 * year);
    web.pass().expect("applied");
    signed("three", 9, 500);
    web.pass().map(drop).expect_err("refused");
    let enrolled = |at: i64| {
        let mut enrolment = site.enrolment();
        enrolment.issued = sample::at(at).as_second();
        enrolment
    };
    let older = |found, last| StatementError::Older { found, last };
    // Signed before the enrolment that root handed over: it may be replayed.
    web.enrolment(&enrolled(1_000));
    assert_eq!(refused(web.pass()).0, older(9, 4_000_000_000));
    signed("three", 10, 1_000);
    assert!(web.pass().expect("applied").changed);
    assert_eq!(web.node.applied, Some(spec("three")));
    // From now on, the numbers rise again.
    signed("two", 9, 1_500);
    assert_eq!(refused(web.pass()).0, older(9, 10));
    web.enrolment(&enrolled(1_000));
    assert_eq!(refused(web.pass()).0, older(9, 10), "the same enrolment");
    signed("four", 11, 1_600);
    web.pass().expect("applied");
    // Nor does a server bring back what was signed while the clock was ahead.
    let latest = web.registration().contact.latest;
    signed("two", 4_000_000_000, 60 * year);
    assert_eq!(refused(web.pass()).0, older(4_000_000_000, 11));
    assert_eq!(web.registration().contact.latest, latest);
}

#[test]
fn a_revoked_machine_is_refused_and_keeps_its_spec() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    site.ask("POST", &format!("/v1/nodes/{WEB}/revoke"));
    let hint = |done: Result<PassReport, AgentError>| {
        assert!(denied(&done));
        done.map(drop).expect_err("denied").message()
    };
    let of_certificate = hint(web.pass());
    assert!(
        of_certificate.contains("certificate of this machine"),
        "{of_certificate}"
    );
    assert!(!of_certificate.contains("token"), "{of_certificate}");
    assert_eq!(web.node.applied, Some(spec("one")));
    // Not even with a new token.
    web.enrolment(&site.enrolment());
    let of_token = hint(web.pass());
    assert!(
        of_token.contains("the token was used, revoked"),
        "{of_token}"
    );
}

#[test]
fn an_enrolled_machine_that_is_refused_applies_its_accepted_spec_and_asks_again() {
    let mut site = TestSite::start();
    let mut web = Puller::new(&site);
    web.node.is_broken = true;
    let failed = web.pass().map(drop).expect_err("not applied");
    assert!(!asks_again(&web.store, &failed), "tried again anyway");
    site.lose_registry();
    web.node.is_broken = false;
    let before = web.store.credentials();
    let refused = web
        .pass()
        .map(drop)
        .expect_err("the server does not know it");
    assert!(refused.is_permanent() && asks_again(&web.store, &refused));
    assert_eq!(
        web.node.applied,
        Some(spec("one")),
        "it was accepted before"
    );
    assert!(
        web.store.credentials() == before,
        "the pause is not cut short"
    );
    // The operator restores a backup; nothing is done on the machine.
    site.restore_registry();
    assert!(web.pass().expect("known again").reported);
    // A handed over enrolment ends the pause.
    web.enrolment(&site.enrolment());
    assert!(web.store.credentials() != before);
}

#[test]
fn a_machine_that_is_refused_before_it_enrolled_gives_up() {
    let site = TestSite::start();
    site.ask("POST", "/v1/tokens/t1/revoke");
    let mut web = Puller::new(&site);
    let refused = web.pass().map(drop).expect_err("refused");
    assert!(refused.is_permanent() && !asks_again(&web.store, &refused));
    fs_err::remove_file(&web.store.enrolment).expect("removed");
    let missing = web.pass().map(drop).expect_err("not enrolled");
    assert!(missing.is_permanent() && !asks_again(&web.store, &missing));
}

#[test]
fn a_pass_ends_with_a_code_of_the_guide_whatever_the_server_answers() {
    for status in [400, 401, 404, 409, 422, 500] {
        let refused = FetchError::Refused {
            server: "https://10.0.0.1".to_owned(),
            status,
            code: String::new(),
            message: String::new(),
        };
        let error = AgentError::NotPulled(Box::new(refused.into()));
        assert!([2, 3].contains(&error.code()), "{status}: {}", error.code());
        assert!(
            error.message().contains("refused with"),
            "{}",
            error.message()
        );
    }
    let error = AgentError::NotPulled(Box::new(FetchError::NoServer.into()));
    assert_eq!(error.code(), 2);
    let error = AgentError::NotPulled(Box::new(PullError::NotEnrolled.into()));
    assert_eq!(error.code(), 3);
}

#[test]
fn a_token_that_is_spent_revoked_or_of_another_guest_is_refused_for_good() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let mut thief = Puller::new(&site);
    assert!(denied(&thief.pass()), "another key");
    assert!(web.pass().expect("unaffected").reported);

    let site = TestSite::start();
    site.ask("POST", "/v1/tokens/t1/revoke");
    assert!(denied(&Puller::new(&site).pass()), "revoked");
    let mut changed = site.enrolment();
    changed.uuid = homestak_core::observed::GuestUuid::new("22222222-2222-4222-8222-222222222222")
        .expect("a UUID");
    let mut other = Puller::new(&site);
    other.enrolment(&changed);
    assert!(denied(&other.pass()), "another guest");
    let forged = TestSite::start().enrolment();
    let mut other = Puller::new(&site);
    let mut changed = site.enrolment();
    changed.token = format!("{}x", forged.token);
    other.enrolment(&changed);
    assert!(denied(&other.pass()), "forged");
}

#[test]
fn a_server_that_is_late_restarts_or_moves_is_found() {
    let mut site = TestSite::start();
    let mut web = Puller::new(&site);
    let url = site.url.clone();
    site.stop();
    let error = web.pass().map(drop).expect_err("no server");
    assert!(matches!(
        error,
        AgentError::Fetch(FetchError::Unreachable { .. })
    ));
    assert!(!error.is_permanent());
    site.run();
    // The new address is passed on by the driver.
    web.enrolment(&site.enrolment());
    web.pass().expect("applied");
    // Or by a statement, while both addresses answer.
    let first = site.url.clone();
    assert_ne!(first, url);
    site.publish(&spec("one"), |statement| {
        statement.generation = 8;
        statement.servers = vec!["https://127.0.0.1:1".to_owned(), first.clone()];
    });
    web.pass().expect("taken over");
    let servers = web.registration().contact.servers;
    assert_eq!(servers, ["https://127.0.0.1:1", &*first]);
    assert_eq!(web.node.tried.len(), 1, "the spec is the same");
    assert!(web.pass().expect("the second server answers").reported);
}

/// Starts a server that refuses every request with a certificate or a token.
fn refusing() -> Server {
    let body = "{\"code\":\"E302\",\"detail\":\"the node was revoked\"}".to_owned();
    Server::new(vec![Response::Reply(403, body)])
}

#[test]
fn a_refusal_of_a_replaced_server_is_not_permanent_while_the_preferred_one_is_not_reached() {
    let mut site = TestSite::start();
    let old = refusing();
    let mut web = Puller::new(&site);
    // At first contact.
    let mut both = site.enrolment();
    both.servers.push(old.url());
    both.authorities.push(old.pem.clone());
    web.enrolment(&both);
    site.stop();
    let late = web.pass().map(drop).expect_err("refused by the other one");
    assert!(!late.is_permanent(), "{}", late.message());
    assert!(web.store.enrolment.exists());
    site.run_again();
    web.pass().expect("applied");
    assert_eq!(
        web.registration().contact.servers,
        [site.url.clone(), old.url()]
    );
    // And later.
    site.stop();
    let late = web.pass().map(drop).expect_err("refused by the other one");
    assert!(!late.is_permanent(), "{}", late.message());
    assert!(old.requests().iter().any(|head| head.contains("/v1/renew")));
    site.run_again();
    assert!(web.pass().expect("the preferred one answers").reported);
    // The refusal of the preferred one counts, whatever the others do.
    web.change(|registration| {
        registration.contact.servers = vec![old.url(), "https://127.0.0.1:1".to_owned()];
    });
    assert!(denied(&web.pass()));
}

#[test]
fn no_request_is_lost_on_a_connection_that_the_server_closed_since_the_last_one() {
    let mut site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let session = Session::open(&web.store).expect("enrolled");
    let client = session.own_client();
    for _ in 0..3 {
        client.offers(Duration::ZERO).expect("answered");
        site.stop();
        site.run_again();
    }
    client.offers(Duration::ZERO).expect("answered at once");
}

#[test]
fn without_a_server_an_accepted_spec_is_applied_and_the_last_one_stays() {
    let mut site = TestSite::start();
    let mut web = Puller::new(&site);
    web.node.is_broken = true;
    let failed = web.pass().map(drop).expect_err("not applied");
    assert!(matches!(failed, AgentError::Packages(_)));
    assert_eq!(site.reports().last().map(String::as_str), Some("failed"));
    site.stop();
    web.node.is_broken = false;
    assert!(web.pass().is_err(), "no server");
    assert_eq!(web.node.applied, Some(spec("one")));
    assert!(web.pass().is_err(), "no server");
    assert_eq!(web.node.tried.len(), 2);
}

#[test]
fn without_a_server_a_failure_to_apply_the_last_spec_is_reported_too() {
    let mut site = TestSite::start();
    let mut web = Puller::new(&site);
    web.node.is_broken = true;
    web.pass().map(drop).expect_err("not applied");
    site.stop();
    let error = web.pass().map(drop).expect_err("no server either");
    assert_eq!(web.node.tried.len(), 2);
    let text = error.message();
    let has_both = text.contains("unreachable") && text.contains("no such package");
    assert!(has_both, "{text}");
    assert!(!error.is_permanent());
    // Applying costs more than a request, so the next attempt waits longer.
    assert!(first_pause(&error) > first_pause(&FetchError::NoServer.into()));
}

#[test]
fn the_server_of_another_site_gets_no_token_and_is_asked_again() {
    let site = TestSite::start();
    let other = TestSite::start();
    let mut web = Puller::new(&site);
    let mut mixed = site.enrolment();
    mixed.servers = vec![other.url.clone()];
    web.enrolment(&mixed);
    let error = web.pass().map(drop).expect_err("not trusted");
    assert!(matches!(
        error,
        AgentError::Fetch(FetchError::Certificate { .. })
    ));
    assert!(!error.is_permanent());
    assert!(web.store.enrolment.exists());
    // With a second server that is trusted, it succeeds.
    mixed.servers.push(site.url.clone());
    web.enrolment(&mixed);
    web.pass().expect("applied");
}

#[test]
fn a_spec_of_another_site_or_without_its_signature_is_refused_at_first_contact() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let mut foreign = site.enrolment();
    foreign.site_keys = vec![sample::enrolment().1.public().to_string()];
    web.enrolment(&foreign);
    let (why, is_first) = refused(web.pass());
    assert!(is_first && matches!(why, StatementError::Signature(_)));
    assert!(web.node.tried.is_empty());
    assert_eq!(site.reports().last().map(String::as_str), Some("failed"));
}

#[test]
fn answers_of_a_hostile_server_never_reach_the_machine() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let error = |answer: Response, web: &mut Puller| {
        let hostile = Server::new(vec![answer]);
        let before = web.registration();
        web.change(|registration| {
            registration.contact.servers = vec![hostile.url()];
            registration.contact.fingerprints = vec![hostile.fingerprint.clone()];
        });
        let error = web.pass().map(drop).expect_err("refused");
        assert!(!error.is_permanent(), "{}", error.message());
        web.change(|registration| *registration = before);
        error.message()
    };
    let good = spec("evil");
    let unsigned = error(Response::Reply(200, good), &mut web);
    assert!(unsigned.contains("no signed statement"), "{unsigned}");
    let huge = error(Response::Reply(200, "x".repeat((16 << 20) + 1)), &mut web);
    assert!(huge.contains("16 MiB"), "{huge}");
    error(Response::Redirect(site.url.clone()), &mut web);
    error(Response::Reply(404, String::new()), &mut web);
    error(Response::Reply(500, "{".to_owned()), &mut web);
    error(Response::Disconnect, &mut web);
    assert_eq!(web.node.tried, [spec("one")]);
    assert!(web.pass().expect("nothing to do").reported);
}

#[test]
fn a_copied_disk_enrols_as_the_guest_it_is_now() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let key = web.store.key().expect("a key").public();
    let other = "22222222-2222-4222-8222-222222222222";
    let mut copied = site.enrolment();
    copied.uuid = homestak_core::observed::GuestUuid::new(other).expect("a UUID");
    web.enrolment(&copied);
    // The site has no spec for it; the first guest is not affected by that.
    assert!(denied(&web.pass()));
    assert_ne!(web.store.key().expect("a key").public(), key);
    assert!(web.store.registration().expect("read").is_none());
}

#[test]
fn an_enrolment_replaces_a_key_that_is_damaged_or_missing() {
    for damaged in [Some("x"), Some(""), None] {
        let mut site = TestSite::start();
        let mut web = Puller::new(&site);
        web.pass().expect("applied");
        let path = web.store.state.join("registration.key");
        match damaged {
            Some(text) => fs_err::write(&path, text).expect("written"),
            None => fs_err::remove_file(&path).expect("removed"),
        }
        web.pass().map(drop).expect_err("it has no certificate");
        // Its token is accepted again, as one that was issued for this.
        site.lose_registry();
        web.enrolment(&site.enrolment());
        assert!(web.pass().expect("enrolled").reported);
        assert_eq!(web.node.tried.len(), 1, "the spec is the same");
    }
}

#[test]
fn a_machine_without_an_enrolment_reports_so() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    fs_err::remove_file(&web.store.enrolment).expect("removed");
    let error = web.pass().map(drop).expect_err("not enrolled");
    assert!(error.is_permanent());
    assert!(error.message().contains("not enrolled"));
}
