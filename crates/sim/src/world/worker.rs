//! The few workers of the privileged daemon, and what happens when they are all busy.
//!
//! In: a request that wants a worker. Out: a worker, sooner or later, or a broken pipe.
//! Never: more requests at work than there are workers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// How long a worker keeps a connection it accepted and has not read from, in seconds.
/// A worker that is blocked longer than this closes it: the proxy then answers 596.
const ACCEPTED_IDLE: f64 = 5.0;

/// How many workers the daemon of a host has.
const WORKERS: usize = 3;

/// What a waiting request is told.
enum Turn {
    Go(usize),
    Broken,
}

struct Waiting {
    tell: oneshot::Sender<Turn>,
    accepted: f64,
}

struct Inner {
    idle: Vec<usize>,
    workers: usize,
    backlog: VecDeque<oneshot::Sender<Turn>>,
    /// A connection each worker accepted besides the one it serves.
    extra: Vec<Option<Waiting>>,
    /// Warnings that leaked into a worker; tasks it starts inherit them.
    warned: Vec<bool>,
}

/// The workers of one host.
#[derive(Clone)]
pub(crate) struct Workers(Arc<Mutex<Inner>>);

/// A worker at work. Dropping it frees the worker.
pub(crate) struct Worker {
    of: Workers,
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

    /// Waits for a worker. `None` is a connection that a blocked worker closed.
    pub(crate) async fn enter(&self, now: Arc<dyn Fn() -> f64 + Send + Sync>) -> Option<Worker> {
        let turn = {
            let mut inner = self.lock();
            if let Some(index) = inner.idle.pop() {
                return Some(self.worker(index, now));
            }
            let (tell, turn) = oneshot::channel();
            inner.backlog.push_back(tell);
            turn
        };
        // Cancel safety: a turn told to a request that went away is noticed by the next release.
        match turn.await {
            Ok(Turn::Go(index)) => Some(self.worker(index, now)),
            Ok(Turn::Broken) | Err(_) => None,
        }
    }

    fn worker(&self, index: usize, now: Arc<dyn Fn() -> f64 + Send + Sync>) -> Worker {
        Worker {
            of: self.clone(),
            index,
            now,
        }
    }

    fn release(&self, index: usize, now: f64) {
        let mut inner = self.lock();
        if let Some(extra) = inner.extra[index].take() {
            if now - extra.accepted > ACCEPTED_IDLE {
                let _ = extra.tell.send(Turn::Broken);
            } else if extra.tell.send(Turn::Go(index)).is_ok() {
                return;
            }
        }
        loop {
            let crowded = inner.backlog.len() > inner.workers;
            let Some(tell) = inner.backlog.pop_front() else {
                inner.idle.push(index);
                return;
            };
            if tell.send(Turn::Go(index)).is_err() {
                continue;
            }
            // A worker that wakes to a crowd accepts one connection more than it serves.
            if crowded && let Some(tell) = inner.backlog.pop_back() {
                inner.extra[index] = Some(Waiting {
                    tell,
                    accepted: now,
                });
            }
            return;
        }
    }

    /// Remembers that a request in this worker warned.
    pub(crate) fn warn(&self, index: usize) {
        if let Some(flag) = self.lock().warned.get_mut(index) {
            *flag = true;
        }
    }

    /// Whether tasks of this worker end with a warning that is not theirs.
    pub(crate) fn has_warned(&self, index: usize) -> bool {
        self.lock().warned.get(index).copied().unwrap_or(false)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let now = (self.now)();
        self.of.release(self.index, now);
    }
}
