//! Faults as data: what goes wrong, on which call, how often.
//!
//! In: a [`Fault`], built in code or read from JSON. Out: what to do with a call.
//! Never: chance that is not from the World's seed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::random::Random;

/// What goes wrong with a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The connection ends before the call is acted on.
    ResetBefore,
    /// The call is acted on and the connection ends before the answer.
    ResetAfter,
    /// Nothing ever comes back, and nothing is done.
    Timeout,
    /// The call is acted on and nothing ever comes back.
    LostAnswer,
    /// The call is acted on twice, as a proxy that retries does; the second answer is given.
    RepeatedAnswer,
    /// An answer of the proxy, such as 595, 596 or 599; the call is not acted on.
    Status(u16),
    /// The call is acted on; the answer is not JSON.
    Garbage,
    /// The call is acted on; half of the answer arrives.
    Truncated,
    /// The call is acted on after so many seconds.
    Slow(f64),
    /// The call is acted on; its task does its work and dies before it can say so, as with its
    /// daemon. A call without a task is answered as ever.
    TaskDies,
    /// A list shows what it showed some seconds ago.
    StaleList(f64),
}

/// Which calls a fault is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Call {
    /// The first call it is for, counted from one among those that match the rest; the only one
    /// unless `times` says more.
    pub nth: Option<u64>,
    /// How many calls it is for, from the n-th on; all of them when both are absent.
    #[serde(alias = "count")]
    pub times: Option<u64>,
    /// How likely each of these calls is hit, from 0 to 1; always when absent.
    pub probability: Option<f64>,
    /// The method, such as `POST`.
    pub method: Option<String>,
    /// A part of the path; `*` stands for anything in between.
    pub path: Option<String>,
}

impl Call {
    /// Matches every call.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches the n-th call, counted from one.
    pub fn nth(nth: u64) -> Self {
        Self {
            nth: Some(nth),
            ..Self::default()
        }
    }

    /// Matches the first so many calls.
    pub fn times(times: u64) -> Self {
        Self {
            times: Some(times),
            ..Self::default()
        }
    }

    /// Only calls with this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Only calls whose path contains this; `*` stands for anything in between.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    /// Only with this probability, decided by the World's seed.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = Some(probability);
        self
    }

    fn fits(&self, method: &str, path: &str) -> bool {
        self.method.as_deref().is_none_or(|wanted| wanted == method)
            && self
                .path
                .as_deref()
                .is_none_or(|wanted| contains(path, wanted))
    }
}

fn contains(path: &str, pattern: &str) -> bool {
    let mut rest = path;
    pattern.split('*').all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Which calls it is for.
    pub on: Call,
    /// What goes wrong.
    pub kind: FaultKind,
}

impl Fault {
    /// Makes a fault.
    pub fn new(on: Call, kind: FaultKind) -> Self {
        Self { on, kind }
    }
}

/// The faults of a World with how often each has matched.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Faults(Vec<(Fault, u64)>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push((fault, 0));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns what goes wrong with this call. The first fault that hits wins.
    pub(crate) fn hit(
        &mut self,
        method: &str,
        path: &str,
        random: &mut Random,
    ) -> Option<FaultKind> {
        let mut kind = None;
        for (fault, seen) in &mut self.0 {
            if !fault.on.fits(method, path) {
                continue;
            }
            *seen += 1;
            let now = match (fault.on.nth, fault.on.times) {
                (Some(nth), None) => *seen == nth,
                (Some(nth), Some(times)) => *seen >= nth && *seen - nth < times,
                (None, Some(times)) => *seen <= times,
                (None, None) => true,
            };
            let chance = |likely: f64| random.fraction() < likely;
            if now && fault.on.probability.is_none_or(chance) && kind.is_none() {
                kind = Some(fault.kind.clone());
            }
        }
        kind
    }
}

/// How long a connection of a fault without an answer stays open.
pub(crate) const SILENCE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(on: Call, calls: usize) -> Vec<bool> {
        let mut random = Random::new(7);
        let mut faults = Faults::default();
        faults.add(Fault::new(on, FaultKind::Garbage));
        let mut hit = || faults.hit("POST", "/nodes/pve1/qemu/100/clone", &mut random);
        (0..calls).map(|_| hit().is_some()).collect()
    }

    #[test]
    fn a_fault_is_for_the_calls_it_names() {
        let nth = Call::nth(2).method("POST").path("/qemu/*/clone");
        assert_eq!(hits(nth.clone(), 3), [false, true, false]);
        let more = Call {
            times: Some(2),
            ..nth.clone()
        };
        assert_eq!(hits(more, 4), [false, true, true, false]);
        assert_eq!(hits(Call::times(1), 2), [true, false]);
        assert_eq!(hits(Call::any().method("GET"), 1), [false]);
        assert_eq!(hits(nth.path("/lxc"), 2), [false, false]);
    }

    #[test]
    fn a_fault_that_is_likely_hits_some_calls_and_the_same_ones_again() {
        let some = hits(Call::any().probability(0.5), 100);
        assert!(some.contains(&true) && some.contains(&false));
        assert_eq!(some, hits(Call::any().probability(0.5), 100));
        assert!(!hits(Call::any().probability(0.0), 20).contains(&true));
    }
}
