//! Limits concurrent changes: one per guest, and an adaptive number per storage.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use homestak_engine::ports::GuestId;
use tokio::sync::{Notify, OwnedMutexGuard};

use super::notifier::Notifier;

/// Limits concurrent changes.
pub(super) struct ConcurrencyLimiter {
    guests: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    limits: Mutex<HashMap<String, Arc<AdaptiveLimit>>>,
    start: usize,
    pub(super) notifier: Notifier,
}

/// The most changes at once on one bottleneck, however well it goes.
const MOST: f64 = 8.0;

impl ConcurrencyLimiter {
    /// Lets this many through each bottleneck at first.
    pub(super) fn new(start: usize) -> Self {
        Self {
            guests: Mutex::default(),
            limits: Mutex::default(),
            start: start.max(1),
            notifier: Notifier::default(),
        }
    }

    /// Locks a guest for the duration of a change.
    pub(super) async fn guest(&self, id: impl Into<GuestId>) -> OwnedMutexGuard<()> {
        let id: GuestId = id.into();
        self.exclusive(&format!("guest {id}"), "another change of the guest")
            .await
    }

    /// Waits for exclusive access to `what`. `rival` describes what is being waited for.
    pub(super) async fn exclusive(&self, what: &str, rival: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = locked(&self.guests);
            // Locks that are neither held nor waited for are only in this map.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(what.to_owned()).or_default())
        };
        if let Ok(turn) = Arc::clone(&turn).try_lock_owned() {
            return turn;
        }
        self.notifier.waiting(rival);
        turn.lock_owned().await
    }

    /// Waits for a permit to change a storage of a host.
    pub(super) async fn storage(&self, host: &str, storage: &str) -> Permit {
        let waited = || format!("other changes on storage {storage} of {host}");
        self.bottleneck(&format!("storage {host} {storage}"), waited)
            .await
    }

    /// Waits for a permit to resize a disk. It is short, so it does not wait behind copies.
    pub(super) async fn disk_growth(&self, host: &str, storage: &str) -> Permit {
        let waited = || format!("other disk resizes on storage {storage} of {host}");
        self.bottleneck(&format!("growth {host} {storage}"), waited)
            .await
    }

    async fn bottleneck(&self, name: &str, waited: impl FnOnce() -> String) -> Permit {
        let limit = {
            let mut limits = locked(&self.limits);
            let fresh = || Arc::new(AdaptiveLimit::new(self.start));
            Arc::clone(limits.entry(name.to_owned()).or_insert_with(fresh))
        };
        if limit.take() {
            return Permit { limit };
        }
        self.notifier.waiting(waited());
        limit.acquire().await
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An adaptive limit: increased after each success until the first timeout, then once per round of
/// successes; halved after a timeout.
struct AdaptiveLimit {
    state: Mutex<LimitState>,
    free: Notify,
}

struct LimitState {
    limit: f64,
    busy: usize,
    /// Whether there was a timeout; until then the limit grows fast.
    congested: bool,
}

impl AdaptiveLimit {
    fn new(start: usize) -> Self {
        let start = u32::try_from(start).unwrap_or(1);
        Self {
            state: Mutex::new(LimitState {
                limit: f64::from(start).clamp(1.0, MOST),
                busy: 0,
                congested: false,
            }),
            free: Notify::new(),
        }
    }

    async fn acquire(self: &Arc<Self>) -> Permit {
        loop {
            let freed = self.free.notified();
            tokio::pin!(freed);
            // Registered before looking, so that a turn freed in between is not missed.
            freed.as_mut().enable();
            if self.take() {
                return Permit {
                    limit: Arc::clone(self),
                };
            }
            // Cancel safety: a wake-up that is dropped here is passed on by tokio.
            freed.await;
        }
    }

    fn take(&self) -> bool {
        let mut state = locked(&self.state);
        let busy = u32::try_from(state.busy).map_or(f64::MAX, f64::from);
        let free = busy + 1.0 <= state.limit;
        if free {
            state.busy += 1;
        }
        free
    }
}

/// A permit of an adaptive limit.
pub(super) struct Permit {
    limit: Arc<AdaptiveLimit>,
}

impl Permit {
    /// Reports the result.
    pub(super) fn report(&self, outcome: PermitOutcome) {
        let mut state = locked(&self.limit.state);
        state.congested |= outcome == PermitOutcome::Congested;
        let step = if state.congested {
            1.0 / state.limit
        } else {
            1.0
        };
        state.limit = match outcome {
            PermitOutcome::Succeeded => (state.limit + step).min(MOST),
            PermitOutcome::Congested => (state.limit / 2.0).max(1.0),
        };
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = locked(&self.limit.state);
        state.busy = state.busy.saturating_sub(1);
        drop(state);
        // Wakes all: the limit may have grown by more than this permit.
        self.limit.free.notify_waiters();
    }
}

/// The result of a change under a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitOutcome {
    /// Well.
    Succeeded,
    /// A lock timed out.
    Congested,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_of_a_guest_are_exclusive() {
        let limiter = ConcurrencyLimiter::new(2);
        let first = limiter.guest(100).await;
        let other = limiter.guest(101).await;
        let mut waiting = std::pin::pin!(limiter.guest(100));
        assert!(futures_poll(waiting.as_mut()).is_none());
        drop((first, other));
        let _second = waiting.await;
        assert_eq!(locked(&limiter.guests).len(), 2);
        let _third = limiter.guest(102).await;
        assert_eq!(
            locked(&limiter.guests).len(),
            2,
            "what nobody holds is forgotten"
        );
    }

    #[tokio::test]
    async fn the_storage_limit_adapts_to_timeouts_and_successes() {
        let limiter = ConcurrencyLimiter::new(2);
        let first = limiter.storage("pve1", "local").await;
        let second = limiter.storage("pve1", "local").await;
        let mut third = std::pin::pin!(limiter.storage("pve1", "local"));
        assert!(futures_poll(third.as_mut()).is_none());
        first.report(PermitOutcome::Congested);
        drop(first);
        assert!(
            futures_poll(third.as_mut()).is_none(),
            "the limit is one now"
        );
        drop(second);
        let third = third.await;
        for _ in 0..3 {
            third.report(PermitOutcome::Succeeded);
        }
        let _fourth = limiter.storage("pve1", "local").await;
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
