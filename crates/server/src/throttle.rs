//! Limits authentication failures by address and by token.
//!
//! A leaky bucket for each key: failures are counted, and the count decreases with time. Memory is
//! bounded: when there are too many keys, those with the fewest failures are forgotten. If all of them
//! must wait, a new key replaces the one with the lowest count and takes over its count, so that no
//! key has fewer failures counted than it had.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::listen::counted_address;

/// The count at which attempts must wait. Typing errors, and a node whose token was just replaced, stay
/// below it.
const MAX_FAILURES: f64 = 10.0;
/// The time after which one failure is no longer counted.
const DECAY: Duration = Duration::from_secs(6);
/// The most keys in memory, about 100 bytes each.
const MAX_KEYS: usize = 20_000;

/// The failures of a key.
struct Bucket {
    /// The count after the last failure.
    failures: f64,
    /// When the last failure was.
    last: Timestamp,
}

/// What failures are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ThrottleKey {
    /// An IPv4 address, or the network of an IPv6 address: see [`ThrottleKey::of`].
    Address(IpAddr),
    /// A keyed hash of the token: collisions cannot be computed without the key.
    Token(u64),
}

/// Failures by key.
#[derive(Default)]
pub(crate) struct Throttle {
    buckets: Mutex<BTreeMap<ThrottleKey, Bucket>>,
    hasher: RandomState,
}

impl ThrottleKey {
    /// Returns what failures of an address are counted by.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Address(counted_address(address))
    }
}

impl Bucket {
    /// Returns how many failures are counted now.
    fn count(&self, now: Timestamp) -> f64 {
        let passed = now.duration_since(self.last).as_secs_f64().max(0.0);
        (self.failures - passed / DECAY.as_secs_f64()).max(0.0)
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
        let failures = buckets.get(&key)?.count(now);
        (failures >= MAX_FAILURES).then(|| DECAY.mul_f64(failures - MAX_FAILURES + 1.0))
    }

    /// Records a failure.
    pub(crate) fn fail(&self, key: ThrottleKey, now: Timestamp) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failures = buckets.get(&key).map_or(0.0, |bucket| bucket.count(now));
        if buckets.len() >= MAX_KEYS && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| bucket.count(now) >= 1.0);
            if buckets.len() >= MAX_KEYS {
                // All of them failed recently: only those that must wait already are kept.
                buckets.retain(|_, bucket| bucket.count(now) >= MAX_FAILURES);
            }
            if buckets.len() >= MAX_KEYS {
                // All of them must wait.
                let counts = buckets
                    .iter()
                    .map(|(key, bucket)| (*key, bucket.count(now)));
                if let Some((least, count)) = counts.min_by(|a, b| a.1.total_cmp(&b.1)) {
                    buckets.remove(&least);
                    failures = count;
                }
            }
        }
        let bucket = Bucket {
            // Attempts that are processed at the same time may exceed the limit; they do not make the
            // wait longer.
            failures: (failures + 1.0).min(MAX_FAILURES + 1.0),
            last: now,
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
    fn other_keys_are_throttled_too_while_memory_is_full_of_throttled_ones() {
        let throttle = Throttle::default();
        for n in 0..MAX_KEYS {
            for _ in 0..11 {
                throttle.fail(throttle.token(&n.to_string()), at(0));
            }
        }
        let others = ["a", "b"].map(|name| throttle.token(name));
        assert!(
            others
                .iter()
                .all(|key| throttle.wait(*key, at(0)).is_none())
        );
        for key in others {
            throttle.fail(key, at(0));
        }
        assert!(
            others
                .iter()
                .all(|key| throttle.wait(*key, at(0)).is_some())
        );
        assert_eq!(throttle.buckets.lock().expect("free").len(), MAX_KEYS);
        assert!(
            others
                .iter()
                .all(|key| throttle.wait(*key, at(60)).is_none())
        );
    }

    #[test]
    fn memory_is_bounded_and_throttled_clients_stay_throttled() {
        let throttle = Throttle::default();
        for _ in 0..11 {
            throttle.fail(throttle.token("throttled"), at(0));
        }
        for n in 0..3 * MAX_KEYS {
            throttle.fail(throttle.token(&n.to_string()), at(0));
        }
        assert!(throttle.buckets.lock().expect("free").len() <= MAX_KEYS);
        assert!(throttle.wait(throttle.token("throttled"), at(0)).is_some());
    }
}
