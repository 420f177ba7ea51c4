//! How long the steps of a run took.

use homestak_core::plan::StepKind;

use crate::journal::{Happened, Run};

/// Returns kind and seconds of each step of a run that was done.
pub fn durations(run: &Run) -> Vec<(StepKind, f64)> {
    let steps = &run.plan.steps;
    let mut begun = vec![None; steps.len()];
    let mut taken = Vec::new();
    for (at, entry) in run.of_steps() {
        let (step, begun) = (&steps[at], &mut begun[at]);
        match &entry.happened {
            Happened::Intent => *begun = Some(entry.at),
            // An image that is there already, and waiting until a node is reached, change nothing.
            Happened::Done { .. } => {
                let seconds = begun.map(|begun| entry.at.duration_since(begun).as_secs_f64());
                taken.extend(
                    seconds
                        .filter(|seconds| *seconds >= 0.0)
                        .map(|s| (step.kind, s)),
                );
                *begun = None;
            }
            Happened::Failed(_)
            | Happened::UndoIntent
            | Happened::Undone { .. }
            | Happened::UndoFailed(_)
            | Happened::Settled => *begun = None,
        }
    }
    taken
}
