//! Limits of retries.
//!
//! Time limits and their defaults are in [`homestak_core::doc::timeouts`].

use std::time::Duration;

use homestak_core::doc::timeouts::Timeouts;

/// Limits of retries.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How often a step is tried when answers are not understood.
    pub tries: u32,
    /// The first pause between two tries; it doubles each time.
    pub pause: Duration,
    /// Time limits of flags and the environment, which override those of the plan.
    pub timeouts: Timeouts,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tries: 5,
            pause: Duration::from_millis(500),
            timeouts: Timeouts::default(),
        }
    }
}
