//! How long steps take, from recorded runs.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::plan::{StepDurations, StepKind};

use crate::journal::{Journal, JournalError, Run, RunFilter, StepEvent};

/// How many runs on the same hosts are read: enough for a median, few enough to be fast.
const MEASURED: usize = 5;

/// Returns the median duration of each kind of step in the newest runs on these hosts.
pub(crate) async fn step_durations(
    journal: &dyn Journal,
    hosts: &[&str],
) -> Result<StepDurations, JournalError> {
    let mut taken: BTreeMap<StepKind, Vec<f64>> = BTreeMap::new();
    let mut newest = BTreeSet::new();
    for host in hosts {
        let filter = RunFilter {
            host: Some((*host).to_owned()),
            limit: Some(MEASURED),
            ..RunFilter::default()
        };
        let runs = journal.list_runs(&filter).await?;
        newest.extend(runs.iter().map(|run| run.id));
    }
    for id in newest.into_iter().rev().take(MEASURED) {
        let run = journal.run(id).await?;
        for (kind, seconds) in run.iter().flat_map(durations) {
            taken.entry(kind).or_default().push(seconds);
        }
    }
    let median = |(kind, mut seconds): (StepKind, Vec<f64>)| {
        seconds.sort_by(f64::total_cmp);
        (kind, seconds[seconds.len() / 2])
    };
    let here: Vec<(StepKind, f64)> = taken.into_iter().map(median).collect();
    Ok(StepDurations::new(&here, &journal.durations().await?))
}

/// Returns kind and seconds of each step of a run that was done.
fn durations(run: &Run) -> Vec<(StepKind, f64)> {
    let steps = &run.plan.steps;
    let mut begun = vec![None; steps.len()];
    let mut taken = Vec::new();
    for (at, entry) in run.step_entries() {
        let (step, begun) = (&steps[at], &mut begun[at]);
        match &entry.happened {
            StepEvent::Intent => *begun = Some(entry.at),
            // Images that exist already and waits change nothing, and count too.
            StepEvent::Done { .. } => {
                let seconds = begun.map(|begun| entry.at.duration_since(begun).as_secs_f64());
                taken.extend(
                    seconds
                        .filter(|seconds| *seconds >= 0.0)
                        .map(|s| (step.kind, s)),
                );
                *begun = None;
            }
            StepEvent::Failed(_)
            | StepEvent::UndoIntent
            | StepEvent::Undone { .. }
            | StepEvent::UndoFailed(_)
            | StepEvent::Settled => *begun = None,
        }
    }
    taken
}
