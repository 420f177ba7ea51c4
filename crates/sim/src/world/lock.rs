//! Lock files such as those in `/var/lock`: shared or exclusive, first come first served, with a
//! timeout.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use homestak_api::runtime::SharedClock;
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

#[derive(Default)]
struct Entry {
    shared: usize,
    exclusive: bool,
    queue: VecDeque<(Mode, oneshot::Sender<LockGuard>)>,
}

impl Entry {
    fn is_free_for(&self, mode: Mode) -> bool {
        match mode {
            Mode::Shared => !self.exclusive,
            Mode::Exclusive => !self.exclusive && self.shared == 0,
        }
    }

    fn take(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.shared += 1,
            Mode::Exclusive => self.exclusive = true,
        }
    }

    fn release(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.shared = self.shared.saturating_sub(1),
            Mode::Exclusive => self.exclusive = false,
        }
    }

    fn is_idle(&self) -> bool {
        self.shared == 0 && !self.exclusive && self.queue.is_empty()
    }
}

/// All locks of a host.
#[derive(Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<HashMap<String, Entry>>>);

/// A held lock. Dropping it releases the lock to the next in the queue.
pub(crate) struct LockGuard {
    /// `None` once it was released.
    locks: Option<Locks>,
    name: String,
    mode: Mode,
}

impl Locks {
    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a lock if it is free.
    pub(crate) fn try_take(&self, name: &str, mode: Mode) -> Option<LockGuard> {
        let mut entries = self.entries();
        let entry = entries.entry(name.to_owned()).or_default();
        if !entry.is_free_for(mode) || !entry.queue.is_empty() {
            return None;
        }
        entry.take(mode);
        Some(self.guard(name, mode))
    }

    /// Waits for a lock. Returns `None` after the timeout.
    pub(crate) async fn take(
        &self,
        name: &str,
        mode: Mode,
        timeout: Duration,
        clock: &SharedClock,
    ) -> Option<LockGuard> {
        let mut turn = {
            let mut entries = self.entries();
            let entry = entries.entry(name.to_owned()).or_default();
            if entry.is_free_for(mode) && entry.queue.is_empty() {
                entry.take(mode);
                return Some(self.guard(name, mode));
            }
            let (sender, turn) = oneshot::channel();
            entry.queue.push_back((mode, sender));
            turn
        };
        tokio::select! {
            biased;
            // Cancel safety: the guard itself is sent, so a lock that is not received is released.
            granted = &mut turn => granted.ok(),
            // Cancel safety: a dropped sleep has no effect.
            () = clock.sleep(timeout) => {
                turn.close();
                // The lock may have been granted at the same time; then it is released.
                drop(turn.try_recv());
                // The next in the queue may be able to take the lock now.
                self.wake(name);
                None
            }
        }
    }

    fn guard(&self, name: &str, mode: Mode) -> LockGuard {
        LockGuard {
            locks: Some(self.clone()),
            name: name.to_owned(),
            mode,
        }
    }

    fn wake(&self, name: &str) {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(name) {
            self.grant(name, entry);
            if entry.is_idle() {
                entries.remove(name);
            }
        }
    }
}

impl Locks {
    /// Grants the lock to those at the front of the queue that can have it.
    fn grant(&self, name: &str, entry: &mut Entry) {
        while let Some((mode, sender)) = entry.queue.front() {
            let mode = *mode;
            if sender.is_closed() {
                entry.queue.pop_front();
                continue;
            }
            if !entry.is_free_for(mode) {
                return;
            }
            let Some((_, sender)) = entry.queue.pop_front() else {
                return;
            };
            entry.take(mode);
            if let Err(mut unwanted) = sender.send(self.guard(name, mode)) {
                // Released here: dropping it would lock `entries` again.
                unwanted.locks = None;
                entry.release(mode);
            }
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let Some(locks) = self.locks.take() else {
            return;
        };
        if let Some(entry) = locks.entries().get_mut(&self.name) {
            entry.release(self.mode);
        }
        locks.wake(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::clock::SteppedClock;

    #[tokio::test]
    async fn an_exclusive_lock_times_out_while_shared_ones_are_held() {
        let stepped = SteppedClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let clock: SharedClock = Arc::new(stepped.clone());
        let locks = Locks::default();
        let first = locks.try_take("lock-1", Mode::Shared);
        assert!(first.is_some() && locks.try_take("lock-1", Mode::Shared).is_some());
        let waiting = locks.take("lock-1", Mode::Exclusive, Duration::from_secs(10), &clock);
        let stepping = stepped.advance(Duration::from_secs(11));
        let (outcome, ()) = tokio::join!(waiting, stepping);
        assert!(outcome.is_none());
        drop(first);
        assert!(locks.try_take("lock-1", Mode::Exclusive).is_some());
    }

    #[tokio::test]
    async fn a_lock_granted_to_someone_who_left_is_free_again() {
        let stepped = SteppedClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let clock: SharedClock = Arc::new(stepped);
        let locks = Locks::default();
        let first = locks.try_take("lock-1", Mode::Exclusive);
        let timeout = Duration::from_secs(10);
        let mut waiting = Box::pin(locks.take("lock-1", Mode::Exclusive, timeout, &clock));
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx)));
        assert!(polled.await.is_pending());
        drop(first);
        drop(waiting);
        assert!(locks.try_take("lock-1", Mode::Exclusive).is_some());
    }
}
