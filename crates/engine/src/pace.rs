//! How long steps take, by runs that are recorded.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::plan::{StepDurations, StepKind};

use crate::journal::{Happened, Journal, JournalError, Run, RunFilter};

/// How many runs on the same hosts are looked at for how long steps take: enough for a median,
/// few enough to be read in no time.
const MEASURED: usize = 5;

/// Returns how long steps take: the median of each kind in the newest runs on these hosts.
pub(crate) async fn paces(
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
        let runs = journal.page(&filter).await?;
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
