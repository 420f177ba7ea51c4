//! Leases of processes that are not there.
//!
//! In: rows as other processes leave them. Out: nothing.
//! Never: a clock that says who is dead.

use homestak_engine::journal::Journal as _;
use rusqlite::params;

use super::super::holder::Holder;
use super::*;

/// Writes a lease on `web` as its holder would, and tries to take it.
fn takes(holder: &Holder) -> Result<(), JournalError> {
    let dir = tempfile::tempdir().unwrap();
    let journal = Sqlite::open(dir.path()).unwrap();
    // Since long after now: the clock was set back, and it does not matter.
    by_hand(dir.path())
        .execute(
            "INSERT INTO leases VALUES ('', 'web', 'father', ?1, ?2, ?3, ?4, ?5, 0, 4102444800000000000)",
            params![holder.machine, holder.boot, holder.space, holder.pid, holder.start],
        )
        .unwrap();
    let web = [sample::scope("web", "father")];
    wait(async {
        let lease = journal.hold(&web).await?;
        // It is ours now, and freed as ours.
        assert!(journal.hold(&web).await.is_err());
        drop(lease);
        journal.hold(&web).await.map(drop)
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

#[test]
fn the_dead_lose_their_leases() {
    let own = Holder::own().unwrap();
    let gone = Holder {
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
    for holder in [gone, reused, earlier] {
        takes(&holder).unwrap();
    }
}

#[test]
fn the_living_keep_their_leases() {
    let own = Holder::own().unwrap();
    let holder = words(takes(&own));
    assert_eq!(holder, format!("process {} on {}", own.pid, own.machine));
}

#[test]
fn a_holder_that_cannot_be_asked_keeps_its_lease_and_a_person_is_told_how_to_free_it() {
    let own = Holder::own().unwrap();
    let elsewhere = Holder {
        machine: "shed".into(),
        boot: "b".into(),
        ..own.clone()
    };
    let container = Holder {
        space: "pid:[7]".into(),
        pid: 1,
        ..own
    };
    for holder in [elsewhere, container] {
        let words = words(takes(&holder));
        let machine = &holder.machine;
        assert!(
            words.starts_with(&format!("process {} on {machine} (", holder.pid)),
            "{words}"
        );
        // The command works as it is printed.
        let sql = words.split('"').nth(1).unwrap();
        let dir = tempfile::tempdir().unwrap();
        drop(Sqlite::open(dir.path()).unwrap());
        by_hand(dir.path()).execute_batch(sql).unwrap();
        assert!(
            sql.contains(machine) && words.contains("sqlite3 "),
            "{words}"
        );
    }
}
