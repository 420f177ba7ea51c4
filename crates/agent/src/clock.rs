//! The one clock of the program.
//!
//! In: nothing. Out: now.
//! Never: asked anywhere else.

use std::time::Instant;

use homestak_api::runtime::{Clock as _, WallClock};
use jiff::Timestamp;

/// Returns a moment that others can be measured from, whatever happens to the clock.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Returns now.
pub(crate) fn now() -> Timestamp {
    WallClock.now()
}
