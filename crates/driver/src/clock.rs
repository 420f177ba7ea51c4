//! The clock that runs and clients use. Everything below the driver takes it as a parameter.

use std::sync::Arc;

use homestak_api::runtime::{SharedClock, WallClock};
use homestak_providers::pve::PveSettings;
use jiff::Timestamp;

/// The clock of the program.
#[derive(Clone)]
pub struct ProgramClock {
    clock: SharedClock,
    /// How many times faster it runs than real time.
    speed: f64,
}

impl ProgramClock {
    /// Uses real time.
    pub fn wall() -> Self {
        Self {
            clock: Arc::new(WallClock),
            speed: 1.0,
        }
    }

    /// Runs faster than real time, so that tests need not wait.
    #[cfg(debug_assertions)]
    pub fn accelerated(speed: f64) -> Self {
        Self {
            clock: Arc::new(accelerated::AcceleratedClock::new(speed)),
            speed,
        }
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the clock.
    pub fn clock(&self) -> SharedClock {
        self.clock.clone()
    }

    /// Scales the time limit of a client's requests to this clock.
    pub(crate) fn scale(&self, mut settings: PveSettings) -> PveSettings {
        settings.limits.answer = settings.limits.answer.div_f64(self.speed);
        settings
    }
}

/// A clock that runs faster than real time. Debug builds only.
#[cfg(debug_assertions)]
mod accelerated {
    use std::time::Duration;

    use async_trait::async_trait;
    use homestak_api::runtime::{Clock, WallClock};
    use jiff::{SignedDuration, Timestamp};

    pub(super) struct AcceleratedClock {
        speed: f64,
        origin: Timestamp,
    }

    impl AcceleratedClock {
        pub(super) fn new(speed: f64) -> Self {
            Self {
                speed,
                origin: WallClock.now(),
            }
        }
    }

    #[async_trait]
    impl Clock for AcceleratedClock {
        fn now(&self) -> Timestamp {
            let passed = WallClock.now().duration_since(self.origin).as_secs_f64();
            let passed = SignedDuration::from_secs_f64(passed * self.speed);
            self.origin.checked_add(passed).unwrap_or(self.origin)
        }

        async fn sleep(&self, duration: Duration) {
            WallClock.sleep(duration.div_f64(self.speed)).await;
        }
    }
}
