//! Estimates how long a plan takes from the measured durations of earlier steps. A plan with a step
//! that was never measured has no estimate.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::step::StepKind;
use super::types::Plan;

/// Measured durations of steps, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDurations {
    same_hosts: BTreeMap<StepKind, f64>,
    all_hosts: BTreeMap<StepKind, f64>,
}

impl StepDurations {
    /// Takes the durations measured on the same hosts, and on all hosts.
    pub fn new(same_hosts: &[(StepKind, f64)], all_hosts: &[(StepKind, f64)]) -> Self {
        let map = |list: &[(StepKind, f64)]| list.iter().copied().collect();
        Self {
            same_hosts: map(same_hosts),
            all_hosts: map(all_hosts),
        }
    }

    /// Returns how long a step takes, and whether that was measured on the same hosts.
    fn of(&self, kind: StepKind) -> Option<(f64, bool)> {
        if let Some(seconds) = self.same_hosts.get(&kind) {
            return Some((*seconds, true));
        }
        if let Some(seconds) = self.all_hosts.get(&kind) {
            return Some((*seconds, false));
        }
        match kind {
            // Single requests: their duration does not matter.
            StepKind::Discard | StepKind::Reshape | StepKind::Grow | StepKind::Reidentify => {
                Some((1.0, true))
            }
            StepKind::Image
            | StepKind::Create
            | StepKind::Start
            | StepKind::Ready
            | StepKind::Configure
            | StepKind::Stop
            | StepKind::Destroy => None,
        }
    }
}

/// Simulates the execution of the steps with the plan's parallelism. Returns the seconds, and whether
/// all steps were measured on the same hosts; `None` if one was never measured.
pub(super) fn estimate(plan: &Plan, durations: &StepDurations) -> Option<(f64, bool)> {
    let steps = &plan.steps;
    let known: Option<Vec<(f64, bool)>> =
        steps.iter().map(|step| durations.of(step.kind)).collect();
    let known = known?;
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
            let takes = (known[at].0.max(0.0) * 1000.0) as u64;
            running.push(Reverse((now + takes, at)));
            busy += 1;
        }
        let Some(Reverse((end, at))) = running.pop() else {
            let measured = known.iter().all(|(_, here)| *here);
            return Some((now as f64 / 1000.0, measured));
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
