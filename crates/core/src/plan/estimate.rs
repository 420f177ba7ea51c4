//! How long a plan will take.
//!
//! In: a plan, and how long steps took before. Out: seconds.
//! Never: a promise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::step::{StepKind, steps};
use super::types::Plan;

/// How long steps take, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Paces(Vec<(StepKind, f64)>);

impl Default for Paces {
    fn default() -> Self {
        let usual = |kind| match kind {
            StepKind::Image => 30.0,
            StepKind::Create => 15.0,
            StepKind::Ready => 25.0,
            StepKind::Configure => 20.0,
            StepKind::Stop => 8.0,
            StepKind::Start | StepKind::Destroy => 3.0,
            StepKind::Discard | StepKind::Reshape | StepKind::Grow | StepKind::Reidentify => 1.0,
        };
        Self(
            StepKind::ALL
                .iter()
                .map(|kind| (*kind, usual(*kind)))
                .collect(),
        )
    }
}

impl Paces {
    /// Puts what was measured in the place of what is usual.
    #[must_use]
    pub fn measured(mut self, measured: &[(StepKind, f64)]) -> Self {
        for (kind, seconds) in measured {
            if let Some(pace) = self.0.iter_mut().find(|(known, _)| known == kind) {
                pace.1 = *seconds;
            }
        }
        self
    }

    fn of(&self, kind: StepKind) -> f64 {
        let found = self.0.iter().find(|(known, _)| *known == kind);
        found.map_or(1.0, |(_, seconds)| *seconds)
    }
}

/// Goes through the steps as the operator does, with so many at once.
pub(super) fn estimate(plan: &Plan, paces: &Paces) -> f64 {
    let steps = steps(plan);
    let mut waiting: Vec<usize> = steps.iter().map(|step| step.after.len()).collect();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (at, step) in steps.iter().enumerate() {
        for before in &step.after {
            followers[*before].push(at);
        }
    }
    let mut ready: std::collections::VecDeque<usize> =
        (0..steps.len()).filter(|at| waiting[*at] == 0).collect();
    // Milliseconds, because floats have no order.
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut busy = 0;
    let mut now = 0u64;
    loop {
        while busy < plan.parallelism.max(1)
            && let Some(at) = ready.pop_front()
        {
            let takes = (paces.of(steps[at].kind).max(0.0) * 1000.0) as u64;
            running.push(Reverse((now + takes, at)));
            busy += 1;
        }
        let Some(Reverse((end, at))) = running.pop() else {
            return now as f64 / 1000.0;
        };
        now = end;
        busy -= 1;
        for next in &followers[at] {
            waiting[*next] -= 1;
            if waiting[*next] == 0 {
                ready.push_back(*next);
            }
        }
    }
}
