//! The clocks of a World: real time, accelerated, or stepped explicitly.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::{Clock, SharedClock, WallClock};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;

/// The pace of simulated time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Real time.
    Real,
    /// Real time multiplied by this factor.
    Accelerated(f64),
    /// Time advances only when [`SteppedClock::advance`] is called.
    Stepped,
}

/// The wall clock, accelerated by a factor.
pub(crate) struct AcceleratedClock {
    wall: SharedClock,
    origin: Timestamp,
    /// The time of this clock when the wall clock showed `origin`.
    start: Timestamp,
    factor: f64,
}

impl AcceleratedClock {
    pub(crate) fn new(wall: SharedClock, factor: f64, start: Option<Timestamp>) -> Self {
        let origin = wall.now();
        Self {
            origin,
            start: start.unwrap_or(origin),
            wall,
            factor: if factor > 0.0 { factor } else { 1.0 },
        }
    }
}

#[async_trait]
impl Clock for AcceleratedClock {
    fn now(&self) -> Timestamp {
        let passed = self.wall.now().duration_since(self.origin).as_secs_f64() * self.factor;
        self.start
            .checked_add(SignedDuration::from_secs_f64(passed))
            .unwrap_or(self.start)
    }

    async fn sleep(&self, duration: Duration) {
        self.wall.sleep(duration.div_f64(self.factor)).await;
    }
}

struct Timer {
    due: Timestamp,
    order: u64,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.order) == (other.due, other.order)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

struct Stepped {
    now: Timestamp,
    order: u64,
    timers: BinaryHeap<Reverse<Timer>>,
}

/// A clock that only advances when it is stepped.
///
/// Timers that are due at the same time fire in the order they were set, so runs with the same
/// seed are identical.
#[derive(Clone)]
pub struct SteppedClock(Arc<Mutex<Stepped>>);

impl SteppedClock {
    /// Creates a clock with this start time.
    pub fn starting_at(start: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(Stepped {
            now: start,
            order: 0,
            timers: BinaryHeap::new(),
        })))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Stepped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the next timer is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        let mut inner = self.lock();
        while inner
            .timers
            .peek()
            .is_some_and(|timer| timer.0.wake.is_closed())
        {
            inner.timers.pop();
        }
        inner.timers.peek().map(|timer| timer.0.due)
    }

    /// Fires the next timer that is due by `until`. Without one, advances to `until` and returns
    /// false.
    pub fn fire_next(&self, until: Timestamp) -> bool {
        let mut inner = self.lock();
        loop {
            match inner.timers.peek() {
                Some(timer) if timer.0.due <= until => {}
                _ => {
                    inner.now = inner.now.max(until);
                    return false;
                }
            }
            let Some(Reverse(timer)) = inner.timers.pop() else {
                return false;
            };
            inner.now = inner.now.max(timer.due);
            if timer.wake.send(()).is_ok() {
                return true;
            }
        }
    }

    /// Advances to a time: fires the due timers in order and lets tasks run in between.
    ///
    /// Requires a current-thread runtime. There, every ready task has run after a few yields, so
    /// each timer sees the effects of the one before it.
    pub async fn advance_to(&self, until: Timestamp) {
        settle().await;
        while self.fire_next(until) {
            settle().await;
        }
    }

    /// Advances by a duration.
    pub async fn advance(&self, by: Duration) {
        let until = self.now() + SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        self.advance_to(until).await;
    }
}

/// Lets every ready task run. Chains of tasks that wake each other are shorter than the loop.
pub(crate) async fn settle() {
    for _ in 0..24 {
        tokio::task::yield_now().await;
    }
}

#[async_trait]
impl Clock for SteppedClock {
    fn now(&self) -> Timestamp {
        self.lock().now
    }

    async fn sleep(&self, duration: Duration) {
        let woken = {
            let mut inner = self.lock();
            let due = inner.now + SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
            let (wake, woken) = oneshot::channel();
            inner.order += 1;
            let order = inner.order;
            inner.timers.push(Reverse(Timer { due, order, wake }));
            woken
        };
        // Cancel safety: a timer whose receiver was dropped is skipped.
        let _ = woken.await;
    }
}

/// Creates the clock for a pace, and the handle to step it if it is stepped.
pub(crate) fn make(pace: Pace, start: Option<Timestamp>) -> (SharedClock, Option<SteppedClock>) {
    match pace {
        Pace::Real if start.is_none() => (Arc::new(WallClock), None),
        Pace::Real => {
            let clock = AcceleratedClock::new(Arc::new(WallClock), 1.0, start);
            (Arc::new(clock), None)
        }
        Pace::Accelerated(factor) => {
            let clock = AcceleratedClock::new(Arc::new(WallClock), factor, start);
            (Arc::new(clock), None)
        }
        Pace::Stepped => {
            let clock = SteppedClock::starting_at(start.unwrap_or(DEFAULT_START));
            (Arc::new(clock.clone()), Some(clock))
        }
    }
}

/// Default start of stepped time: 2026-01-01, so that ids are the same in each run.
const DEFAULT_START: Timestamp = Timestamp::constant(1_767_225_600, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn timers_fire_in_order_and_only_when_time_is_stepped() {
        let clock = SteppedClock::starting_at(DEFAULT_START);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let spawner = homestak_api::runtime::Spawner::default();
        for seconds in [3_u64, 1, 2] {
            let (clock, seen) = (clock.clone(), seen.clone());
            spawner.spawn("sleeper", async move {
                clock.sleep(Duration::from_secs(seconds)).await;
                seen.lock().unwrap().push(seconds);
            });
        }
        settle().await;
        assert!(seen.lock().unwrap().is_empty());
        clock.advance(Duration::from_secs(2)).await;
        assert_eq!(*seen.lock().unwrap(), [1, 2]);
    }
}
