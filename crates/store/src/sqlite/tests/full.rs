//! A disk that is full.

use homestak_engine::journal::{Journal as _, RunOutcome};

use super::super::file::Options;
use super::*;

fn small() -> Options {
    Options {
        pages: Some(40),
        ..Options::default()
    }
}

#[test]
fn a_full_disk_is_reported_and_acknowledged_entries_stay() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Sqlite::open_with(dir.path(), small()).unwrap();
    wait(async {
        let id = begin(&journal).await;
        let mut written = 0;
        let result = loop {
            match journal.append(id, &turn(written)).await {
                Ok(()) => written += 1,
                result => break result,
            }
        };
        let (detail, hint) = broken(result);
        assert_eq!(detail, "database or disk is full");
        assert!(
            hint.contains("free space and run `homestak manifest resume`"),
            "{hint}"
        );
        assert!(written > 50, "{written}");
        assert_eq!(count(&journal, id).await, written);
        replay::compare(&open_directly(dir.path()));
        // What needs no room still works.
        journal
            .end(id, RunOutcome::Failed, sample::at(1))
            .await
            .unwrap();
        // Space was freed: the run continues.
        let journal = Sqlite::open(dir.path()).unwrap();
        journal.append(id, &turn(written)).await.unwrap();
        assert_eq!(count(&journal, id).await, written + 1);
    });
}

#[test]
fn a_plan_that_is_too_large_for_the_disk_leaves_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Sqlite::open_with(dir.path(), small()).unwrap();
    wait(async {
        let id = begin(&journal).await;
        let large = sample::plan("m", 2000);
        let (detail, hint) = broken(journal.begin("apply", &large, "run", sample::at(0)).await);
        assert_eq!(detail, "database or disk is full");
        assert!(
            hint.ends_with("free space and repeat the command"),
            "there is no run to resume: {hint}"
        );
        let runs = journal.runs(None).await.unwrap();
        assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [id]);
        journal.append(id, &turn(0)).await.unwrap();
    });
}
