//! Random numbers: jitter, so that machines do not contact a server all at once, and unique names.

use std::io::Read as _;
use std::time::Duration;

use crate::clock;

/// Returns a random number.
fn number() -> u64 {
    let mut bytes = [0; 8];
    let read = fs_err::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    match read {
        Ok(()) => u64::from_le_bytes(bytes),
        // Sufficient to make machines differ.
        Err(_) => {
            clock::uptime().wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(std::process::id())
        }
    }
}

/// Returns 16 random hexadecimal digits, to make a name unique.
pub(crate) fn hex_id() -> String {
    format!("{:016x}", number())
}

/// Returns a random duration between 50 % and 150 % of the given one.
pub(crate) fn around(duration: Duration) -> Duration {
    spread(duration, number())
}

fn spread(duration: Duration, random: u64) -> Duration {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 2);
    let more = random % milliseconds.saturating_add(1);
    Duration::from_millis(milliseconds / 2 + more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_spread_evenly_around_its_value() {
        let second = Duration::from_secs(1);
        assert_eq!(spread(second, 0), second / 2);
        assert_eq!(spread(second, 1_000), second * 3 / 2);
        assert_eq!(spread(second, 1_001), second / 2);
        assert_eq!(spread(Duration::ZERO, 7), Duration::ZERO);
        assert_ne!(hex_id(), hex_id());
    }
}
