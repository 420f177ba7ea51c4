//! The one clock of the program.
//!
//! In: nothing. Out: now.
//! Never: asked anywhere else.

use homestak_api::runtime::{Clock as _, WallClock};
use jiff::Timestamp;

/// Returns now.
pub(crate) fn now() -> Timestamp {
    WallClock.now()
}
