//! Limits authentication failures by address and by token.
//!
//! Each key has a bucket of failures that empties over time. Memory is bounded: when there are too
//! many keys, those with the fewest failures are forgotten.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::listen::limited_as;

/// Failures allowed in a row: a typing error, or a node whose token was just replaced.
const BURST: f64 = 10.0;
/// One more failure is allowed after this time.
const REFILL: Duration = Duration::from_secs(6);
/// Most keys in memory, about 100 bytes each.
const KEYS: usize = 20_000;

struct Bucket {
    failures: f64,
    at: Timestamp,
}

/// What failures are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ThrottleKey {
    /// An address, or a network of IPv6: see [`ThrottleKey::of`].
    Address(IpAddr),
    /// A keyed hash of the token: collisions cannot be computed without the key.
    Token(u64),
}

/// Who failed how often.
#[derive(Default)]
pub(crate) struct Throttle {
    buckets: Mutex<BTreeMap<ThrottleKey, Bucket>>,
    hasher: RandomState,
}

impl ThrottleKey {
    /// Returns what failures of an address are counted by.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Address(limited_as(address))
    }
}

impl Bucket {
    fn current(&self, now: Timestamp) -> f64 {
        let passed = now.duration_since(self.at).as_secs_f64().max(0.0);
        (self.failures - passed / REFILL.as_secs_f64()).max(0.0)
    }
}

impl Throttle {
    /// Returns what failures with a token are counted by.
    pub(crate) fn token(&self, token: &str) -> ThrottleKey {
        ThrottleKey::Token(self.hasher.hash_one(token))
    }

    /// Returns how long to wait before the next attempt is processed; `None` for no wait.
    pub(crate) fn wait(&self, key: ThrottleKey, now: Timestamp) -> Option<Duration> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = buckets.get(&key)?.current(now);
        (failures >= BURST).then(|| REFILL.mul_f64((failures - BURST + 1.0).max(0.1)))
    }

    /// Records a failure.
    pub(crate) fn fail(&self, key: ThrottleKey, now: Timestamp) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= KEYS && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| bucket.current(now) >= 1.0);
            if buckets.len() >= KEYS {
                // All of them failed recently: keep those that are throttled already.
                buckets.retain(|_, bucket| bucket.current(now) >= BURST);
            }
            if buckets.len() >= KEYS {
                return;
            }
        }
        let failures = buckets.get(&key).map_or(0.0, |bucket| bucket.current(now));
        let bucket = Bucket {
            // A throttled attempt is not processed, so it does not count.
            failures: (failures + 1.0).min(BURST + 1.0),
            at: now,
        };
        buckets.insert(key, bucket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn address(last: u8) -> ThrottleKey {
        ThrottleKey::Address([127, 0, 0, last].into())
    }

    #[test]
    fn after_ten_failures_an_address_waits_and_others_do_not() {
        let throttle = Throttle::default();
        for _ in 0..9 {
            throttle.fail(address(1), at(0));
        }
        assert_eq!(throttle.wait(address(1), at(0)), None);
        throttle.fail(address(1), at(0));
        assert!(throttle.wait(address(1), at(0)).is_some());
        assert_eq!(throttle.wait(address(2), at(0)), None);
        assert_eq!(throttle.wait(address(1), at(60)), None);
    }

    #[test]
    fn another_address_of_the_same_ipv6_network_waits_too() {
        let throttle = Throttle::default();
        let key = |n: u16| ThrottleKey::of([0x2001, 0xdb8, 0, n / 100, 0, 0, 0, n].into());
        for n in 0..10 {
            throttle.fail(key(n), at(0));
        }
        assert!(throttle.wait(key(11), at(0)).is_some());
        assert_eq!(throttle.wait(key(100), at(0)), None);
    }

    #[test]
    fn memory_is_bounded_and_throttled_clients_stay_throttled() {
        let throttle = Throttle::default();
        for _ in 0..11 {
            throttle.fail(throttle.token("guilty"), at(0));
        }
        for n in 0..3 * KEYS {
            throttle.fail(throttle.token(&n.to_string()), at(0));
        }
        assert!(throttle.buckets.lock().expect("free").len() <= KEYS);
        assert!(throttle.wait(throttle.token("guilty"), at(0)).is_some());
    }
}
