//! Certificates that are issued again, clocks that are wrong, and answers that are lost.

use super::*;

#[test]
fn a_lost_answer_to_an_enrolment_or_a_renewal_loses_nothing() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let key = web.store.key().expect("stored before the request");
    let registration = Registration::new(&site.enrolment(), None).expect("valid");
    let request = homestak_api::v1::enrol::EnrolRequest {
        node: "web".to_owned(),
        uuid: WEB.to_owned(),
        public_key: key.public(),
        agent: "0.1.0".to_owned(),
    };
    let anonymous = Client::new(&registration.contact, None).expect("a client");
    for _ in 0..2 {
        let issued = anonymous.enrol(&site.enrolment().token, &request, 0);
        drop(issued.expect("issued, and lost"));
    }
    web.pass().expect("applied");
    let own = key.with_chain(&web.registration().chain).expect("usable");
    let client = Client::new(&web.registration().contact, Some(own)).expect("a client");
    for _ in 0..2 {
        drop(client.renew(&request, 0).expect("issued, and lost"));
    }
    let before = web.registration().chain;
    assert!(web.pass().expect("recovered").reported);
    assert_ne!(web.registration().chain, before);
    assert!(web.pass().expect("nothing to do").reported);
}

#[test]
fn a_certificate_renews_when_it_is_due_and_once_after_it_expired() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let first = web.registration();
    web.pass().expect("nothing to do");
    assert_eq!(web.registration().chain, first.chain, "not due");
    web.change(|registration| registration.renew_after = 0);
    web.pass().expect("renewed");
    assert_ne!(web.registration().chain, first.chain);
    assert!(web.registration().renew_after > 0);
    // The machine was off for two months, and its clock stopped.
    site.set_clock(60 * 24 * 3600);
    assert!(web.pass().expect("renewed").reported);
    site.set_clock(120 * 24 * 3600);
    assert!(denied(&web.pass()), "a second time");
}

#[test]
fn a_clock_that_is_years_off_in_either_direction_does_not_matter() {
    for years in [-30, 30] {
        let start = years * 365 * 24 * 3600;
        let site = TestSite::start_at(start);
        let mut web = Puller::new(&site);
        assert!(web.pass().expect("applied").reported, "{years}");
        assert!(web.pass().expect("nothing to do").reported, "{years}");
        site.publish(&spec("two"), |statement| statement.generation = 8);
        assert!(web.pass().expect("applied").changed, "{years}");
    }
}

#[test]
fn a_clock_that_was_far_ahead_and_is_corrected_does_not_delay_the_renewal() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let first = web.registration();
    let year = 365 * 24 * 3600;
    web.change(|registration| registration.renew_after += 14 * year);
    web.pass().expect("renewed");
    assert_ne!(web.registration().chain, first.chain);
    assert!(web.registration().renew_after < first.renew_after + year);
}

#[test]
fn a_certificate_that_ended_before_a_time_that_the_site_signed_is_refused() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    // Signed after the certificate of the server had expired, which the clock of the machine does
    // not show.
    let days = 40 * 24 * 3600;
    site.publish(&spec("two"), |statement| {
        statement.generation = 9;
        statement.issued = sample::at(days).as_second();
    });
    web.pass().expect("accepted, and from then on known");
    let refused = web.pass().map(drop).expect_err("expired");
    let is_certificate = matches!(refused, AgentError::Fetch(FetchError::Certificate { .. }));
    assert!(is_certificate, "{}", refused.message());
    assert!(!refused.is_permanent(), "an honest server may answer later");
    assert_eq!(web.node.applied, Some(spec("two")));
    site.set_clock(days);
    assert!(web.pass().expect("the server has a new one").reported);
}
