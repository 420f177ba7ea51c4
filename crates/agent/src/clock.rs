//! The clock of the program; nothing else asks for the time.

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

/// Returns now, by the time of day and by what nobody can set.
pub(crate) fn both() -> homestak_core::converge::ClockReading {
    homestak_core::converge::ClockReading {
        time: now(),
        uptime: uptime(),
    }
}

/// Returns how long the machine has been up, in milliseconds; suspended or not, and whatever the
/// time of day is set to.
pub(crate) fn uptime() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds * 1_000 + nanoseconds / 1_000_000
}

/// Returns what this boot of the machine is called.
pub(crate) fn boot() -> String {
    let text = fs_err::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Waits for a moment: what is waited for is looked at again and again.
pub(crate) fn moment(milliseconds: u64) {
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}
