//! The clock that runs and clients wait by.
//!
//! In: how fast time goes. Out: now, the clock, and patience that goes by it.
//! Never: another clock below; everything else takes time as a parameter.

use std::sync::Arc;

use homestak_api::runtime::{SharedClock, WallClock};
use homestak_providers::pve::PveSettings;
use jiff::Timestamp;

/// The one clock of a program.
#[derive(Clone)]
pub struct Time {
    clock: SharedClock,
    /// How many times faster it goes than on the wall.
    speed: f64,
}

impl Time {
    /// Takes the time from the wall.
    pub fn wall() -> Self {
        Self {
            clock: Arc::new(WallClock),
            speed: 1.0,
        }
    }

    /// Lets it go faster, so that tests need not wait.
    #[cfg(debug_assertions)]
    pub fn hurried(speed: f64) -> Self {
        Self {
            clock: Arc::new(crate::hurry::Hurried::new(speed)),
            speed,
        }
    }

    /// Returns now.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the clock.
    pub fn clock(&self) -> SharedClock {
        self.clock.clone()
    }

    /// Returns the settings of a client. Patience with answers goes by the same clock.
    pub(crate) fn patient(&self, mut settings: PveSettings) -> PveSettings {
        settings.limits.answer = settings.limits.answer.div_f64(self.speed);
        settings
    }
}
