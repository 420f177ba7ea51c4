//! Rate limit for log lines that a client can cause repeatedly, such as failed requests, so that they
//! neither fill the disk nor displace other lines.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use crate::listen::counted_address;

/// How many lines of one address are logged in a minute.
const LINES_PER_ADDRESS: u64 = 20;
/// How many are logged in a minute in all. Also the most addresses that are counted one by one.
const LINES: usize = 2_000;
/// How many addresses are named at the end of a minute.
const NAMED: usize = 20;
/// The length of a minute, in seconds.
const MINUTE: i64 = 60;

/// What was logged in the current minute.
pub(crate) struct LineLimit {
    /// What the lines are about, as in `more failures of this address`.
    what: &'static str,
    minute: Mutex<Minute>,
}

#[derive(Default)]
struct Minute {
    begun: i64,
    n_logged: usize,
    /// How many lines there would have been.
    by_address: HashMap<IpAddr, u64>,
    /// How many of other addresses were not logged.
    others: u64,
}

impl LineLimit {
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            minute: Mutex::default(),
        }
    }

    /// Returns whether a line about an address is to be logged.
    pub(crate) fn admits(&self, address: IpAddr, now: Timestamp) -> bool {
        self.end_minute(now);
        let mut minute = self.minute.lock().unwrap_or_else(PoisonError::into_inner);
        minute.admits(counted_address(address))
    }

    /// Logs how many lines were left out, when a minute is over.
    pub(crate) fn end_minute(&self, now: Timestamp) {
        let now = now.as_second();
        let over = {
            let mut minute = self.minute.lock().unwrap_or_else(PoisonError::into_inner);
            // A clock that was set back ends it, too.
            if (minute.begun..minute.begun.saturating_add(MINUTE)).contains(&now) {
                return;
            }
            let next = Minute {
                begun: now,
                ..Minute::default()
            };
            std::mem::replace(&mut *minute, next)
        };
        over.summarize(self.what);
    }
}

impl Minute {
    fn admits(&mut self, address: IpAddr) -> bool {
        let is_full = self.n_logged >= LINES;
        if is_full && !self.by_address.contains_key(&address) {
            self.others += 1;
            return false;
        }
        let lines = self.by_address.entry(address).or_default();
        *lines += 1;
        if *lines > LINES_PER_ADDRESS {
            return false;
        }
        if is_full {
            self.others += 1;
            return false;
        }
        self.n_logged += 1;
        true
    }

    fn summarize(self, what: &str) {
        let over = self.by_address.into_iter().filter_map(|(address, lines)| {
            let not_logged = lines.saturating_sub(LINES_PER_ADDRESS);
            (not_logged > 0).then_some((not_logged, address))
        });
        let mut over: Vec<_> = over.collect();
        over.sort_unstable_by(|a, b| b.cmp(a));
        let mut others = self.others;
        for (nth, (not_logged, address)) in over.into_iter().enumerate() {
            match nth < NAMED {
                true => tracing::info!(%address, not_logged, "more {what} of this address"),
                false => others = others.saturating_add(not_logged),
            }
        }
        if others > 0 {
            tracing::info!(not_logged = others, "more {what} of other addresses");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    #[test]
    fn each_address_has_twenty_lines_a_minute() {
        let log = LineLimit::new("failures");
        let count = |last: u8, second: i64| {
            let address = IpAddr::from([127, 0, 0, last]);
            (0..100).filter(|_| log.admits(address, at(second))).count()
        };
        assert_eq!((count(1, 0), count(1, 59), count(2, 59)), (20, 0, 20));
        assert_eq!(
            (count(1, 60), count(1, 30)),
            (20, 20),
            "a clock that is set back"
        );
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_have_twenty_lines_together() {
        let log = LineLimit::new("failures");
        let address = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]);
        let logged = (0..100).filter(|n| log.admits(address(*n), at(0)));
        assert_eq!(logged.count(), 20);
        let minute = log.minute.lock().expect("free");
        assert_eq!(minute.by_address.len(), 1);
    }

    #[test]
    fn many_addresses_have_a_limit_together() {
        let log = LineLimit::new("failures");
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        let logged = (0..10_000).filter(|n| log.admits(address(*n), at(0)));
        assert_eq!(logged.count(), LINES);
        let minute = log.minute.lock().expect("free");
        assert_eq!(minute.by_address.len(), LINES);
        assert_eq!(minute.others, 8_000);
    }
}
