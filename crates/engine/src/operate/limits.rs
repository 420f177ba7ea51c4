//! How often and how long something is tried.
//!
//! In: defaults. Out: [`Limits`].
//! Never: how long a guest may take to boot; the step that waits for it says.

use std::time::Duration;

/// How often and how long something is tried.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How often a step is tried when the other side is busy or away.
    pub tries: u32,
    /// The first pause between two tries; each is twice as long as the one before.
    pub pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tries: 5,
            pause: Duration::from_millis(500),
        }
    }
}
