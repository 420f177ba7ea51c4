//! Limits how often someone may fail to authenticate, by address and by token.
//!
//! Each key has a bucket of failures that empties over time. Memory is bounded: when there are too
//! many keys, those with the fewest failures are forgotten.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// Failures allowed at once; a person who mistypes, or a node whose token was just replaced.
const BURST: f64 = 10.0;
/// One more failure is allowed after this time.
const REFILL: Duration = Duration::from_secs(6);
/// Keys that are remembered. An address is about 100 bytes here.
const KEYS: usize = 20_000;

struct Bucket {
    failures: f64,
    at: Timestamp,
}

/// Who failed how often.
#[derive(Default)]
pub(crate) struct Throttle(Mutex<BTreeMap<String, Bucket>>);

impl Bucket {
    fn current(&self, now: Timestamp) -> f64 {
        let passed = now.duration_since(self.at).as_secs_f64().max(0.0);
        (self.failures - passed / REFILL.as_secs_f64()).max(0.0)
    }
}

impl Throttle {
    /// Returns how long to wait before another attempt is looked at; `None` when it is now.
    pub(crate) fn wait(&self, key: &str, now: Timestamp) -> Option<Duration> {
        let buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = buckets.get(key)?.current(now);
        (failures >= BURST).then(|| REFILL.mul_f64((failures - BURST + 1.0).max(0.1)))
    }

    /// Records a failure.
    pub(crate) fn fail(&self, key: &str, now: Timestamp) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= KEYS && !buckets.contains_key(key) {
            buckets.retain(|_, bucket| bucket.current(now) >= 1.0);
            if buckets.len() >= KEYS {
                // All of them failed lately: keep those that are held back already.
                buckets.retain(|_, bucket| bucket.current(now) >= BURST);
            }
            if buckets.len() >= KEYS {
                return;
            }
        }
        let failures = buckets.get(key).map_or(0.0, |bucket| bucket.current(now));
        let bucket = Bucket {
            // An attempt that is held back is not looked at, so it does not count.
            failures: (failures + 1.0).min(BURST + 1.0),
            at: now,
        };
        buckets.insert(key.to_owned(), bucket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    #[test]
    fn after_ten_failures_an_address_waits_and_others_do_not() {
        let throttle = Throttle::default();
        for _ in 0..9 {
            throttle.fail("a", at(0));
        }
        assert_eq!(throttle.wait("a", at(0)), None);
        throttle.fail("a", at(0));
        assert!(throttle.wait("a", at(0)).is_some());
        assert_eq!(throttle.wait("b", at(0)), None);
        assert_eq!(throttle.wait("a", at(60)), None);
    }

    #[test]
    fn memory_is_bounded_and_who_is_held_back_stays_so() {
        let throttle = Throttle::default();
        for _ in 0..11 {
            throttle.fail("guilty", at(0));
        }
        for n in 0..3 * KEYS {
            throttle.fail(&n.to_string(), at(0));
        }
        assert!(throttle.0.lock().expect("free").len() <= KEYS);
        assert!(throttle.wait("guilty", at(0)).is_some());
    }
}
