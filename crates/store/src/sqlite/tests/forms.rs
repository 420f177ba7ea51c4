//! Older forms of the file, and newer ones.

use homestak_core::plan::{NodeRecord, Plan, StepKind};
use std::os::unix::fs::PermissionsExt as _;

use homestak_engine::journal::{Journal as _, RunOutcome};
use homestak_engine::report::{RowStatus, RunReport};

use super::super::holder::Holder;
use super::super::schema::{MIGRATIONS, Migration, migrate, require_known, version};
use super::*;

/// A dump of each form, as `sqlite3 journal.db .dump` writes what [`fill`] makes, and before it
/// the pragmas `application_id` and `user_version`.
const DUMPS: &[&str] = &[
    include_str!("../../../tests/data/form-1.sql"),
    include_str!("../../../tests/data/form-2.sql"),
    include_str!("../../../tests/data/form-3.sql"),
    include_str!("../../../tests/data/form-4.sql"),
];

/// A journal of form 2 as a program wrote it: a hypervisor and a node in it were applied, and the
/// program was killed while it destroyed them.
const KILLED: &str = include_str!("../../../tests/data/form-2-nested.sql");

/// Writes what every form must hold.
fn fill(journal: &Sqlite) {
    wait(async {
        let plan = sample::plan("edge", 1);
        let first = journal
            .begin("apply", &plan, "run", sample::at(0))
            .await
            .unwrap();
        let mut entries = [
            sample::entry_with_record(
                0,
                StepEvent::Intent,
                sample::record("node-0", NodeStatus::Creating),
            ),
            sample::entry_with_record(
                0,
                sample::done(),
                sample::record("node-0", NodeStatus::Created),
            ),
            sample::entry_with_record(
                1,
                StepEvent::Intent,
                sample::record("gone", NodeStatus::Created),
            ),
            sample::entry(1, StepEvent::Failed(sample::step_error())),
        ];
        entries[1].at = sample::at(12);
        for entry in &entries {
            journal.append(first, entry).await.unwrap();
        }
        let father = sample::scope("edge", "father");
        assert!(journal.forget(&father, "gone").await.unwrap());
        journal
            .end(first, RunOutcome::Superseded, sample::at(20))
            .await
            .unwrap();
        journal
            .begin("destroy", &plan, "run", sample::at(30))
            .await
            .unwrap();
    });
}

