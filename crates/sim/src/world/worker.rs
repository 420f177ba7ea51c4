//! The workers of the privileged daemon. Requests queue while all of them are busy, and some of the
//! queued connections are closed, as in Proxmox VE.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Seconds after which a worker closes a connection that it accepted but did not read from, because
/// it was blocked. The proxy then answers 596.
const ACCEPTED_IDLE: f64 = 5.0;

/// Number of workers per host.
const WORKERS: usize = 3;

/// The end of a request's wait for a worker.
enum Assignment {
    Serve(usize),
    Closed,
}

struct Waiting {
    sender: oneshot::Sender<Assignment>,
    accepted: f64,
}

struct Inner {
    idle: Vec<usize>,
    workers: usize,
    backlog: VecDeque<oneshot::Sender<Assignment>>,
    /// The additional connection that each worker accepted besides the one it serves.
    extra: Vec<Option<Waiting>>,
    /// Whether a request warned in each worker; its later tasks inherit the warning.
    warned: Vec<bool>,
}

/// The workers of one host.
#[derive(Clone)]
pub(crate) struct Workers(Arc<Mutex<Inner>>);

/// A busy worker. Dropping it releases the worker.
pub(crate) struct Worker {
    workers: Workers,
    pub(crate) index: usize,
    now: Arc<dyn Fn() -> f64 + Send + Sync>,
}

impl Default for Workers {
    fn default() -> Self {
        Self::new(WORKERS)
    }
}

impl Workers {
    pub(crate) fn new(workers: usize) -> Self {
        let workers = workers.max(1);
        Self(Arc::new(Mutex::new(Inner {
            idle: (0..workers).rev().collect(),
            workers,
            backlog: VecDeque::new(),
            extra: (0..workers).map(|_| None).collect(),
            warned: vec![false; workers],
        })))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a worker. Returns `None` if a blocked worker closed the connection.
    pub(crate) async fn enter(&self, now: Arc<dyn Fn() -> f64 + Send + Sync>) -> Option<Worker> {
        let receiver = {
            let mut inner = self.lock();
            if let Some(index) = inner.idle.pop() {
                return Some(self.worker(index, now));
            }
            let (sender, receiver) = oneshot::channel();
            inner.backlog.push_back(sender);
            receiver
        };
        // Cancel safety: `release` skips requests whose receiver was dropped.
        match receiver.await {
            Ok(Assignment::Serve(index)) => Some(self.worker(index, now)),
            Ok(Assignment::Closed) | Err(_) => None,
        }
    }

    fn worker(&self, index: usize, now: Arc<dyn Fn() -> f64 + Send + Sync>) -> Worker {
        Worker {
            workers: self.clone(),
            index,
            now,
        }
    }

    fn release(&self, index: usize, now: f64) {
        let mut inner = self.lock();
        if let Some(extra) = inner.extra[index].take() {
            if now - extra.accepted > ACCEPTED_IDLE {
                let _ = extra.sender.send(Assignment::Closed);
            } else if extra.sender.send(Assignment::Serve(index)).is_ok() {
                return;
            }
        }
        loop {
            let crowded = inner.backlog.len() > inner.workers;
            let Some(sender) = inner.backlog.pop_front() else {
                inner.idle.push(index);
                return;
            };
            if sender.send(Assignment::Serve(index)).is_err() {
                continue;
            }
            // With a long backlog, a worker accepts one connection more than it serves.
            if crowded && let Some(sender) = inner.backlog.pop_back() {
                inner.extra[index] = Some(Waiting {
                    sender,
                    accepted: now,
                });
            }
            return;
        }
    }

    /// Records that a request in this worker warned.
    pub(crate) fn warn(&self, index: usize) {
        if let Some(flag) = self.lock().warned.get_mut(index) {
            *flag = true;
        }
    }

    /// Whether tasks of this worker inherit a warning.
    pub(crate) fn has_warned(&self, index: usize) -> bool {
        self.lock().warned.get(index).copied().unwrap_or(false)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let now = (self.now)();
        self.workers.release(self.index, now);
    }
}
