//! From what is written down to how far each step is.
//!
//! In: the entries of a run, in order. Out: [`StepState`] of every step.
//! Never: anything but the journal; the same entries give the same states.

use homestak_core::plan::Records;

use crate::journal::{Entry, Happened, Trouble};

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

/// Adds up the entries of a run of so many steps.
pub fn replay(n_steps: usize, entries: &[Entry]) -> Replay {
    let mut replay = Replay {
        states: vec![StepState::Untouched; n_steps],
        was_done: vec![false; n_steps],
        changed: vec![None; n_steps],
        ..Replay::default()
    };
    for entry in entries {
        if let Some(record) = &entry.record {
            replay.records.insert(record.clone());
        }
        let Some(state) = replay.states.get_mut(entry.step) else {
            continue;
        };
        *state = match &entry.happened {
            Happened::Intent => StepState::Begun,
            Happened::Done { changed } => {
                replay.was_done[entry.step] = true;
                // A step that was repeated changed something if it did so at any time.
                let before = replay.changed[entry.step].unwrap_or(false);
                replay.changed[entry.step] = Some(before || *changed);
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
