//! Faults as data: what goes wrong, for which calls, how often. Probabilities use the seed of the
//! World, so runs can be repeated.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::random::Random;

/// What goes wrong with a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The connection is reset; the call is not executed.
    ResetBefore,
    /// The call is executed and the connection reset before the answer.
    ResetAfter,
    /// No answer is sent; the call is not executed.
    Timeout,
    /// The call is executed and no answer is sent.
    LostAnswer,
    /// The call is executed twice, as by a proxy that retries; the second answer is sent.
    RepeatedAnswer,
    /// An error of the proxy, such as 595, 596 or 599; the call is not executed.
    Status(u16),
    /// The call is executed; the answer is not JSON.
    Garbage,
    /// The call is executed; half of the answer is sent.
    Truncated,
    /// The call is executed after this many seconds.
    Slow(f64),
    /// The call is executed; its task is killed after its work, before it records the result. Has
    /// no effect on calls without a task.
    TaskDies,
    /// A list is as it was this many seconds ago.
    StaleList(f64),
}

/// Selects the calls of a fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Call {
    /// The first call it affects, counted from 1 among the matching calls; only this one unless
    /// `times` is set.
    pub nth: Option<u64>,
    /// How many calls it affects, from the n-th on; all of them if both are absent.
    #[serde(alias = "count")]
    pub times: Option<u64>,
    /// The probability for each of these calls, from 0 to 1; default 1.
    pub probability: Option<f64>,
    /// The method, such as `POST`.
    pub method: Option<String>,
    /// A part of the path; `*` matches any characters.
    pub path: Option<String>,
}

impl Call {
    /// Matches every call.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches the n-th call, counted from 1.
    pub fn nth(nth: u64) -> Self {
        Self {
            nth: Some(nth),
            ..Self::default()
        }
    }

    /// Matches the first calls, this many.
    pub fn times(times: u64) -> Self {
        Self {
            times: Some(times),
            ..Self::default()
        }
    }

    /// Restricts it to calls with this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Restricts it to calls whose path contains this; `*` matches any characters.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    /// Restricts it to a random share of the calls.
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
    /// The calls it affects.
    pub on: Call,
    /// What goes wrong.
    pub kind: FaultKind,
}

impl Fault {
    /// Creates a fault.
    pub fn new(on: Call, kind: FaultKind) -> Self {
        Self { on, kind }
    }
}

/// The faults of a World, each with the number of matches so far.
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

    /// Returns the fault for this call. The first one that applies wins.
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

/// How long a connection stays open for a fault without an answer.
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
    fn a_fault_affects_only_the_selected_calls() {
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
    fn a_probability_selects_the_same_calls_in_each_run() {
        let some = hits(Call::any().probability(0.5), 100);
        assert!(some.contains(&true) && some.contains(&false));
        assert_eq!(some, hits(Call::any().probability(0.5), 100));
        assert!(!hits(Call::any().probability(0.0), 20).contains(&true));
    }
}
