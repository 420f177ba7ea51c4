//! The one clock that can be replaced, so that tests decide how time goes.
//!
//! In: durations. Out: now, and waits.
//! Never: the system's clock read anywhere else.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

/// Tells the time and waits. Everything that waits takes one, so that tests decide how time goes.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Returns now.
    fn now(&self) -> Timestamp;
    /// Waits. Cancel-safe: dropping it has no effect.
    async fn sleep(&self, duration: Duration);
}

/// A clock shared by many.
pub type SharedClock = Arc<dyn Clock>;

/// The clock on the wall.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

#[async_trait]
impl Clock for WallClock {
    #[expect(clippy::disallowed_methods, reason = "this is a clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A clock that runs on tokio's time, so that a paused runtime makes waiting free.
#[derive(Clone, Debug)]
pub struct TestClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl TestClock {
    /// Starts at `start`. Must be called inside a runtime.
    pub fn starting_at(start: Timestamp) -> Self {
        Self {
            start,
            origin: tokio::time::Instant::now(),
        }
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let passed = jiff::SignedDuration::try_from(self.origin.elapsed()).unwrap_or_default();
        self.start.checked_add(passed).unwrap_or(self.start)
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
