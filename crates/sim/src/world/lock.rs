//! Locks with holders and queues: files in `/var/lock`, shared or exclusive, with a timeout.
//!
//! In: a name, how it is wanted and for how long to wait. Out: a hold that ends when dropped, or a timeout.
//! Never: a lock that outlives its holder; two exclusive holders.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use homestak_api::runtime::SharedClock;
use tokio::sync::oneshot;

/// How a lock is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

#[derive(Default)]
struct Entry {
    shared: usize,
    exclusive: bool,
    queue: VecDeque<(Mode, oneshot::Sender<()>)>,
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

    fn is_idle(&self) -> bool {
        self.shared == 0 && !self.exclusive && self.queue.is_empty()
    }
}

/// All locks of a host.
#[derive(Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<HashMap<String, Entry>>>);

/// The right to go on. Dropping it passes the lock on.
pub(crate) struct Hold {
    locks: Locks,
    name: String,
    mode: Mode,
}

impl Locks {
    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a lock that is free now.
    pub(crate) fn try_take(&self, name: &str, mode: Mode) -> Option<Hold> {
        let mut entries = self.entries();
        let entry = entries.entry(name.to_owned()).or_default();
        if !entry.is_free_for(mode) || !entry.queue.is_empty() {
            return None;
        }
        entry.take(mode);
        Some(self.hold(name, mode))
    }

    /// Waits for a lock, first come first served. `None` is a timeout.
    pub(crate) async fn take(
        &self,
        name: &str,
        mode: Mode,
        patience: Duration,
        clock: &SharedClock,
    ) -> Option<Hold> {
        let mut turn = {
            let mut entries = self.entries();
            let entry = entries.entry(name.to_owned()).or_default();
            if entry.is_free_for(mode) && entry.queue.is_empty() {
                entry.take(mode);
                return Some(self.hold(name, mode));
            }
            let (give, turn) = oneshot::channel();
            entry.queue.push_back((mode, give));
            turn
        };
        tokio::select! {
            biased;
            // Cancel safety: a turn that was given and not taken is passed on below or by `pass_on`.
            given = &mut turn => given.ok().map(|()| self.hold(name, mode)),
            // Cancel safety: a dropped sleep has no effect.
            () = clock.sleep(patience) => {
                turn.close();
                // The turn may have been given in the same moment; then it is ours to return.
                if turn.try_recv().is_ok() {
                    drop(self.hold(name, mode));
                } else {
                    // Whoever waits behind this one may be able to go now.
                    self.wake(name);
                }
                None
            }
        }
    }

    fn hold(&self, name: &str, mode: Mode) -> Hold {
        Hold {
            locks: self.clone(),
            name: name.to_owned(),
            mode,
        }
    }

    fn wake(&self, name: &str) {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(name) {
            pass_on(entry);
            if entry.is_idle() {
                entries.remove(name);
            }
        }
    }
}

fn pass_on(entry: &mut Entry) {
    while let Some((mode, _)) = entry.queue.front() {
        let mode = *mode;
        let dead = entry
            .queue
            .front()
            .is_some_and(|(_, give)| give.is_closed());
        if !dead && !entry.is_free_for(mode) {
            return;
        }
        let Some((_, give)) = entry.queue.pop_front() else {
            return;
        };
        if !dead && give.send(()).is_ok() {
            entry.take(mode);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        {
            let mut entries = self.locks.entries();
            if let Some(entry) = entries.get_mut(&self.name) {
                match self.mode {
                    Mode::Shared => entry.shared = entry.shared.saturating_sub(1),
                    Mode::Exclusive => entry.exclusive = false,
                }
            }
        }
        self.locks.wake(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::clock::SteppedClock;

    #[tokio::test]
    async fn shared_holders_keep_an_exclusive_one_waiting_until_the_timeout() {
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
}
