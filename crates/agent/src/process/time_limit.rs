//! A time limit for everything that a thread does. Programs end with it, and waits check it; what
//! reverts changes is not limited.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::clock;

thread_local! {
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Limits this thread until it is dropped.
pub(crate) struct TimeLimit {
    before: Option<Instant>,
}

impl TimeLimit {
    /// Starts a time limit.
    pub(crate) fn new(longest: Duration) -> Self {
        let until = clock::instant().checked_add(longest);
        Self {
            before: LIMIT.replace(until),
        }
    }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        LIMIT.set(self.before);
    }
}

/// Returns how much time this thread has left; `None` without a limit.
pub(crate) fn time_left() -> Option<Duration> {
    let until = LIMIT.get()?;
    Some(until.saturating_duration_since(clock::instant()))
}

/// Returns whether the limit of this thread is exceeded.
pub(crate) fn is_exceeded() -> bool {
    time_left().is_some_and(|left| left.is_zero())
}

/// Does something that must be completed: it reverts changes.
pub(crate) fn without_time_limit<T>(work: impl FnOnce() -> T) -> T {
    let _unlimited = TimeLimit {
        before: LIMIT.replace(None),
    };
    work()
}
