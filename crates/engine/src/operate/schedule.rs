//! Selects the next step to start: never before its dependencies, the most urgent first.

use std::collections::BTreeSet;

use homestak_core::plan::{Step, StepKind};

/// Which steps may start, and in which order.
pub(crate) struct Schedule {
    /// How many dependencies of each step are not done yet.
    unmet: Vec<usize>,
    /// The steps that depend on each step.
    dependents: Vec<Vec<usize>>,
    todo: Vec<bool>,
    rank: Vec<(u8, u64)>,
    /// Steps that may start, the most urgent first.
    startable: BTreeSet<((u8, u64), usize)>,
}

/// Whether steps are executed or undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Execute: dependencies first.
    Forward,
    /// Undo: dependents first.
    Back,
}

impl Schedule {
    /// Makes a schedule of the steps in `todo`; the others count as done.
    pub(crate) fn new(steps: &[Step], todo: Vec<bool>, direction: Direction) -> Self {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
        for (at, step) in steps.iter().enumerate() {
            for other in &step.after {
                match direction {
                    Direction::Forward => before[at].push(*other),
                    Direction::Back => before[*other].push(at),
                }
            }
        }
        let mut dependents = vec![Vec::new(); steps.len()];
        let mut unmet = vec![0; steps.len()];
        for (at, others) in before.iter().enumerate() {
            for other in others.iter().filter(|other| todo[**other]) {
                dependents[*other].push(at);
                unmet[at] += 1;
            }
        }
        let rank = ranks(steps, &dependents, &todo);
        let mut schedule = Self {
            unmet,
            dependents,
            todo,
            rank,
            startable: BTreeSet::new(),
        };
        for at in 0..steps.len() {
            schedule.add_if_startable(at);
        }
        schedule
    }

    fn add_if_startable(&mut self, at: usize) {
        if self.todo[at] && self.unmet[at] == 0 {
            self.startable.insert((self.rank[at], at));
        }
    }

    /// Takes the most urgent step that may start. When all workers are busy, only waits
    /// ([`StepKind::Ready`]) may start.
    pub(crate) fn next(&mut self, steps: &[Step], workers_busy: bool) -> Option<usize> {
        let key = if workers_busy {
            // Waits rank first.
            let first = *self.startable.first()?;
            Some(first).filter(|(_, at)| steps[*at].kind == StepKind::Ready)?
        } else {
            *self.startable.first()?
        };
        self.startable.remove(&key);
        Some(key.1)
    }

    /// Marks a step as done, so that its dependents may start.
    pub(crate) fn done(&mut self, at: usize) {
        self.todo[at] = false;
        for next in std::mem::take(&mut self.dependents[at]) {
            self.unmet[next] -= 1;
            self.add_if_startable(next);
        }
    }
}

/// Returns the rank of each step; lower is more urgent. Waits come first because they use no worker,
/// then short steps and images, then other steps; within a class, by the chain of dependents, the
/// longest first.
fn ranks(steps: &[Step], dependents: &[Vec<usize>], todo: &[bool]) -> Vec<(u8, u64)> {
    let weight = |kind| match kind {
        StepKind::Image => 30,
        StepKind::Create | StepKind::Ready | StepKind::Configure => 15,
        StepKind::Stop => 8,
        StepKind::Start
        | StepKind::Destroy
        | StepKind::Discard
        | StepKind::Reshape
        | StepKind::Reidentify
        | StepKind::Grow => 2,
    };
    // Topological order, without recursion.
    let mut order: Vec<usize> = Vec::with_capacity(steps.len());
    let mut unmet = vec![0usize; steps.len()];
    for next in dependents.iter().flatten() {
        unmet[*next] += 1;
    }
    let mut startable: Vec<usize> = (0..steps.len()).filter(|at| unmet[*at] == 0).collect();
    while let Some(at) = startable.pop() {
        order.push(at);
        for next in &dependents[at] {
            unmet[*next] -= 1;
            if unmet[*next] == 0 {
                startable.push(*next);
            }
        }
    }
    let mut length = vec![0u64; steps.len()];
    for at in order.into_iter().rev() {
        let longest = dependents[at].iter().map(|next| length[*next]).max();
        let own = if todo[at] { weight(steps[at].kind) } else { 0 };
        length[at] = own + longest.unwrap_or(0);
    }
    let class = |kind| match kind {
        StepKind::Ready => 0,
        StepKind::Start
        | StepKind::Destroy
        | StepKind::Reshape
        | StepKind::Reidentify
        | StepKind::Grow
        | StepKind::Image => 1,
        StepKind::Create | StepKind::Configure | StepKind::Stop => 2,
        StepKind::Discard => 3,
    };
    let urgency = |at: usize| (class(steps[at].kind), u64::MAX - length[at]);
    (0..steps.len()).map(urgency).collect()
}
