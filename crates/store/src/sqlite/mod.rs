//! The journal in one SQLite file of the state directory.
//!
//! Writes go through one thread, which commits before it answers; reads have a connection of their
//! own.

mod durations;
pub(crate) mod error;
mod file;
mod holder;
mod lease;
mod patch;
mod read;
mod row;
pub(crate) mod schema;
mod step_migration;
mod write;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use homestak_api::runtime::{Clock as _, WallClock, run_blocking};
use homestak_core::plan::{NodeRecord, Plan, StepKind};
use homestak_engine::journal::{
    Entry, Fence, Journal, JournalError, Lease, LeaseHolder, Run, RunFilter, RunId, RunOutcome,
    RunSummary, Scope,
};
use jiff::Timestamp;
use rusqlite::Connection;

use error::{Retry, StoreError};
use file::{File, Options};
use holder::Holder;
use write::{NewRun, WriteConnection};
use writer::Writer;

/// A journal in the file `journal.db` of a directory.
pub struct Sqlite {
    file: File,
    holder: Holder,
    // Closed before the writer: only the last writing connection checkpoints the log.
    reader: Arc<Mutex<Connection>>,
    writer: Arc<Writer>,
}

impl Sqlite {
    /// Opens the journal of a state directory, and creates both if needed.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        Self::open_with(dir, Options::default())
    }

    fn open_with(dir: &Path, options: Options) -> Result<Self, JournalError> {
        let file = File::new(dir, options);
        let doing = format!("open the journal `{file}`");
        let journal_error =
            |error: StoreError| error.into_journal_error(&doing, Retry::Command, &file);
        let holder = Holder::own().map_err(journal_error)?;
        let connection = file.open(&holder).map_err(journal_error)?;
        let reader = file.open_reader().map_err(journal_error)?;
        let db = WriteConnection::new(connection);
        let writer = Writer::start(db, file.clone(), options.heartbeat).map_err(journal_error)?;
        Ok(Self {
            holder,
            writer: Arc::new(writer),
            reader: Arc::new(Mutex::new(reader)),
            file,
        })
    }

    /// Reads in one snapshot, on a blocking thread.
    async fn read<T: Send + 'static>(
        &self,
        doing: String,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let reader = Arc::clone(&self.reader);
        // Cancel safety: the thread finishes its read.
        let task = run_blocking(move || {
            // A read that panicked changed nothing, so that its connection can be reused.
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            let snapshot = reader.transaction()?;
            read(&snapshot)
        });
        let result = task.await.unwrap_or_else(|_| {
            Err(StoreError::other(
                "the reader panicked",
                "this is a bug of homestak; please report it",
            ))
        });
        result.map_err(|error| error.into_journal_error(&doing, Retry::Command, &self.file))
    }
}

#[async_trait]
impl Journal for Sqlite {
    async fn lock(&self, scopes: &[Scope]) -> Result<Box<dyn Lease>, JournalError> {
        if scopes.is_empty() {
            return Err(JournalError::no_scope());
        }
        let mut scopes = scopes.to_vec();
        scopes.sort();
        scopes.dedup();
        let request = lease::LeaseRequest {
            scopes,
            holder: self.holder.clone(),
            since: WallClock.now(),
            writer: Arc::clone(&self.writer),
        };
        let order = self
            .writer
            .ask("lock the manifest", move |db| lease::take(db, &request));
        let held = order.await?;
        Ok(Box::new(held))
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<Fence>, JournalError> {
        let scope = scope.clone();
        self.writer
            .ask("read the fencing token", move |db| lease::fence(db, &scope))
            .await
    }

    async fn holder(&self, scope: &Scope) -> Result<Option<LeaseHolder>, JournalError> {
        let (scope, own) = (scope.clone(), self.holder.clone());
        self.read("read the lock".into(), move |connection| {
            lease::holding(connection, &scope, &own)
        })
        .await
    }

    async fn unlock(&self, scope: &Scope, number: i64) -> Result<(), JournalError> {
        let (scope, own, now) = (scope.clone(), self.holder.clone(), WallClock.now());
        self.writer
            .ask("unlock a manifest", move |db| {
                lease::unlock(db, &scope, number, (&own, now))
            })
            .await
    }

    async fn begin(
        &self,
        verb: &str,
        plan: &Plan,
        mark: &str,
        at: Timestamp,
    ) -> Result<RunId, JournalError> {
        let doing = "record a new run";
        let beginning = NewRun::new(verb, plan, mark, at)
            .map_err(|error| error.into_journal_error(doing, Retry::Command, &self.file))?;
        self.writer.ask(doing, move |db| db.begin(&beginning)).await
    }

    // Cancel safety: the entry of a dropped call may be written, in order.
    async fn append(&self, run: RunId, entry: &Entry) -> Result<(), JournalError> {
        let entry = entry.clone();
        self.writer
            .ask_with(
                format!("record a step of run {run}"),
                Retry::Resume,
                move |db| db.append(run, &entry),
            )
            .await
    }

    async fn end(&self, run: RunId, ending: RunOutcome, at: Timestamp) -> Result<(), JournalError> {
        self.writer
            .ask_with(
                format!("record the end of run {run}"),
                Retry::Resume,
                move |db| db.end(run, ending, at),
            )
            .await
    }

    async fn list_runs(&self, filter: &RunFilter) -> Result<Vec<RunSummary>, JournalError> {
        let filter = filter.clone();
        self.read("list the runs".into(), move |connection| {
            read::runs(connection, &filter)
        })
        .await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, JournalError> {
        self.read(format!("read run {id}"), move |connection| {
            read::run(connection, id)
        })
        .await
    }

    async fn entries_after(
        &self,
        run: RunId,
        position: i64,
    ) -> Result<Vec<(i64, Entry)>, JournalError> {
        self.read(format!("follow run {run}"), move |connection| {
            read::entries_after(connection, run, position)
        })
        .await
    }

    async fn records(&self, scope: &Scope) -> Result<Vec<NodeRecord>, JournalError> {
        let scope = scope.clone();
        self.read(
            format!("read the records of `{}`", scope.manifest),
            move |connection| read::records(connection, &scope),
        )
        .await
    }

    async fn forget(&self, scope: &Scope, node: &str) -> Result<bool, JournalError> {
        let (scope, node) = (scope.clone(), node.to_owned());
        self.writer
            .ask(format!("forget node `{node}`"), move |db| {
                db.forget(&scope, &node)
            })
            .await
    }

    async fn durations(&self) -> Result<Vec<(StepKind, f64)>, JournalError> {
        self.read("read how long steps took".into(), durations::medians)
            .await
    }
}
