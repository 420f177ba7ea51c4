//! The one thread that writes. Everything that waits goes into one transaction.
//!
//! In: orders, from any task. Out: an answer to each, after its transaction is on disk.
//! Never: an answer before that; one order's fault as the answer to another.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use homestak_api::runtime::{Clock as _, WallClock};
use homestak_engine::journal::JournalError;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::fault::Fault;
use super::file::File;
use super::lease;
use super::write::Desk;

/// So many orders share a transaction at most, so that the first does not wait for ever.
const BATCH: usize = 1024;

/// Hands orders to the thread. When it is dropped, what was ordered is written first.
pub(super) struct Writer {
    // Unbounded, yet small: each caller waits for its answer before it orders again.
    orders: Option<Sender<Box<dyn Work>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(desk: Desk, file: File, heartbeat: Duration) -> Result<Self, Fault> {
        let (orders, inbox) = channel();
        let thread = thread::Builder::new()
            .name("journal".into())
            .spawn(move || serve(desk, &file, &inbox, heartbeat))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// Orders something and waits until it is on disk. `act` may be called twice, the first time
    /// in a transaction that came to nothing.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        doing: impl Into<String>,
        act: impl FnMut(&mut Desk) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, JournalError> {
        let doing = doing.into();
        let (reply, answer) = oneshot::channel();
        self.send(Order {
            doing: doing.clone(),
            act,
            value: None,
            reply: Some(reply),
        });
        // Cancel safety: the order stands; its answer, a lease included, is dropped.
        answer.await.unwrap_or_else(|_| {
            Err(JournalError::Broken {
                doing,
                detail: "the thread that writes has ended".into(),
                hint: "this is a bug of homestak; please report it".into(),
            })
        })
    }

    /// Orders something without waiting for it.
    pub(super) fn tell(&self, act: impl FnMut(&mut Desk) -> Result<(), Fault> + Send + 'static) {
        self.send(Order {
            doing: String::new(),
            act,
            value: None,
            reply: None,
        });
    }

    fn send(&self, work: impl Work + 'static) {
        if let Some(orders) = &self.orders {
            // When the thread has ended, whoever waits finds the other end of its answer gone.
            drop(orders.send(Box::new(work)));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.orders.take());
        // The last lease may be dropped by the thread itself; it then ends by itself.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !own(thread)) {
            drop(thread.join());
        }
    }
}

trait Work: Send {
    fn act(&mut self, desk: &mut Desk) -> Result<(), Fault>;
    fn answer(self: Box<Self>, result: Result<(), Fault>, file: &File);
}

struct Order<F, T> {
    doing: String,
    act: F,
    value: Option<T>,
    reply: Option<oneshot::Sender<Result<T, JournalError>>>,
}

impl<T: Send, F: FnMut(&mut Desk) -> Result<T, Fault> + Send> Work for Order<F, T> {
    fn act(&mut self, desk: &mut Desk) -> Result<(), Fault> {
        self.value = Some((self.act)(desk)?);
        Ok(())
    }

    fn answer(self: Box<Self>, result: Result<(), Fault>, file: &File) {
        let Self {
            doing,
            act,
            value,
            reply,
        } = *self;
        // Before the answer: what it holds of the writer must not outlive the answer to it.
        drop(act);
        let result = match (result, value) {
            (Ok(()), Some(value)) => Ok(value),
            (Ok(()), None) => Err(Fault::said("nothing was done", "this is a bug of homestak")),
            (Err(fault), _) => Err(fault),
        };
        if let Some(reply) = reply {
            // Nobody waits any more: the value goes, and a lease in it with it.
            drop(reply.send(result.map_err(|fault| fault.told(&doing, file))));
        }
    }
}

fn serve(mut desk: Desk, file: &File, inbox: &Receiver<Box<dyn Work>>, heartbeat: Duration) {
    let mut last = WallClock.now();
    loop {
        let first = match inbox.recv_timeout(heartbeat) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut batch: Vec<Box<dyn Work>> = first.into_iter().collect();
        batch.extend(inbox.try_iter().take(BATCH - 1));
        let together = batch.len() > 1 && transact(&mut desk, &mut batch).is_ok();
        for mut work in batch {
            let result = if together {
                Ok(())
            } else {
                // Alone, so that each has the result that is its own.
                transact(&mut desk, std::slice::from_mut(&mut work))
            };
            work.answer(result, file);
        }
        let now = WallClock.now();
        // Less than nothing: the clock was set back.
        let recent = Duration::try_from(now.duration_since(last)).is_ok_and(|ago| ago < heartbeat);
        if !recent && !desk.granted.is_empty() {
            last = now;
            beat(&mut desk, now);
        }
    }
}

/// Records that this program lives. When that fails, the next time is soon enough.
fn beat(desk: &mut Desk, now: Timestamp) {
    let done = desk
        .start()
        .and_then(|()| lease::beat(desk, now))
        .and_then(|()| desk.commit());
    if done.is_err() {
        desk.abandon();
    }
}

fn transact(desk: &mut Desk, batch: &mut [Box<dyn Work>]) -> Result<(), Fault> {
    let result = desk
        .start()
        .and_then(|()| batch.iter_mut().try_for_each(|work| work.act(desk)))
        .and_then(|()| desk.commit());
    if result.is_err() {
        desk.abandon();
    }
    result
}
