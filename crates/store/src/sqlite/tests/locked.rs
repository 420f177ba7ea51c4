//! Another program on the same file.

use std::time::Duration;

use homestak_engine::journal::Journal as _;

use super::super::file::Options;
use super::*;

fn short_patience() -> Options {
    Options {
        patience: Duration::from_millis(50),
        ..Options::default()
    }
}

#[test]
fn a_lock_of_another_program_is_reported_and_reads_continue() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Sqlite::open_with(dir.path(), short_patience()).unwrap();
    wait(async {
        let id = begin(&journal).await;
        journal.append(id, &turn(0)).await.unwrap();
        let other = open_directly(dir.path());
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let (detail, hint) = broken(journal.append(id, &turn(1)).await);
        assert_eq!(detail, "database is locked");
        assert!(hint.starts_with("another program has"), "{hint}");
        assert_eq!(count(&journal, id).await, 1);
        other.execute_batch("ROLLBACK").unwrap();
        journal.append(id, &turn(1)).await.unwrap();
        assert_eq!(count(&journal, id).await, 2);
    });
}

#[test]
fn a_file_that_another_program_has_locked_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    drop(Sqlite::open(dir.path()).unwrap());
    let other = open_directly(dir.path());
    other
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE")
        .unwrap();
    let (_, hint) = broken(Sqlite::open_with(dir.path(), short_patience()));
    assert!(hint.starts_with("another program has"), "{hint}");
    drop(other);
    Sqlite::open_with(dir.path(), short_patience()).unwrap();
}

#[test]
fn a_short_wait_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, id) = filled(dir.path(), 1);
    let other = open_directly(dir.path());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiting = std::thread::spawn(move || {
        wait(journal.append(id, &turn(1))).unwrap();
        wait(count(&journal, id))
    });
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(waiting.join().unwrap(), 2);
}

#[test]
fn many_may_open_a_new_journal_at_once() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let journal = Sqlite::open(&dir.path().join("state")).unwrap();
                    wait(begin(&journal));
                });
            }
        });
        let journal = Sqlite::open(&dir.path().join("state")).unwrap();
        assert_eq!(wait(journal.runs(None)).unwrap().len(), 8);
    }
}
