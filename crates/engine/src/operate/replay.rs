//! Derives the state of each step from the entries of a run. The same entries give the same states.

use homestak_core::plan::{Records, Steps};

use crate::journal::{Entry, StepError, StepEvent, step_entries};

/// The state of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StepState {
    /// It was not started.
    #[default]
    Untouched,
    /// It was started; whether it completed is not known.
    Begun,
    /// It completed.
    Done,
    /// It failed, possibly half-way.
    Failed(StepError),
    /// Undoing it was started.
    Undoing,
    /// It was undone.
    Undone,
    /// It could not be undone.
    Stuck(StepError),
    /// The user marked it as resolved.
    Settled,
}

impl StepState {
    /// Returns whether the steps that depend on it may start.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::Settled)
    }

    /// Returns whether there may be something to undo.
    pub fn needs_undo(&self) -> bool {
        match self {
            Self::Begun | Self::Done | Self::Failed(_) | Self::Undoing | Self::Stuck(_) => true,
            Self::Untouched | Self::Undone | Self::Settled => false,
        }
    }
}

/// The state of a run after its entries.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// The state of each step.
    pub states: Vec<StepState>,
    /// Which steps have completed, even if they were undone later.
    pub was_done: Vec<bool>,
    /// Whether each step changed anything; `None` when it never completed.
    pub changed: Vec<Option<bool>>,
    /// The newest record of each node.
    pub records: Records,
    /// Whether the run is being rolled back; it never continues forward then.
    pub rolling_back: bool,
}

/// Replays the entries of a run.
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
    for (at, entry) in step_entries(steps, entries) {
        replay.states[at] = match &entry.happened {
            StepEvent::Intent => StepState::Begun,
            StepEvent::Done { changed } => {
                replay.was_done[at] = true;
                // A repeated step changed something if any of its executions did.
                let before = replay.changed[at].unwrap_or(false);
                replay.changed[at] = Some(before || *changed);
                StepState::Done
            }
            StepEvent::Failed(error) => StepState::Failed(error.clone()),
            StepEvent::UndoIntent => {
                replay.rolling_back = true;
                StepState::Undoing
            }
            StepEvent::Undone { .. } => StepState::Undone,
            StepEvent::UndoFailed(error) => StepState::Stuck(error.clone()),
            StepEvent::Settled => StepState::Settled,
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
    use crate::operate::schedule::{Direction, Schedule};

    /// Random graphs: for each step, the earlier steps that it depends on.
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

    /// Creates the steps of a graph, listed in this order.
    fn read(graph: &[Vec<usize>], order: &[usize]) -> Steps {
        let name = |at: &usize| format!("start:father/node-{at}");
        let step = |at: &usize| {
            let after: Vec<String> = graph[*at].iter().map(name).collect();
            json!({ "id": name(at), "kind": "start", "node": at, "after": after })
        };
        serde_json::from_value(order.iter().map(step).collect()).unwrap()
    }

    /// Executes and records the remaining steps; returns their order.
    fn execute(steps: &Steps, entries: &mut Vec<Entry>) -> Vec<StepId> {
        let states = replay(steps, entries).states;
        let todo = states.iter().map(|state| !state.is_done()).collect();
        let mut schedule = Schedule::new(steps, todo, Direction::Forward);
        let mut done = Vec::new();
        while let Some(at) = schedule.next(steps, false) {
            for happened in [StepEvent::Intent, StepEvent::Done { changed: true }] {
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
        fn after_any_entry_the_rest_is_executed_once_in_any_order_of_steps(graph in graphs()) {
            let listed: Vec<usize> = (0..graph.len()).collect();
            let steps = read(&graph, &listed);
            let mut entries = Vec::new();
            let order = execute(&steps, &mut entries);
            prop_assert_eq!(order.len(), steps.len());
            // The same steps, listed in another order.
            let other: Vec<usize> = order
                .iter()
                .filter_map(|id| steps[steps.position(id)?].node)
                .collect();
            let other = read(&graph, &other);
            for n_written in 0..=entries.len() {
                let mut entries = entries[..n_written].to_vec();
                let results = entries.iter().filter(|entry| entry.happened != StepEvent::Intent);
                let before: Vec<StepId> = results.filter_map(|entry| entry.step.clone()).collect();
                let rest = execute(&other, &mut entries);
                prop_assert!(rest.iter().all(|id| !before.contains(id)));
                let mut all = [before, rest].concat();
                for (at, id) in all.iter().enumerate() {
                    let step = &other[other.position(id).unwrap()];
                    let met = |before: &usize| all[..at].contains(&other[*before].id);
                    prop_assert!(step.after.iter().all(met), "{} started too early", id);
                }
                all.sort();
                all.dedup();
                prop_assert_eq!(all.len(), steps.len());
                prop_assert!(execute(&other, &mut entries).is_empty());
            }
        }
    }
}
