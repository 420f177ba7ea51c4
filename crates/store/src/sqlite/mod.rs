//! The journal in one SQLite file of the state directory.
//!
//! In: calls on the engine's port. Out: rows, on disk before the call returns.
//! Never: two transactions at once; a wait for the disk on a thread of the runtime.

mod fault;
mod file;
mod holder;
mod lease;
mod pace;
mod patch;
mod read;
mod row;
mod schema;
mod steps;
mod write;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use homestak_api::runtime::{Clock as _, WallClock, off};
use homestak_core::plan::{NodeRecord, Plan, StepKind};
use homestak_engine::journal::{
    Ending, Entry, Fence, Holding, Journal, JournalError, Lease, Run, RunFilter, RunHead, RunId,
    Scope,
};
use jiff::Timestamp;
use rusqlite::Connection;

use fault::Fault;
use file::{File, Options};
use holder::Holder;
use write::{Beginning, Desk};
use writer::Writer;

/// A journal in the file `journal.db` of a directory.
pub struct Sqlite {
    file: File,
    holder: Holder,
    // Closed before the writer: only a connection that writes can take the log into the file, and
    // only the last one does.
    reader: Arc<Mutex<Connection>>,
    writer: Arc<Writer>,
}

impl Sqlite {
    /// Opens the journal of a state directory; makes both when they are not there.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        Self::open_with(dir, Options::default())
    }

    fn open_with(dir: &Path, options: Options) -> Result<Self, JournalError> {
        let file = File::new(dir, options);
        let doing = format!("open the journal `{file}`");
        let told = |fault: Fault| fault.told(&doing, &file);
        let holder = Holder::own().map_err(told)?;
        let connection = file.open(&holder).map_err(told)?;
        let reader = file.open_reader().map_err(told)?;
        let desk = Desk::new(connection);
        let writer = Writer::start(desk, file.clone(), options.heartbeat).map_err(told)?;
        Ok(Self {
            holder,
            writer: Arc::new(writer),
            reader: Arc::new(Mutex::new(reader)),
            file,
        })
    }

    /// Reads in one snapshot, on a thread that may wait.
    async fn read<T: Send + 'static>(
        &self,
        doing: String,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, JournalError> {
        let reader = Arc::clone(&self.reader);
        // Cancel safety: the thread finishes its read, and nobody takes the result.
        let task = off(move || {
            // A read that panicked has changed nothing, so its connection can be used again.
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            let snapshot = reader.transaction()?;
            read(&snapshot)
        });
        let result = task.await.unwrap_or_else(|_| {
            Err(Fault::said(
                "reading stopped before its end",
                "this is a bug of homestak; please report it",
            ))
        });
        result.map_err(|fault| fault.told(&doing, &self.file))
    }
}

#[async_trait]
impl Journal for Sqlite {
    async fn hold(&self, scopes: &[Scope]) -> Result<Box<dyn Lease>, JournalError> {
        let mut scopes = scopes.to_vec();
        scopes.sort();
        scopes.dedup();
        let taking = lease::Taking {
            scopes,
            holder: self.holder.clone(),
            since: WallClock.now(),
            writer: Arc::clone(&self.writer),
        };
        let order = self
            .writer
            .ask("take a manifest for this run", move |desk| {
                lease::take(desk, &taking)
            });
        let held = order.await?;
        Ok(Box::new(held))
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<Fence>, JournalError> {
        let scope = scope.clone();
        self.writer
            .ask("read the number of a lease", move |desk| {
                lease::fence(desk, &scope)
            })
            .await
    }

    async fn holding(&self, scope: &Scope) -> Result<Option<Holding>, JournalError> {
        let (scope, own) = (scope.clone(), self.holder.clone());
        self.read("read who holds a manifest".into(), move |connection| {
            lease::holding(connection, &scope, &own)
        })
        .await
    }

    async fn unlock(&self, scope: &Scope, number: i64) -> Result<(), JournalError> {
        let (scope, own, now) = (scope.clone(), self.holder.clone(), WallClock.now());
        self.writer
            .ask("unlock a manifest", move |desk| {
                lease::unlock(desk, &scope, number, (&own, now))
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
        let doing = "write down a new run";
        let beginning =
            Beginning::new(verb, plan, mark, at).map_err(|fault| fault.told(doing, &self.file))?;
        self.writer
            .ask(doing, move |desk| desk.begin(&beginning))
            .await
    }

    // Cancel safety: an entry whose call was dropped may be written, and is then in its place.
    async fn append(&self, run: RunId, entry: &Entry) -> Result<(), JournalError> {
        let entry = entry.clone();
        self.writer
            .ask(format!("write down a step of run {run}"), move |desk| {
                desk.append(run, &entry)
            })
            .await
    }

    async fn end(&self, run: RunId, ending: Ending, at: Timestamp) -> Result<(), JournalError> {
        self.writer
            .ask(format!("write down the end of run {run}"), move |desk| {
                desk.end(run, ending, at)
            })
            .await
    }

    async fn page(&self, filter: &RunFilter) -> Result<Vec<RunHead>, JournalError> {
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

    async fn records(&self, scope: &Scope) -> Result<Vec<NodeRecord>, JournalError> {
        let scope = scope.clone();
        self.read(
            format!("read what is known of `{}`", scope.manifest),
            move |connection| read::records(connection, &scope),
        )
        .await
    }

    async fn forget(&self, scope: &Scope, node: &str) -> Result<bool, JournalError> {
        let (scope, node) = (scope.clone(), node.to_owned());
        self.writer
            .ask(format!("forget node `{node}`"), move |desk| {
                desk.forget(&scope, &node)
            })
            .await
    }

    async fn durations(&self) -> Result<Vec<(StepKind, f64)>, JournalError> {
        self.read("read how long steps took".into(), pace::medians)
            .await
    }
}
