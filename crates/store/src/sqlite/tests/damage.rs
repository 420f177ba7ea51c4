//! Files that are damaged.

use homestak_engine::journal::Journal as _;

use super::*;

const PAGE: usize = 4096;

/// Copies a journal with its write-ahead log, in the current state.
fn copy(from: &Path, to: &Path) -> Vec<u8> {
    fs_err::copy(file(from), file(to)).unwrap();
    let log = fs_err::read(from.join("journal.db-wal")).unwrap();
    fs_err::write(to.join("journal.db-wal"), &log).unwrap();
    log
}

/// Opens a journal whose log was damaged and returns how many entries it has.
fn remaining_entries(dir: &Path, id: RunId) -> usize {
    let journal = Sqlite::open(dir).unwrap();
    let found = wait(count(&journal, id));
    replay::compare(&open_directly(dir));
    // It continues from there.
    wait(journal.append(id, &turn(found))).unwrap();
    assert_eq!(wait(count(&journal, id)), found + 1);
    found
}

/// Makes a journal whose log holds entries that the file does not.
fn logged(dir: &Path) -> (Sqlite, RunId) {
    let (journal, id) = filled(dir, 20);
    drop(journal);
    let journal = Sqlite::open(dir).unwrap();
    for step in 20..60 {
        wait(journal.append(id, &turn(step))).unwrap();
    }
    (journal, id)
}

#[test]
fn a_torn_log_ends_at_the_last_whole_entry() {
    let from = tempfile::tempdir().unwrap();
    let (_open, id) = logged(from.path());
    let mut seen = Vec::new();
    for part in 0..=40 {
        let to = tempfile::tempdir().unwrap();
        let mut log = copy(from.path(), to.path());
        // Odd lengths, so that frames are cut anywhere.
        log.truncate(log.len() * part / 40 + usize::from(part < 40) * (part * 37 % 100));
        fs_err::write(to.path().join("journal.db-wal"), &log).unwrap();
        seen.push(remaining_entries(to.path(), id));
    }
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!((seen.first(), seen.last()), (Some(&20), Some(&60)));
    assert!(
        seen.iter().any(|count| (30..50).contains(count)),
        "{seen:?}"
    );
}

#[test]
fn a_log_with_a_flipped_bit_ends_before_it() {
    let from = tempfile::tempdir().unwrap();
    let (_open, id) = logged(from.path());
    for part in 0..20 {
        let to = tempfile::tempdir().unwrap();
        let mut log = copy(from.path(), to.path());
        let at = log.len() * part / 20 + 17;
        log[at] ^= 4;
        fs_err::write(to.path().join("journal.db-wal"), &log).unwrap();
        assert!((20..60).contains(&remaining_entries(to.path(), id)));
    }
}

#[test]
fn a_file_that_is_no_database_is_reported_and_kept() {
    for content in [
        "hello".into(),
        "x".repeat(5000),
        format!("SQLite format 3\0{}", "z".repeat(9000)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(file(dir.path()), &content).unwrap();
        let (detail, hint) = broken(Sqlite::open(dir.path()));
        assert!(
            detail.contains("not a database") || detail.contains("malformed"),
            "{detail}"
        );
        assert!(
            hint.contains("move") && hint.contains("homestak state rebuild"),
            "{hint}"
        );
        assert!(
            hint.contains(&file(dir.path()).display().to_string()),
            "{hint}"
        );
        assert!(fs_err::read(file(dir.path())).unwrap() == content.as_bytes());
    }
}

/// Reads everything and returns the first fault.
async fn read_all(dir: &Path, id: RunId, whole: usize) -> Result<(), JournalError> {
    let journal = Sqlite::open(dir)?;
    let heads = journal.runs(None).await?;
    let run = journal.run(id).await?;
    let records = journal.records(&sample::scope("m", "father")).await?;
    journal.durations().await?;
    // No fault: then everything is as it was written.
    assert_eq!((heads.len(), records.len()), (1, 10));
    let run = run.unwrap();
    assert_eq!(run.plan, sample::plan("m", 10));
    assert_eq!(run.entries, (0..whole).map(turn).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_damaged_page_is_reported_and_the_file_is_kept() {
    let from = tempfile::tempdir().unwrap();
    let (journal, id) = filled(from.path(), 120);
    drop(journal);
    let good = fs_err::read(file(from.path())).unwrap();
    assert!(good.len() > 10 * PAGE);
    let mut faults = 0;
    for (page, filler) in (0..good.len() / PAGE).flat_map(|page| [(page, 0), (page, 0xaa)]) {
        let dir = tempfile::tempdir().unwrap();
        let mut bad = good.clone();
        bad[page * PAGE..(page + 1) * PAGE].fill(filler);
        fs_err::write(file(dir.path()), &bad).unwrap();
        if let Err(error) = wait(read_all(dir.path(), id, 120)) {
            let (_, hint) = broken::<()>(Err(error));
            assert!(
                hint.contains("move") && hint.contains("keep"),
                "{page}: {hint}"
            );
            faults += 1;
        }
        assert!(
            fs_err::read(file(dir.path())).unwrap() == bad,
            "{page} was changed"
        );
    }
    // Pages of indexes and leases are not read on the way; most others are.
    assert!(faults > good.len() / PAGE, "{faults}");
}

#[test]
fn an_entry_on_a_damaged_page_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, id) = filled(dir.path(), 120);
    drop(journal);
    let root: usize = open_directly(dir.path())
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'entries'",
            (),
            |row| row.get(0),
        )
        .map(|page: i64| usize::try_from(page).unwrap())
        .unwrap();
    let mut bad = fs_err::read(file(dir.path())).unwrap();
    bad[(root - 1) * PAGE..root * PAGE].fill(0xaa);
    fs_err::write(file(dir.path()), &bad).unwrap();
    let journal = Sqlite::open(dir.path()).unwrap();
    let (detail, hint) = broken(wait(journal.append(id, &turn(120))));
    assert!(detail.contains("malformed"), "{detail}");
    assert!(hint.contains("move"), "{hint}");
    drop(journal);
    assert!(fs_err::read(file(dir.path())).unwrap() == bad);
}

#[test]
fn a_journal_that_was_read_and_closed_is_one_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, id) = filled(dir.path(), 20);
    assert_eq!(wait(count(&journal, id)), 20);
    drop(journal);
    let names = fs_err::read_dir(dir.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["journal.db"]);
}

#[test]
fn an_empty_file_with_a_log_is_reported_and_the_log_is_kept() {
    let from = tempfile::tempdir().unwrap();
    let (_open, _) = logged(from.path());
    let to = tempfile::tempdir().unwrap();
    let log = copy(from.path(), to.path());
    fs_err::write(file(to.path()), "").unwrap();
    let (detail, hint) = broken(Sqlite::open(to.path()));
    assert!(detail.contains("empty"), "{detail}");
    assert!(hint.contains("move") && hint.contains("keep"), "{hint}");
    assert!(fs_err::read(to.path().join("journal.db-wal")).unwrap() == log);
}
