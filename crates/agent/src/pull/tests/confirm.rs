//! Changes that could cut a machine off, confirmed by its server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::sample::spec;
use super::site::TestSite;
use super::{Puller, pass};
use crate::error::AgentError;
use crate::pull::pass::Apply;

/// Returns whether a pass failed because the machine was cut off.
fn was_cut_off<T>(done: &Result<T, AgentError>) -> bool {
    done.as_ref().is_err_and(AgentError::is_cut_off)
}

#[test]
fn a_spec_that_cuts_the_machine_off_is_reported_and_not_tried_again_until_there_is_another() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.node.risky_change = Some(Box::new(|| true));
    let failed = web.pass();
    assert!(was_cut_off(&failed));
    let message = failed.map(drop).expect_err("reverted").message();
    assert!(message.contains("no server was reached"), "{message}");
    assert_eq!(site.reports().last().map(String::as_str), Some("failed"));
    for _ in 0..2 {
        let n_reports = site.reports().len();
        let skipped = web.pass().expect("not tried");
        assert!(skipped.reported && !skipped.changed);
        assert_eq!(web.node.tried.len(), 1);
        let reports = site.reports();
        assert_eq!(reports.last().map(String::as_str), Some("failed"));
        assert!(reports.len() > n_reports);
    }
    // `Apply::Always` tries it again.
    assert!(was_cut_off(&pass(
        &web.store,
        &mut web.node,
        Apply::Always,
        None
    )));
    assert_eq!(web.node.tried.len(), 2);
    // The same content, published again.
    site.publish(&spec("one"), |statement| statement.generation = 8);
    assert!(was_cut_off(&web.pass()));
    assert_eq!(web.node.tried.len(), 3);
    web.node.risky_change = Some(Box::new(|| false));
    site.publish(&spec("two"), |statement| statement.generation = 9);
    assert!(web.pass().expect("applied").changed);
    assert_eq!(web.registration().reverted, None);
}

#[test]
fn a_reverted_spec_is_tried_again_only_when_a_server_answers() {
    let site = Rc::new(RefCell::new(TestSite::start()));
    let mut web = Puller::new(&site.borrow());
    let other = site.clone();
    web.node.risky_change = Some(Box::new(move || {
        other.borrow_mut().stop();
        false
    }));
    assert!(was_cut_off(&web.pass()));
    assert!(!web.registration().reverted.expect("recorded").is_cause);
    // The change may be the cause, so it is not repeated without a server.
    let n_changes = Rc::new(Cell::new(0));
    let counter = n_changes.clone();
    web.node.risky_change = Some(Box::new(move || {
        counter.set(counter.get() + 1);
        false
    }));
    assert!(web.pass().is_err(), "no server");
    let forced = pass(&web.store, &mut web.node, Apply::Always, None);
    assert!(forced.is_err(), "no server");
    assert_eq!((n_changes.get(), &web.node.applied), (0, &None));
    site.borrow_mut().run();
    web.enrolment(&site.borrow().enrolment());
    assert!(web.pass().expect("applied").changed);
    assert_eq!(n_changes.get(), 1);
    assert_eq!(web.registration().reverted, None);
}

#[test]
fn without_a_server_changes_are_applied_and_not_confirmed() {
    let mut site = TestSite::start();
    let mut web = Puller::new(&site);
    web.node.is_broken = true;
    assert!(web.pass().is_err(), "not applied");
    site.stop();
    web.node.is_broken = false;
    web.node.risky_change = Some(Box::new(|| true));
    assert!(web.pass().is_err(), "no server");
    assert_eq!(web.node.applied, Some(spec("one")));
}

#[test]
fn a_server_that_refuses_the_report_is_reached() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let session = crate::pull::session::Session::open(&web.store).expect("enrolled");
    let reporter = crate::pull::report::Reporter::new("r", None);
    let probe = session.probe(reporter.contact());
    assert!(probe());
    site.ask("POST", &format!("/v1/nodes/{}/revoke", super::WEB));
    assert!(probe(), "refused, but reached");
    drop(site);
    assert!(!probe());
}
