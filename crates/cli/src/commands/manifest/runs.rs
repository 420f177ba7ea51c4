//! Which run is meant: the newest of a manifest, or the only one that is unfinished.
//!
//! In: flags, the journal. Out: a run.
//! Never: a guess between several.

use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_engine::journal::{Ending, Journal, Run, RunHead};

use crate::args::RunArgs;
use crate::error::CommandError;

/// Tells whether a run can be gone on with.
pub(super) fn is_unfinished(run: &RunHead) -> bool {
    match run.ended {
        None => true,
        Some((_, ending)) => match ending {
            Ending::Failed | Ending::Stopped | Ending::Stuck => true,
            Ending::Done | Ending::RolledBack | Ending::Superseded => false,
        },
    }
}

/// Returns the runs of a site that flags choose, newest first.
pub(super) async fn listed(
    which: &RunArgs,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Vec<RunHead>, CommandError> {
    let mut runs = journal.runs(which.manifest()).await?;
    runs.retain(|run| run.is_of(site));
    if let Some(host) = &which.host {
        runs.retain(|run| run.hosts.contains(host));
    }
    Ok(runs)
}

/// Returns the newest run of each manifest and its hosts.
pub(super) fn newest(runs: Vec<RunHead>) -> Vec<RunHead> {
    let mut newest: Vec<RunHead> = Vec::new();
    for run in runs {
        let shares = |known: &RunHead| {
            known.manifest == run.manifest
                && known.hosts.iter().any(|host| run.hosts.contains(host))
        };
        if !newest.iter().any(shares) {
            newest.push(run);
        }
    }
    newest
}

/// Returns the one run that is unfinished.
pub(super) async fn unfinished(
    which: &RunArgs,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Run, CommandError> {
    let mut runs = newest(listed(which, journal, site).await?);
    runs.retain(is_unfinished);
    match runs.as_slice() {
        [] => Err(CommandError::refused(match which.manifest() {
            Some(manifest) => format!("No run of `{manifest}` is unfinished."),
            None => "No run is unfinished.".to_owned(),
        })
        .hint("homestak manifest history lists runs")),
        [one] => read(one, journal).await,
        several => {
            let error = CommandError::usage("Which one? Several runs are unfinished.");
            Err(several.iter().fold(error, |error, run| {
                error.hint(format!("-M {} -H {}", run.manifest, run.hosts.join(",")))
            }))
        }
    }
}

/// Reads a run.
pub(super) async fn read(head: &RunHead, journal: &Arc<dyn Journal>) -> Result<Run, CommandError> {
    let run = journal.run(head.id).await?;
    run.ok_or_else(|| CommandError::failed(format!("There is no run {}.", head.id)))
}

/// Says how a run ended, in a word.
pub(super) fn word(run: &RunHead) -> &'static str {
    run.ended.map_or("unfinished", |(_, ending)| ending.word())
}
