//! The clocks of the program; nothing else reads the time.

use std::time::Instant;

use homestak_api::runtime::{Clock as _, WallClock};
use jiff::Timestamp;

/// Returns a monotonic time stamp.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Returns the time of day.
pub(crate) fn now() -> Timestamp {
    WallClock.now()
}

/// Returns the time of day and the uptime, which cannot be set.
pub(crate) fn now_and_uptime() -> homestak_core::converge::ClockReading {
    homestak_core::converge::ClockReading {
        time: now(),
        uptime: uptime(),
    }
}

/// Returns how long the machine has been up, including suspension, in milliseconds.
pub(crate) fn uptime() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds * 1_000 + nanoseconds / 1_000_000
}

/// Returns the id of this boot.
pub(crate) fn boot() -> String {
    let text = fs_err::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Sleeps; for conditions that are polled.
pub(crate) fn sleep(milliseconds: u64) {
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}
