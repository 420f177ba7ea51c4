//! The thread that writes. Pending requests share a transaction, and are answered after its commit.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use homestak_api::runtime::{Clock as _, WallClock};
use homestak_engine::journal::JournalError;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::error::{Retry, StoreError};
use super::file::File;
use super::lease;
use super::write::WriteConnection;

/// At most this many requests share a transaction.
const BATCH: usize = 1024;

/// Sends requests to the thread. Dropping it waits for pending requests.
pub(super) struct Writer {
    // Unbounded, but small: each caller waits for its answer.
    requests: Option<Sender<Box<dyn WriteRequest>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(
        db: WriteConnection,
        file: File,
        heartbeat: Duration,
    ) -> Result<Self, StoreError> {
        let (requests, inbox) = channel();
        let thread = thread::Builder::new()
            .name("journal".into())
            .spawn(move || serve(db, &file, &inbox, heartbeat))?;
        Ok(Self {
            requests: Some(requests),
            thread: Some(thread),
        })
    }

    /// Sends a request and waits until it is on disk. `act` may be called twice, the first time in
    /// a transaction that is rolled back.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        doing: impl Into<String>,
        act: impl FnMut(&mut WriteConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, JournalError> {
        self.ask_with(doing.into(), Retry::Command, act).await
    }

    /// Does the same, with what the user can do after an error.
    pub(super) async fn ask_with<T: Send + 'static>(
        &self,
        doing: String,
        retry: Retry,
        act: impl FnMut(&mut WriteConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let (reply, answer) = oneshot::channel();
        self.send(Request {
            doing: doing.clone(),
            retry,
            act,
            value: None,
            reply: Some(reply),
        });
        // Cancel safety: the request is executed; its result, including a lease, is dropped.
        answer.await.unwrap_or_else(|_| {
            Err(JournalError::Broken {
                doing,
                detail: "the writer thread has ended".into(),
                hint: "this is a bug of homestak; please report it".into(),
            })
        })
    }

    /// Sends a request without waiting.
    pub(super) fn enqueue(
        &self,
        act: impl FnMut(&mut WriteConnection) -> Result<(), StoreError> + Send + 'static,
    ) {
        self.send(Request {
            doing: String::new(),
            retry: Retry::Command,
            act,
            value: None,
            reply: None,
        });
    }

    fn send(&self, work: impl WriteRequest + 'static) {
        if let Some(requests) = &self.requests {
            // If the thread has ended, the answer channel is closed.
            drop(requests.send(Box::new(work)));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.requests.take());
        // The thread itself may drop the last lease; it then ends by itself.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !own(thread)) {
            drop(thread.join());
        }
    }
}

trait WriteRequest: Send {
    fn act(&mut self, db: &mut WriteConnection) -> Result<(), StoreError>;
    fn answer(self: Box<Self>, result: Result<(), StoreError>, file: &File);
}

struct Request<F, T> {
    doing: String,
    retry: Retry,
    act: F,
    value: Option<T>,
    reply: Option<oneshot::Sender<Result<T, JournalError>>>,
}

impl<T: Send, F: FnMut(&mut WriteConnection) -> Result<T, StoreError> + Send> WriteRequest
    for Request<F, T>
{
    fn act(&mut self, db: &mut WriteConnection) -> Result<(), StoreError> {
        self.value = Some((self.act)(db)?);
        Ok(())
    }

    fn answer(self: Box<Self>, result: Result<(), StoreError>, file: &File) {
        let Self {
            doing,
            retry,
            act,
            value,
            reply,
        } = *self;
        // Before the answer: its references to the writer must not outlive it.
        drop(act);
        let result = match (result, value) {
            (Ok(()), Some(value)) => Ok(value),
            (Ok(()), None) => Err(StoreError::other(
                "nothing was done",
                "this is a bug of homestak",
            )),
            (Err(error), _) => Err(error),
        };
        if let Some(reply) = reply {
            // Without a receiver, the value is dropped, including a lease.
            drop(reply.send(result.map_err(|error| error.into_journal_error(&doing, retry, file))));
        }
    }
}

fn serve(
    mut db: WriteConnection,
    file: &File,
    inbox: &Receiver<Box<dyn WriteRequest>>,
    heartbeat: Duration,
) {
    let mut last = WallClock.now();
    loop {
        let first = match inbox.recv_timeout(heartbeat) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut batch: Vec<Box<dyn WriteRequest>> = first.into_iter().collect();
        batch.extend(inbox.try_iter().take(BATCH - 1));
        let together = batch.len() > 1 && transact(&mut db, &mut batch).is_ok();
        for mut work in batch {
            let result = if together {
                Ok(())
            } else {
                // One by one, so that each gets its own result.
                transact(&mut db, std::slice::from_mut(&mut work))
            };
            work.answer(result, file);
        }
        let now = WallClock.now();
        // The clock was set back.
        let recent = Duration::try_from(now.duration_since(last)).is_ok_and(|ago| ago < heartbeat);
        if !recent && !db.granted.is_empty() {
            last = now;
            write_heartbeats(&mut db, now);
        }
    }
}

/// Writes heartbeats. A failure is retried at the next interval.
fn write_heartbeats(db: &mut WriteConnection, now: Timestamp) {
    let done = db
        .start()
        .and_then(|()| lease::write_heartbeats(db, now))
        .and_then(|()| db.commit());
    if done.is_err() {
        db.abandon();
    }
}

fn transact(
    db: &mut WriteConnection,
    batch: &mut [Box<dyn WriteRequest>],
) -> Result<(), StoreError> {
    let result = db
        .start()
        .and_then(|()| batch.iter_mut().try_for_each(|work| work.act(db)))
        .and_then(|()| db.commit());
    if result.is_err() {
        db.abandon();
    }
    result
}
