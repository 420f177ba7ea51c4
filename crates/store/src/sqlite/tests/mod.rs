//! Tests of behaviour that is specific to SQLite.

mod damage;
mod forms;
mod full;
mod holders;
mod locked;
mod refused;
mod replay;

use std::path::{Path, PathBuf};

use homestak_core::plan::NodeStatus;
use homestak_engine::journal::{Entry, Journal as _, JournalError, RunId, StepEvent};
use homestak_test_support::sample;
use rusqlite::Connection;

use super::Sqlite;

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

fn file(dir: &Path) -> PathBuf {
    dir.join("journal.db")
}

/// Opens the file directly, as a user with `sqlite3` would.
fn open_directly(dir: &Path) -> Connection {
    Connection::open(file(dir)).unwrap()
}

/// Returns detail and hint of a journal that cannot be used.
fn broken<T>(result: Result<T, JournalError>) -> (String, String) {
    match result {
        Ok(_) => panic!("it worked"),
        Err(JournalError::Broken {
            doing,
            detail,
            hint,
        }) => {
            assert!(!doing.is_empty());
            (detail, hint)
        }
        Err(error) => panic!("{error}"),
    }
}

/// Entry number `step` of a run with ten nodes, one after the other, whose status advances.
fn turn(step: usize) -> Entry {
    let status = match step / 10 % 3 {
        0 => NodeStatus::Creating,
        1 => NodeStatus::Created,
        _ => NodeStatus::Ready,
    };
    let name = format!("node-{}", step % 10);
    sample::entry_with_record(step, StepEvent::Intent, sample::record(&name, status))
}

async fn begin(journal: &Sqlite) -> RunId {
    let plan = sample::plan("m", 10);
    journal
        .begin("apply", &plan, "run", sample::at(0))
        .await
        .unwrap()
}

/// Returns a journal with one run that has `entries` entries.
fn filled(dir: &Path, entries: usize) -> (Sqlite, RunId) {
    let journal = Sqlite::open(dir).unwrap();
    let id = wait(async {
        let id = begin(&journal).await;
        for step in 0..entries {
            journal.append(id, &turn(step)).await.unwrap();
        }
        id
    });
    (journal, id)
}

/// Returns the number of entries of a run, and checks that they are the first ones, unchanged.
async fn count(journal: &Sqlite, id: RunId) -> usize {
    let entries = journal.run(id).await.unwrap().unwrap().entries;
    let expected: Vec<Entry> = (0..entries.len()).map(turn).collect();
    assert_eq!(entries, expected);
    entries.len()
}
