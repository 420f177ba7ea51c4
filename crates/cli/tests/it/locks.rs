//! Who works on a manifest on a host, and how a person takes it from one who is gone.

use std::time::Duration;

use homestak_sim::{Pace, Timing};
use rustix::process::Signal;

use crate::father::Father;
use crate::runs::{APPLY, Running};

const UNLOCK: [&str; 6] = ["manifest", "unlock", "-M", "workers", "-H", "father"];

/// A host with one worker that takes three seconds to boot, and a run that waits for it.
fn booting() -> (Father, Running) {
    let timing = Timing {
        boot: Duration::from_secs(600),
        ..Timing::default()
    };
    let father = Father::new(Pace::Accelerated(200.0), timing);
    father.workers(1, "");
    let mut running = Running::start(&father, &APPLY);
    running.until("step-started", "ready");
    (father, running)
}

/// Makes the holder look as if it were on another machine, with a heartbeat of so long ago.
fn move_away(father: &Father, seconds: i64) {
    let file = rusqlite::Connection::open(father.state().join("journal.db")).unwrap();
    let changed = file.execute(
        "UPDATE leases SET heartbeat = heartbeat - ?1 * 1000000000, holder =
             json_set(holder, '$.machine', 'another', '$.boot', 'another', '$.name', 'shed')
         WHERE holder IS NOT NULL",
        [seconds],
    );
    assert_eq!(changed, Ok(1));
}

#[test]
fn what_nobody_holds_is_not_unlocked_and_a_run_that_was_killed_holds_nothing() {
    let (father, running) = booting();
    running.send(Signal::KILL);
    running.end();
    let unlocked = father.run(&UNLOCK);
    assert!(
        unlocked.err.contains("which no longer runs"),
        "{}",
        unlocked.err
    );
    unlocked.good();
    let again = father.run(&UNLOCK);
    assert!(
        again.err.contains("`workers` on `father` is not locked"),
        "{}",
        again.err
    );
    again.good();
    father.run(&["manifest", "resume"]).good();
}

#[test]
fn a_run_that_lives_is_not_unlocked_nor_one_elsewhere_that_is_heard_of() {
    let (father, running) = booting();
    let here = father.run(&[&UNLOCK[..], &["--yes"]].concat());
    assert_eq!(here.code, 3);
    assert!(
        here.err.contains("is locked by process ") && here.err.contains("runs on this machine"),
        "{}",
        here.err
    );
    move_away(&father, 5);
    let elsewhere = father.run(&[&UNLOCK[..], &["--yes"]].concat());
    assert_eq!(elsewhere.code, 3);
    assert!(
        elsewhere.err.contains(" on shed since ") && elsewhere.err.contains("after 60 seconds"),
        "{}",
        elsewhere.err
    );
    let second = father.run(&APPLY);
    assert_eq!(second.code, 3);
    assert!(
        second.err.contains(" on shed (last heartbeat ")
            && second
                .err
                .contains("homestak manifest unlock -M workers -H father"),
        "{}",
        second.err
    );
    let status = father.run(&["manifest", "status", "-M", "workers"]);
    assert!(
        status.err.contains("on shed (last heartbeat "),
        "{}",
        status.err
    );
    // It never knew, and ends well.
    running.end().good();
}

#[test]
fn a_run_that_was_stopped_and_is_unlocked_does_nothing_more_when_it_goes_on() {
    let (father, running) = booting();
    running.send(Signal::STOP);
    move_away(&father, 3600);
    let nobody = father.run(&UNLOCK);
    assert_eq!(nobody.code, 3, "{}", nobody.err);
    assert!(
        nobody.err.contains("Its last heartbeat was at ") && nobody.err.contains("use --yes"),
        "{}",
        nobody.err
    );
    let unlocked = father.run(&[&UNLOCK[..], &["--yes", "--json-output"]].concat());
    let unlocked = unlocked.json();
    let holder = unlocked["held_by"].as_str().unwrap();
    assert!(holder.ends_with(" on shed"), "{unlocked}");
    let changes = || {
        let calls = father.pve.calls().into_iter();
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
    // Its machine is there, still with its first-boot data.
    assert_eq!(changes(), before);
    let resumed = father.run(&["manifest", "resume", "--json-output"]);
    assert_eq!(resumed.json()["ending"], "done");
    assert_ne!(changes(), before);
}

#[test]
fn runs_are_listed_a_page_at_a_time() {
    let father = Father::quick();
    father.workers(1, "");
    for verb in ["apply", "destroy", "apply"] {
        let words = ["manifest", verb, "-M", "workers", "-H", "father", "--yes"];
        father.run(&words).good();
    }
    let numbers = |arguments: &[&str]| -> (Vec<i64>, bool) {
        let words = [&["manifest", "history", "--json-output"][..], arguments].concat();
        let listed = father.run(&words).json();
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
    let first = father.run(&["manifest", "history", "--limit", "1"]);
    assert!(
        first.err.contains("Use --before 3 to list older runs"),
        "{}",
        first.err
    );
    let last = father.run(&["manifest", "history", "--limit", "1", "--before", "2"]);
    assert!(!last.err.contains("older runs"), "{}", last.err);
}
