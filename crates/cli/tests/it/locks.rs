//! Locks on a manifest on a host, and `manifest unlock`.

use std::time::Duration;

use homestak_sim::{Pace, Timing};
use rustix::process::Signal;

use crate::runs::{APPLY, Running};
use crate::test_pve::TestPve;

const UNLOCK: [&str; 6] = ["manifest", "unlock", "-M", "workers", "-H", "father"];

/// A host with one worker that takes three seconds to boot, and a run that waits for it.
fn booting() -> (TestPve, Running) {
    let timing = Timing {
        boot: Duration::from_secs(600),
        ..Timing::default()
    };
    let host = TestPve::new(Pace::Accelerated(200.0), timing);
    host.workers(1, "");
    let mut running = Running::start(&host, &APPLY);
    running.until("step-started", "ready");
    (host, running)
}

/// Changes the lock holder to one on another machine, with a heartbeat `seconds` older.
fn pretend_remote_holder(host: &TestPve, seconds: i64) {
    let file = rusqlite::Connection::open(host.state().join("journal.db")).unwrap();
    let changed = file.execute(
        "UPDATE leases SET heartbeat = heartbeat - ?1 * 1000000000, holder =
             json_set(holder, '$.machine', 'another', '$.boot', 'another', '$.name', 'shed')
         WHERE holder IS NOT NULL",
        [seconds],
    );
    assert_eq!(changed, Ok(1));
}

#[test]
fn the_lock_of_a_killed_run_can_be_removed_and_unlocking_twice_is_harmless() {
    let (host, running) = booting();
    running.send(Signal::KILL);
    running.end();
    let unlocked = host.run(&UNLOCK);
    assert!(
        unlocked.err.contains("which no longer runs"),
        "{}",
        unlocked.err
    );
    unlocked.good();
    let again = host.run(&UNLOCK);
    assert!(
        again.err.contains("`workers` on `father` is not locked"),
        "{}",
        again.err
    );
    again.good();
    host.run(&["manifest", "resume"]).good();
}

#[test]
fn a_live_run_is_not_unlocked_here_or_on_another_machine() {
    let (host, running) = booting();
    let local = host.run(&[&UNLOCK[..], &["--yes"]].concat());
    assert_eq!(local.code, 3);
    assert!(
        local.err.contains("is locked by process ") && local.err.contains("runs on this machine"),
        "{}",
        local.err
    );
    pretend_remote_holder(&host, 5);
    let elsewhere = host.run(&[&UNLOCK[..], &["--yes"]].concat());
    assert_eq!(elsewhere.code, 3);
    assert!(
        elsewhere.err.contains(" on shed since ") && elsewhere.err.contains("after 60 seconds"),
        "{}",
        elsewhere.err
    );
    let second = host.run(&APPLY);
    assert_eq!(second.code, 3);
    assert!(
        second.err.contains(" on shed (last heartbeat ")
            && second
                .err
                .contains("homestak manifest unlock -M workers -H father"),
        "{}",
        second.err
    );
    let status = host.run(&["manifest", "status", "-M", "workers"]);
    assert!(
        status.err.contains("on shed (last heartbeat "),
        "{}",
        status.err
    );
    // The run itself is not affected and succeeds.
    running.end().good();
}

#[test]
fn a_suspended_run_that_was_unlocked_changes_nothing_after_it_continues() {
    let (host, running) = booting();
    running.send(Signal::STOP);
    pretend_remote_holder(&host, 3600);
    let unconfirmed = host.run(&UNLOCK);
    assert_eq!(unconfirmed.code, 3, "{}", unconfirmed.err);
    assert!(
        unconfirmed.err.contains("Its last heartbeat was at ")
            && unconfirmed
                .err
                .contains("unlock -M workers -H father --yes"),
        "{}",
        unconfirmed.err
    );
    let unlocked = host.run(&[&UNLOCK[..], &["--yes", "--json-output"]].concat());
    let unlocked = unlocked.json();
    let holder = unlocked["held_by"].as_str().unwrap();
    assert!(holder.ends_with(" on shed"), "{unlocked}");
    let changes = || {
        let calls = host.pve.calls().into_iter();
        let changes = calls.filter(|(call, _)| !call.starts_with("GET"));
        changes.collect::<Vec<_>>()
    };
    let before = changes();
    running.send(Signal::CONT);
    let stopped = running.end();
    assert_eq!(stopped.code, 4, "{}", stopped.err);
    assert!(
        stopped
            .err
            .contains("this run lost its lease on `workers` on `father`"),
        "{}",
        stopped.err
    );
    // Its machine exists, still with its first-boot data.
    assert_eq!(changes(), before);
    let resumed = host.run(&["manifest", "resume", "--json-output"]);
    assert_eq!(resumed.json()["ending"], "done");
    assert_ne!(changes(), before);
}

#[test]
fn history_is_paged() {
    let host = TestPve::quick();
    host.workers(1, "");
    for verb in ["apply", "destroy", "apply"] {
        let words = ["manifest", verb, "-M", "workers", "-H", "father", "--yes"];
        host.run(&words).good();
    }
    let numbers = |arguments: &[&str]| -> (Vec<i64>, bool) {
        let words = [&["manifest", "history", "--json-output"][..], arguments].concat();
        let listed = host.run(&words).json();
        let runs = listed["runs"].as_array().unwrap().iter();
        let runs = runs.map(|run| run["run"].as_i64().unwrap()).collect();
        (runs, listed["more"].as_bool().unwrap())
    };
    assert_eq!(numbers(&[]), (vec![3, 2, 1], false));
    assert_eq!(numbers(&["--limit", "2"]), (vec![3, 2], true));
    assert_eq!(
        numbers(&["--limit", "2", "--before", "2"]),
        (vec![1], false)
    );
    assert_eq!(numbers(&["--before", "1"]), (vec![], false));
    let first = host.run(&["manifest", "history", "--limit", "1"]);
    assert!(
        first.err.contains("Use --before 3 to list older runs"),
        "{}",
        first.err
    );
    let last = host.run(&["manifest", "history", "--limit", "1", "--before", "2"]);
    assert!(!last.err.contains("older runs"), "{}", last.err);
}