/// Checks that everything that [`fill`] wrote exists. In the first format nothing had a site.
fn check(journal: &Sqlite, form: usize) {
    let site = (form > 1).then(sample::site);
    let plan = Plan {
        // The fourth form of the file has plans of the third.
        format: u32::try_from(form.min(3)).unwrap(),
        site: site.clone(),
        ..sample::plan("edge", 1)
    };
    let record = NodeRecord {
        site,
        ..sample::record("node-0", NodeStatus::Created)
    };
    wait(async {
        let runs = journal.runs(Some("edge")).await.unwrap();
        assert_eq!(runs.len(), 2);
        assert_eq!(runs[0].ended.map(|(_, ending)| ending), None);
        assert_eq!(
            runs[1].ended.map(|(_, ending)| ending),
            Some(RunOutcome::Superseded)
        );
        let run = journal.run(runs[1].id).await.unwrap().unwrap();
        assert_eq!(run.plan, plan);
        assert_eq!(run.head.form, plan.format);
        let steps: Vec<_> = run.entries.iter().map(|entry| entry.step.clone()).collect();
        assert_eq!(steps, [0, 0, 1, 1].map(sample::step));
        assert_eq!(
            run.entries[3].happened,
            StepEvent::Failed(sample::step_error())
        );
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
fn a_journal_of_each_format_opens_with_its_content() {
    assert_eq!(DUMPS.len(), MIGRATIONS.len(), "add a dump of the new form");
    for (at, dump) in DUMPS.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        open_directly(dir.path()).execute_batch(dump).unwrap();
        assert_eq!(version(&open_directly(dir.path())).unwrap(), at + 1);
        check(&Sqlite::open(dir.path()).unwrap(), at + 1);
        assert_eq!(
            version(&open_directly(dir.path())).unwrap(),
            MIGRATIONS.len()
        );
        replay::compare(&open_directly(dir.path()));
    }
}

#[test]
fn the_dumps_match_what_this_version_writes() {
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
    open_directly(dir.path())
        .execute_batch(&format!("PRAGMA user_version = {newer}"))
        .unwrap();
    let before = fs_err::read(file(dir.path())).unwrap();
    let (detail, hint) = broken(Sqlite::open(dir.path()));
    assert!(detail.contains(&format!("format {newer}")), "{detail}");
    assert!(hint.contains("newer version"), "{hint}");
    assert!(before == fs_err::read(file(dir.path())).unwrap());
}

#[test]
fn a_database_of_another_program_is_refused_and_keeps_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let other = open_directly(dir.path());
    other.execute_batch("CREATE TABLE entries (x)").unwrap();
    drop(other);
    let before = fs_err::read(file(dir.path())).unwrap();
    let (detail, _) = broken(Sqlite::open(dir.path()));
    assert_eq!(detail, "it is the database of another program");
    assert!(before == fs_err::read(file(dir.path())).unwrap());
}

#[test]
fn migrations_are_applied_once_each_and_together_or_not_at_all() {
    let mut connection = Connection::open_in_memory().unwrap();
    let first = ["CREATE TABLE a (x); INSERT INTO a VALUES (1)"];
    let migrate = |connection: &mut Connection, sql: &[&'static str]| {
        let migrations: Vec<Migration> = sql.iter().map(|sql| Migration::Sql(sql)).collect();
        migrate(connection, 7, &migrations, |_, _| Ok(()))
    };
    migrate(&mut connection, &first).unwrap();
    migrate(&mut connection, &first).unwrap();
    let bad = [first[0], "UPDATE a SET x = 2", "CREATE TABLE a (y)"];
    assert!(migrate(&mut connection, &bad).is_err());
    assert_eq!(version(&connection).unwrap(), 1);
    let x = |connection: &Connection| -> i64 {
        connection
            .query_row("SELECT x FROM a", (), |row| row.get(0))
            .unwrap()
    };
    assert_eq!(x(&connection), 1);
    let good = [first[0], "UPDATE a SET x = x + 5", "UPDATE a SET x = x * 2"];
    migrate(&mut connection, &good).unwrap();
    assert_eq!((version(&connection).unwrap(), x(&connection)), (3, 12));
    // Back to the older program: it does not know what it would do.
    assert!(migrate(&mut connection, &first).is_err());
    assert!(require_known(3, 2).is_err() && require_known(2, 2).is_ok());
}

/// Returns a state directory with a journal of form 2.
fn of_form_2() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let permissions = std::fs::Permissions::from_mode(0o600);
    open_directly(dir.path()).execute_batch(KILLED).unwrap();
    fs_err::set_permissions(file(dir.path()), permissions).unwrap();
    dir
}

/// Returns the names and forms of journals that are kept beside the one in use.
fn kept(dir: &Path) -> Vec<(String, usize)> {
    let entries = fs_err::read_dir(dir).unwrap().map(Result::unwrap);
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.contains("form-")).collect();
    names.sort();
    let form = |name: &str| version(&Connection::open(dir.join(name)).unwrap()).unwrap();
    let forms: Vec<usize> = names.iter().map(|name| form(name)).collect();
    names.into_iter().zip(forms).collect()
}

