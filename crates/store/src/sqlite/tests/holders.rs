//! Leases of processes that are not there, or are somewhere else: rows as other processes leave
//! them.

use std::time::Duration;

use homestak_api::runtime::{Clock as _, WallClock};
use homestak_engine::journal::{HEARTBEAT_TIMEOUT, HolderState, Journal as _, LeaseHolder};
use jiff::Timestamp;
use rusqlite::params;

use super::super::file::Options;
use super::super::holder::Holder;
use super::super::row;
use super::*;

/// Writes a lease on `web` as its holder would, with a heartbeat of so long ago.
fn held_by(holder: &Holder, ago: Duration) -> (tempfile::TempDir, Sqlite) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Sqlite::open(dir.path()).unwrap();
    let heartbeat = row::from_time(WallClock.now() - ago).unwrap();
    // Since long after now: the clock was set back, and it does not matter.
    open_directly(dir.path())
        .execute(
            "INSERT INTO leases VALUES ('', 'web', 'father', 7, ?1, 0, 4102444800000000000, ?2)",
            params![serde_json::to_string(holder).unwrap(), heartbeat],
        )
        .unwrap();
    (dir, journal)
}

/// Tries to take what someone holds.
fn takes(holder: &Holder) -> Result<(), JournalError> {
    let (_dir, journal) = held_by(holder, Duration::ZERO);
    let web = [sample::scope("web", "father")];
    wait(async {
        let lease = journal.lock(&web).await?;
        // It is ours now, and freed as ours.
        assert!(journal.lock(&web).await.is_err());
        drop(lease);
        journal.lock(&web).await.map(drop)
    })
}

fn words(result: Result<(), JournalError>) -> String {
    match result {
        Err(JournalError::Held {
            holder,
            since,
            scope,
        }) => {
            assert_eq!(scope, sample::scope("web", "father"));
            assert_eq!(since.to_string(), "2100-01-01T00:00:00Z");
            holder
        }
        result => panic!("{result:?}"),
    }
}

/// Holders on another machine and in another container.
fn elsewhere() -> [Holder; 2] {
    let own = Holder::own().unwrap();
    let machine = Holder {
        machine: "another".into(),
        name: "shed".into(),
        boot: "b".into(),
        ..own.clone()
    };
    let container = Holder {
        space: "pid:[7]".into(),
        pid: 1,
        ..own
    };
    [machine, container]
}

#[test]
fn leases_of_dead_processes_are_free() {
    let own = Holder::own().unwrap();
    let ended = Holder {
        pid: 4_194_999,
        ..own.clone()
    };
    let reused = Holder {
        start: own.start - 1,
        ..own.clone()
    };
    let earlier = Holder {
        boot: "another-boot".into(),
        ..own
    };
    for holder in [ended, reused, earlier] {
        takes(&holder).unwrap();
        let (_dir, journal) = held_by(&holder, Duration::ZERO);
        wait(async {
            let web = sample::scope("web", "father");
            let found = journal.holder(&web).await.unwrap().unwrap();
            assert_eq!(found.life, HolderState::Dead);
            journal.unlock(&web, found.number).await.unwrap();
            assert!(journal.holder(&web).await.unwrap().is_none());
        });
    }
}

#[test]
fn live_processes_keep_their_leases() {
    let own = Holder::own().unwrap();
    let holder = words(takes(&own));
    assert_eq!(holder, format!("process {} on {}", own.pid, own.name));
    // However long it is silent: that it lives is known.
    let (_dir, journal) = held_by(&own, HEARTBEAT_TIMEOUT * 10);
    let unlocked = wait(journal.unlock(&sample::scope("web", "father"), 7));
    assert_eq!(words(unlocked), holder);
}

#[test]
fn a_remote_holder_keeps_its_lease_until_its_heartbeat_times_out_and_it_is_unlocked() {
    let web = sample::scope("web", "father");
    for holder in elsewhere() {
        let message = words(takes(&holder));
        let begins = format!("{holder} (last heartbeat 2");
        assert!(message.starts_with(&begins), "{message}");
        let (_dir, journal) = held_by(&holder, HEARTBEAT_TIMEOUT / 2);
        assert_eq!(words(wait(journal.unlock(&web, 7))).len(), message.len());
        let (_dir, journal) = held_by(&holder, HEARTBEAT_TIMEOUT);
        wait(async {
            // Silence alone frees nothing.
            words(journal.lock(std::slice::from_ref(&web)).await.map(drop));
            // Someone else has it by now.
            words(journal.unlock(&web, 6).await);
            let LeaseHolder { number, life, .. } = journal.holder(&web).await.unwrap().unwrap();
            assert_eq!((number, life), (7, HolderState::Unknown));
            journal.unlock(&web, number).await.unwrap();
            assert!(journal.holder(&web).await.unwrap().is_none());
            let _lease = journal.lock(std::slice::from_ref(&web)).await.unwrap();
            let fence = journal.fence(&web).await.unwrap().unwrap();
            assert!(fence.number > 7);
        });
    }
}

#[test]
fn a_lease_holder_renews_its_heartbeat() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        heartbeat: Duration::from_millis(5),
        ..Options::default()
    };
    let journal = Sqlite::open_with(dir.path(), options).unwrap();
    let web = sample::scope("web", "father");
    let heartbeat = || -> Timestamp {
        let found = wait(journal.holder(&web)).unwrap();
        found.unwrap().heartbeat
    };
    let _lease = wait(journal.lock(std::slice::from_ref(&web))).unwrap();
    let mut last = heartbeat();
    for _ in 0..3 {
        let now = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            Some(heartbeat()).filter(|now| *now > last)
        });
        last = now.expect("a later heartbeat");
    }
}
