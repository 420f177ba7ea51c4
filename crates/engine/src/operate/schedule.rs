//! Selects the next step to start: never before its dependencies, the most urgent first.

use std::collections::BTreeSet;

use homestak_core::plan::{Step, StepKind};

/// The order of steps.
pub(crate) struct Schedule {
    /// How many dependencies of each step are open.
    waiting: Vec<usize>,
    followers: Vec<Vec<usize>>,
    todo: Vec<bool>,
    rank: Vec<(u8, u64)>,
    /// Steps that may start, the most urgent first.
    open: BTreeSet<((u8, u64), usize)>,
}

/// The direction of a pass.
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
        let mut followers = vec![Vec::new(); steps.len()];
        let mut waiting = vec![0; steps.len()];
        for (at, others) in before.iter().enumerate() {
            for other in others.iter().filter(|other| todo[**other]) {
                followers[*other].push(at);
                waiting[at] += 1;
            }
        }
        let rank = ranks(steps, &followers, &todo);
        let mut schedule = Self {
            waiting,
            followers,
            todo,
            rank,
            open: BTreeSet::new(),
        };
        for at in 0..steps.len() {
            schedule.open_if_ready(at);
        }
        schedule
    }

    fn open_if_ready(&mut self, at: usize) {
        if self.todo[at] && self.waiting[at] == 0 {
            self.open.insert((self.rank[at], at));
        }
    }

    /// Takes the most urgent step that may start. When all workers are busy, only steps that merely
    /// wait may.
    pub(crate) fn next(&mut self, steps: &[Step], workers_busy: bool) -> Option<usize> {
        let key = if workers_busy {
            // Waits rank first.
            let first = *self.open.first()?;
            Some(first).filter(|(_, at)| steps[*at].kind == StepKind::Ready)?
        } else {
            *self.open.first()?
        };
        self.open.remove(&key);
        Some(key.1)
    }

    /// Marks a step as done, which may open others.
    pub(crate) fn done(&mut self, at: usize) {
        self.todo[at] = false;
        for next in std::mem::take(&mut self.followers[at]) {
            self.waiting[next] -= 1;
            self.open_if_ready(next);
        }
    }
}

/// Returns the rank of each step; lower is more urgent. Waits cost nothing and come first, then
/// short steps, then those with the longest chain of dependents.
fn ranks(steps: &[Step], followers: &[Vec<usize>], todo: &[bool]) -> Vec<(u8, u64)> {
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
    let mut waits = vec![0usize; steps.len()];
    for next in followers.iter().flatten() {
        waits[*next] += 1;
    }
    let mut open: Vec<usize> = (0..steps.len()).filter(|at| waits[*at] == 0).collect();
    while let Some(at) = open.pop() {
        order.push(at);
        for next in &followers[at] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                open.push(*next);
            }
        }
    }
    let mut length = vec![0u64; steps.len()];
    for at in order.into_iter().rev() {
        let longest = followers[at].iter().map(|next| length[*next]).max();
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
