//! A clock that runs faster than real time.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::{Clock, SharedClock};
use jiff::Timestamp;

pub struct FastClock {
    start: tokio::time::Instant,
    factor: u32,
}

impl FastClock {
    pub fn new(factor: u32) -> Self {
        Self {
            start: tokio::time::Instant::now(),
            factor,
        }
    }
}

#[async_trait]
impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        let passed = self.start.elapsed() * self.factor;
        let origin = Timestamp::from_second(1_800_000_000).expect("a time");
        origin + jiff::SignedDuration::try_from(passed).expect("a short test")
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration / self.factor).await;
    }
}

/// A clock that is ahead of another and runs as fast.
pub struct ClockAhead {
    of: SharedClock,
    ahead: Mutex<Duration>,
}

impl ClockAhead {
    pub fn new(of: &SharedClock, ahead: Duration) -> Self {
        Self {
            of: of.clone(),
            ahead: Mutex::new(ahead),
        }
    }

    /// Moves it further ahead.
    pub fn jump(&self, by: Duration) {
        *self.ahead.lock().expect("a clock") += by;
    }
}

#[async_trait]
impl Clock for ClockAhead {
    fn now(&self) -> Timestamp {
        let ahead = *self.ahead.lock().expect("a clock");
        self.of.now() + jiff::SignedDuration::try_from(ahead).expect("a short time")
    }

    async fn sleep(&self, duration: Duration) {
        self.of.sleep(duration).await;
    }
}
