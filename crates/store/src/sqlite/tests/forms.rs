//! Older forms of the file, and newer ones.
//!
//! In: files of every form. Out: nothing.
//! Never: a form half changed.

use homestak_core::plan::{NodeRecord, Plan, StepKind};
use homestak_engine::journal::{Ending, Journal as _};

use super::super::schema::{MIGRATIONS, known, migrate, version};
use super::*;

/// A dump of each form, as `sqlite3 journal.db .dump` writes what [`fill`] makes, and before it
/// the pragmas `application_id` and `user_version`.
const DUMPS: &[&str] = &[
    include_str!("../../../tests/data/form-1.sql"),
    include_str!("../../../tests/data/form-2.sql"),
    include_str!("../../../tests/data/form-3.sql"),
];

/// Writes what every form must hold.
fn fill(journal: &Sqlite) {
    wait(async {
        let plan = sample::plan("edge", 1);
        let first = journal
            .begin("apply", &plan, "run", sample::at(0))
            .await
            .unwrap();
        let mut entries = [
            sample::known(
                0,
                Happened::Intent,
                sample::record("node-0", NodeStatus::Creating),
            ),
            sample::known(
                0,
                sample::done(),
                sample::record("node-0", NodeStatus::Made),
            ),
            sample::known(
                1,
                Happened::Intent,
                sample::record("gone", NodeStatus::Made),
            ),
            sample::entry(1, Happened::Failed(sample::trouble())),
        ];
        entries[1].at = sample::at(12);
        for entry in &entries {
            journal.append(first, entry).await.unwrap();
        }
        let father = sample::scope("edge", "father");
        assert!(journal.forget(&father, "gone").await.unwrap());
        journal
            .end(first, Ending::Superseded, sample::at(20))
            .await
            .unwrap();
        journal
            .begin("destroy", &plan, "run", sample::at(30))
            .await
            .unwrap();
    });
}

/// Looks for what [`fill`] wrote. In the first form nothing had a site.
fn check(journal: &Sqlite, form: usize) {
    let site = (form > 1).then(sample::site);
    let plan = Plan {
        // The third form of the file has plans of the second.
        form: u32::try_from(form.min(2)).unwrap(),
        site: site.clone(),
        ..sample::plan("edge", 1)
    };
    let record = NodeRecord {
        site,
        ..sample::record("node-0", NodeStatus::Made)
    };
    wait(async {
        let runs = journal.runs(Some("edge")).await.unwrap();
        assert_eq!(runs.len(), 2);
        assert_eq!(runs[0].ended.map(|(_, ending)| ending), None);
        assert_eq!(
            runs[1].ended.map(|(_, ending)| ending),
            Some(Ending::Superseded)
        );
        let run = journal.run(runs[1].id).await.unwrap().unwrap();
        assert_eq!(run.plan, plan);
        assert_eq!(run.entries.len(), 4);
        assert_eq!(run.entries[3].happened, Happened::Failed(sample::trouble()));
        let records = journal
            .records(&sample::scope("edge", "father"))
            .await
            .unwrap();
        assert_eq!(records, [record]);
        assert_eq!(
            journal.durations().await.unwrap(),
            [(StepKind::Create, 12.0)]
        );
        journal.append(runs[0].id, &turn(0)).await.unwrap();
    });
}

#[test]
fn a_journal_of_each_form_opens_and_holds_what_it_held() {
    assert_eq!(DUMPS.len(), MIGRATIONS.len(), "add a dump of the new form");
    for (at, dump) in DUMPS.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        by_hand(dir.path()).execute_batch(dump).unwrap();
        assert_eq!(version(&by_hand(dir.path())).unwrap(), at + 1);
        check(&Sqlite::open(dir.path()).unwrap(), at + 1);
        assert_eq!(version(&by_hand(dir.path())).unwrap(), MIGRATIONS.len());
        replay::compare(&by_hand(dir.path()));
    }
}

#[test]
fn the_dumps_hold_what_this_program_writes() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Sqlite::open(dir.path()).unwrap();
    fill(&journal);
    check(&journal, MIGRATIONS.len());
}

#[test]
fn an_empty_file_becomes_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(file(dir.path()), "").unwrap();
    wait(begin(&Sqlite::open(dir.path()).unwrap()));
}

#[test]
fn a_journal_of_a_newer_program_is_refused_and_keeps_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path(), 3));
    let newer = MIGRATIONS.len() + 1;
    by_hand(dir.path())
        .execute_batch(&format!("PRAGMA user_version = {newer}"))
        .unwrap();
    let before = fs_err::read(file(dir.path())).unwrap();
    let (detail, hint) = broken(Sqlite::open(dir.path()));
    assert!(detail.contains(&format!("form {newer}")), "{detail}");
    assert!(hint.contains("newer program"), "{hint}");
    assert!(before == fs_err::read(file(dir.path())).unwrap());
}

#[test]
fn a_database_of_another_program_is_refused_and_keeps_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let other = by_hand(dir.path());
    other.execute_batch("CREATE TABLE entries (x)").unwrap();
    drop(other);
    let before = fs_err::read(file(dir.path())).unwrap();
    let (detail, _) = broken(Sqlite::open(dir.path()));
    assert_eq!(detail, "it is a database of another program");
    assert!(before == fs_err::read(file(dir.path())).unwrap());
}

#[test]
fn migrations_are_applied_once_each_and_together_or_not_at_all() {
    let mut connection = Connection::open_in_memory().unwrap();
    let first = ["CREATE TABLE a (x); INSERT INTO a VALUES (1)"];
    migrate(&mut connection, 7, &first).unwrap();
    migrate(&mut connection, 7, &first).unwrap();
    let bad = [first[0], "UPDATE a SET x = 2", "CREATE TABLE a (y)"];
    assert!(migrate(&mut connection, 7, &bad).is_err());
    assert_eq!(version(&connection).unwrap(), 1);
    let x = |connection: &Connection| -> i64 {
        connection
            .query_row("SELECT x FROM a", (), |row| row.get(0))
            .unwrap()
    };
    assert_eq!(x(&connection), 1);
    let good = [first[0], "UPDATE a SET x = x + 5", "UPDATE a SET x = x * 2"];
    migrate(&mut connection, 7, &good).unwrap();
    assert_eq!((version(&connection).unwrap(), x(&connection)), (3, 12));
    // Back to the older program: it does not know what it would do.
    assert!(migrate(&mut connection, 7, &first).is_err());
    assert!(known(3, 2).is_err() && known(2, 2).is_ok());
}
