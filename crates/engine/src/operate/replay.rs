//! From what is written down to how far each step is.
//!
//! In: the entries of a run, in order. Out: [`StepState`] of every step.
//! Never: anything but the journal; the same entries give the same states.

use homestak_core::plan::{Records, Steps};

use crate::journal::{Entry, Happened, Trouble, of_steps};

/// How far a step is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StepState {
    /// Nothing was written about it: it was not begun.
    #[default]
    Untouched,
    /// It was begun; whether it was done is not known.
    Begun,
    /// It was done.
    Done,
    /// It failed, perhaps half-way.
    Failed(Trouble),
    /// It was begun to be undone.
    Undoing,
    /// It was undone.
    Undone,
    /// It could not be undone.
    Stuck(Trouble),
    /// A person says that it is settled.
    Settled,
}

impl StepState {
    /// Tells whether steps after it may be begun.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::Settled)
    }

    /// Tells whether the step may have left something behind.
    pub fn needs_undo(&self) -> bool {
        match self {
            Self::Begun | Self::Done | Self::Failed(_) | Self::Undoing | Self::Stuck(_) => true,
            Self::Untouched | Self::Undone | Self::Settled => false,
        }
    }
}

/// What the entries of a run add up to.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// How far each step is.
    pub states: Vec<StepState>,
    /// Which steps were done at some time, whatever became of them later.
    pub was_done: Vec<bool>,
    /// Whether each step changed anything; `None` when it was never done.
    pub changed: Vec<Option<bool>>,
    /// The newest record of each node.
    pub records: Records,
    /// Whether undoing was begun; such a run is never continued forward.
    pub unwinding: bool,
}

/// Adds up the entries of a run of some steps.
pub fn replay(steps: &Steps, entries: &[Entry]) -> Replay {
    let n_steps = steps.len();
    let mut replay = Replay {
        states: vec![StepState::Untouched; n_steps],
        was_done: vec![false; n_steps],
        changed: vec![None; n_steps],
        ..Replay::default()
    };
    let records = entries.iter().filter_map(|entry| entry.record.clone());
    replay.records.extend(records);
    for (at, entry) in of_steps(steps, entries) {
        replay.states[at] = match &entry.happened {
            Happened::Intent => StepState::Begun,
            Happened::Done { changed } => {
                replay.was_done[at] = true;
                // A step that was repeated changed something if it did so at any time.
                let before = replay.changed[at].unwrap_or(false);
                replay.changed[at] = Some(before || *changed);
                StepState::Done
            }
            Happened::Failed(trouble) => StepState::Failed(trouble.clone()),
            Happened::UndoIntent => {
                replay.unwinding = true;
                StepState::Undoing
            }
            Happened::Undone { .. } => StepState::Undone,
            Happened::UndoFailed(trouble) => StepState::Stuck(trouble.clone()),
            Happened::Settled => StepState::Settled,
        };
    }
    replay
}

#[cfg(test)]
mod tests {
    use homestak_core::plan::{StepId, Steps};
    use jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::operate::schedule::{Schedule, Way};

    /// Steps that wait for some of those before them.
    fn graphs() -> impl Strategy<Value = Vec<Vec<usize>>> {
        let picks = proptest::collection::vec(any::<usize>(), 0..3);
        proptest::collection::vec(picks, 1..20).prop_map(|all| {
            let before = |(at, picks): (usize, Vec<usize>)| {
                let picks = picks.into_iter().filter(|_| at > 0);
                let mut picks: Vec<usize> = picks.map(|pick| pick % at).collect();
                picks.sort_unstable();
                picks.dedup();
                picks
            };
            all.into_iter().enumerate().map(before).collect()
        })
    }

    /// Reads steps as a plan holds them, in some order of their own.
    fn read(graph: &[Vec<usize>], order: &[usize]) -> Steps {
        let name = |at: &usize| format!("start:father/node-{at}");
        let step = |at: &usize| {
            let after: Vec<String> = graph[*at].iter().map(name).collect();
            json!({ "id": name(at), "kind": "start", "node": at, "after": after })
        };
        serde_json::from_value(order.iter().map(step).collect()).unwrap()
    }

    /// Goes through what is left and writes it down; returns the order.
    fn carry_out(steps: &Steps, entries: &mut Vec<Entry>) -> Vec<StepId> {
        let states = replay(steps, entries).states;
        let todo = states.iter().map(|state| !state.is_done()).collect();
        let mut schedule = Schedule::new(steps, todo, Way::Forward);
        let mut done = Vec::new();
        while let Some(at) = schedule.next(steps, false) {
            for happened in [Happened::Intent, Happened::Done { changed: true }] {
                entries.push(Entry {
                    step: Some(steps[at].id.clone()),
                    happened,
                    at: Timestamp::UNIX_EPOCH,
                    record: None,
                });
            }
            done.push(steps[at].id.clone());
            schedule.done(at);
        }
        done
    }

    proptest! {
        #[test]
        fn what_is_left_after_any_entry_is_done_once_in_whatever_order_steps_are_listed(graph in graphs()) {
            let listed: Vec<usize> = (0..graph.len()).collect();
            let steps = read(&graph, &listed);
            let mut entries = Vec::new();
            let order = carry_out(&steps, &mut entries);
            prop_assert_eq!(order.len(), steps.len());
            // A program that lists the same steps in another order.
            let other: Vec<usize> = order
                .iter()
                .filter_map(|id| steps[steps.position(id)?].node)
                .collect();
            let other = read(&graph, &other);
            for n_written in 0..=entries.len() {
                let mut entries = entries[..n_written].to_vec();
                let results = entries.iter().filter(|entry| entry.happened != Happened::Intent);
                let before: Vec<StepId> = results.filter_map(|entry| entry.step.clone()).collect();
                let rest = carry_out(&other, &mut entries);
                prop_assert!(rest.iter().all(|id| !before.contains(id)));
                let mut all = [before, rest].concat();
                for (at, id) in all.iter().enumerate() {
                    let step = &other[other.position(id).unwrap()];
                    let met = |before: &usize| all[..at].contains(&other[*before].id);
                    prop_assert!(step.after.iter().all(met), "{} came too early", id);
                }
                all.sort();
                all.dedup();
                prop_assert_eq!(all.len(), steps.len());
                prop_assert!(carry_out(&other, &mut entries).is_empty());
            }
        }
    }
}
