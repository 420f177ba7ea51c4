//! The one clock of the command line.
//!
//! In: nothing. Out: now, and the clock that everything below waits by.
//! Never: called below the edge; everything else takes time as a parameter.

use std::sync::Arc;

use homestak_api::runtime::{SharedClock, WallClock};
use homestak_providers::pve::PveSettings;

/// Returns now.
#[expect(clippy::disallowed_methods, reason = "this is the edge's one clock")]
pub(crate) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Returns the clock that runs and clients wait by.
pub(crate) fn shared() -> SharedClock {
    #[cfg(debug_assertions)]
    if let Some(speed) = crate::settings::hurry() {
        return Arc::new(crate::hurry::Hurried::new(speed));
    }
    Arc::new(WallClock)
}

/// Returns the settings of a client. Patience with answers goes by the same clock as the rest.
pub(crate) fn patient(settings: PveSettings) -> PveSettings {
    #[cfg(debug_assertions)]
    if let Some(speed) = crate::settings::hurry() {
        let mut settings = settings;
        settings.limits.answer = settings.limits.answer.div_f64(speed);
        return settings;
    }
    settings
}
