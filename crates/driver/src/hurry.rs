//! Time that goes faster than on the wall, so that tests need not wait. Only debug builds have it.
//!
//! In: how many times faster. Out: a clock that starts at the present.
//! Never: in a program that people use.

use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::{Clock, WallClock};
use jiff::{SignedDuration, Timestamp};

/// A clock that hurries.
pub(crate) struct Hurried {
    speed: f64,
    origin: Timestamp,
}

impl Hurried {
    /// Starts now.
    pub(crate) fn new(speed: f64) -> Self {
        Self {
            speed,
            origin: WallClock.now(),
        }
    }
}

#[async_trait]
impl Clock for Hurried {
    fn now(&self) -> Timestamp {
        let passed = WallClock.now().duration_since(self.origin).as_secs_f64();
        let passed = SignedDuration::from_secs_f64(passed * self.speed);
        self.origin.checked_add(passed).unwrap_or(self.origin)
    }

    async fn sleep(&self, duration: Duration) {
        WallClock.sleep(duration.div_f64(self.speed)).await;
    }
}
