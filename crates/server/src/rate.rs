//! Rate limits for requests of nodes that cost a signature or a disk write.
//!
//! Only requests of authenticated senders are counted, so that the number of buckets is limited. Each
//! sender has one bucket per action, which requests fill and time empties.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// When there are more buckets, those that are empty are forgotten: of guests that no longer exist.
const BUCKETS: usize = 50_000;

/// What is counted, each for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeAction {
    /// With a token, which may be repeated with the same key.
    Enrol,
    /// With a certificate.
    Renew,
    /// A report about itself.
    Report,
    /// Output or the outcome of a job.
    ReportJob,
    /// Looking for jobs, and taking one.
    TakeJobs,
}

impl NodeAction {
    /// Returns how many there may be at once, and after which time one more.
    fn limits(self) -> (f64, Duration) {
        match self {
            // A node that did not get the answer asks again, at last every five minutes.
            Self::Enrol | Self::Renew => (10.0, Duration::from_secs(60)),
            // More than a node reports of one run, each step once; a job has less output than that.
            Self::Report | Self::ReportJob | Self::TakeJobs => (200.0, Duration::from_millis(100)),
        }
    }
}

struct Bucket {
    level: f64,
    at: Timestamp,
}

/// Who did what how often.
#[derive(Default)]
pub(crate) struct Rates(Mutex<HashMap<(NodeAction, String), Bucket>>);

impl Bucket {
    fn current(&self, refill: Duration, now: Timestamp) -> f64 {
        let passed = now.duration_since(self.at).as_secs_f64().max(0.0);
        (self.level - passed / refill.as_secs_f64()).max(0.0)
    }
}

impl Rates {
    /// Counts a request of a guest; returns how long it has to wait if there were too many.
    pub(crate) fn count(&self, what: NodeAction, uuid: &str, now: Timestamp) -> Option<Duration> {
        let (burst, refill) = what.limits();
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS {
            buckets.retain(|(what, _), bucket| bucket.current(what.limits().1, now) > 0.0);
        }
        let bucket = buckets.entry((what, uuid.to_owned())).or_insert(Bucket {
            level: 0.0,
            at: now,
        });
        // A clock that was set back: the bucket empties from now on.
        bucket.at = bucket.at.min(now);
        let level = bucket.current(refill, now);
        if level > burst - 1.0 {
            return Some(refill.mul_f64(level - (burst - 1.0)));
        }
        *bucket = Bucket {
            level: level + 1.0,
            at: now,
        };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    #[test]
    fn each_guest_has_ten_renewals_and_one_more_each_minute() {
        let rates = Rates::default();
        let renew = |uuid, second| rates.count(NodeAction::Renew, uuid, at(second));
        for _ in 0..10 {
            assert_eq!(renew("a", 0), None);
        }
        assert_eq!(renew("a", 0), Some(Duration::from_secs(60)));
        assert_eq!(renew("a", 30), Some(Duration::from_secs(30)));
        assert_eq!(renew("b", 30), None);
        assert_eq!(rates.count(NodeAction::Enrol, "a", at(30)), None);
        assert_eq!(renew("a", 60), None);
        assert!(renew("a", 61).is_some(), "what was refused does not count");
        // A clock that was set back.
        assert!(renew("a", -500).is_some());
        assert_eq!(renew("a", -440), None);
        assert_eq!(renew("a", 120), None);
    }

    #[test]
    fn a_guest_has_ten_reports_a_second_for_ever() {
        let rates = Rates::default();
        let accepted = |second| {
            let reports = (0..1000).map(|_| rates.count(NodeAction::Report, "a", at(second)));
            reports.filter(Option::is_none).count()
        };
        assert_eq!((accepted(0), accepted(1), accepted(2)), (200, 10, 10));
        assert_eq!(accepted(12), 100);
        assert_eq!(rates.count(NodeAction::ReportJob, "a", at(12)), None);
    }

    #[test]
    fn guests_that_did_nothing_lately_are_forgotten() {
        let rates = Rates::default();
        for n in 0..BUCKETS {
            assert_eq!(rates.count(NodeAction::Renew, &n.to_string(), at(0)), None);
        }
        assert_eq!(rates.count(NodeAction::Renew, "last", at(60)), None);
        assert_eq!(rates.0.lock().expect("free").len(), 1);
    }
}