#[test]
fn runs_of_an_older_format_are_read_with_their_steps() {
    let dir = of_form_2();
    let journal = Sqlite::open(dir.path()).unwrap();
    let run = |id| wait(journal.run(RunId(id))).unwrap().unwrap();
    let (applied, killed) = (run(1), run(2));
    assert_eq!((applied.head.form, killed.head.form), (2, 2));
    let entries = applied.entries.iter().chain(&killed.entries);
    assert!(entries.clone().all(|entry| entry.step.is_some()));
    let done: Vec<&str> = killed
        .step_entries()
        .filter(|(_, entry)| entry.happened != StepEvent::Intent)
        .map(|(at, _)| killed.plan.steps[at].id.as_str())
        .collect();
    let expected = [
        "stop:sim/root-pve/edge",
        "destroy:sim/root-pve/edge",
        "stop:sim/root-pve",
    ];
    assert_eq!(done, expected);
    let report = RunReport::of_run(&applied);
    let rows = report.nodes.iter().map(|row| (row.status, row.n_done));
    let expected = [(RowStatus::Completed, 4), (RowStatus::Completed, 4)];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    let mut report = RunReport::of_run(&killed);
    report.mark_interrupted();
    let rows = report
        .nodes
        .iter()
        .map(|row| (row.name.as_str(), row.status));
    let expected = [
        ("root-pve", RowStatus::Interrupted),
        ("edge", RowStatus::Destroyed),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    replay::compare(&open_directly(dir.path()));
}

#[test]
fn a_plan_that_cannot_be_read_does_not_affect_other_runs() {
    let dir = tempfile::tempdir().unwrap();
    open_directly(dir.path())
        .execute_batch(&KILLED.replace("VALUES(2,'{\"form\"", "VALUES(2,'{form"))
        .unwrap();
    let journal = Sqlite::open(dir.path()).unwrap();
    assert!(wait(journal.run(RunId(2))).is_err());
    assert!(wait(journal.run(RunId(1))).unwrap().is_some());
    assert_eq!(wait(journal.runs(None)).unwrap().len(), 2);
}

#[test]
fn a_journal_is_backed_up_before_it_is_migrated() {
    let dir = of_form_2();
    // A copy that is there is another one, and stays.
    fs_err::write(dir.path().join("journal.form-2.db"), "").unwrap();
    // What a program left that was killed while it copied.
    fs_err::write(dir.path().join("journal.form-2.part"), "half").unwrap();
    drop(Sqlite::open(dir.path()).unwrap());
    drop(Sqlite::open(dir.path()).unwrap());
    let expected = [
        ("journal.form-2.2.db".to_owned(), 2),
        ("journal.form-2.db".to_owned(), 0),
    ];
    assert_eq!(kept(dir.path()), expected);
    let copy = dir.path().join("journal.form-2.2.db");
    let mode = fs_err::metadata(&copy).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // It can be used by the program that wrote it, and again by this one.
    fs_err::copy(&copy, file(dir.path())).unwrap();
    let journal = Sqlite::open(dir.path()).unwrap();
    assert_eq!(
        wait(journal.run(RunId(2))).unwrap().unwrap().entries.len(),
        7
    );
    assert_eq!(kept(dir.path()).len(), 3);
}

#[test]
fn a_new_journal_and_one_of_this_format_are_not_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path(), 3));
    drop(Sqlite::open(dir.path()).unwrap());
    assert_eq!(kept(dir.path()), []);
}

#[test]
fn a_journal_that_cannot_be_backed_up_is_not_migrated() {
    let dir = of_form_2();
    // A directory with the name of the copy, so that root cannot create the file either.
    fs_err::create_dir(dir.path().join("journal.form-2.part")).unwrap();
    let (detail, hint) = broken(Sqlite::open(dir.path()));
    assert!(detail.contains("format 2 and was not migrated"), "{detail}");
    assert!(hint.contains("writable"), "{hint}");
    assert_eq!(version(&open_directly(dir.path())).unwrap(), 2);
    fs_err::remove_dir(dir.path().join("journal.form-2.part")).unwrap();
    drop(Sqlite::open(dir.path()).unwrap());
    assert_eq!(
        version(&open_directly(dir.path())).unwrap(),
        MIGRATIONS.len()
    );
}

#[test]
fn a_journal_in_use_is_not_migrated() {
    let dir = of_form_2();
    let own = Holder::own().unwrap();
    let lease = |start: i64| {
        open_directly(dir.path())
            .execute(
                "INSERT OR REPLACE INTO leases
                 VALUES ('', 'm', 'sim', ?1, ?2, ?3, ?4, ?5, 0, 0)",
                rusqlite::params![own.machine, own.boot, own.space, own.pid, start],
            )
            .unwrap();
    };
    lease(own.start);
    let (detail, hint) = broken(Sqlite::open(dir.path()));
    assert!(detail.contains(&format!("process {}", own.pid)), "{detail}");
    assert!(hint.contains("wait"), "{hint}");
    assert_eq!(version(&open_directly(dir.path())).unwrap(), 2);
    assert_eq!(kept(dir.path()), []);
    // A lease of a process that has ended does not prevent the migration.
    lease(own.start + 1);
    drop(Sqlite::open(dir.path()).unwrap());
    assert_eq!(
        version(&open_directly(dir.path())).unwrap(),
        MIGRATIONS.len()
    );
}
