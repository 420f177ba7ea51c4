//! How often and how long something is tried.
//!
//! The time limits themselves, with their defaults, are in [`homestak_core::doc::timeouts`].

use std::time::Duration;

use homestak_core::doc::timeouts::Timeouts;

/// How often and how long something is tried.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How often a step is tried whose answer makes no sense.
    pub tries: u32,
    /// The first pause between two tries; each is twice as long as the one before.
    pub pause: Duration,
    /// Time limits of flags and the environment; they come before those of the plan.
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
