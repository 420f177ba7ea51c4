//! Which run is meant: the newest of a manifest, or the only one that is unfinished.
//!
//! In: flags, the journal. Out: a run.
//! Never: a guess between several.

use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_engine::journal::{Ending, Journal, Run, RunFilter, RunHead};

use super::job::first;
use crate::args::RunArgs;
use crate::error::CommandError;

/// Tells whether a run was not brought to an end.
pub(in crate::commands) fn is_unfinished(run: &RunHead) -> bool {
    match run.ended {
        None => true,
        Some((_, ending)) => match ending {
            Ending::Failed | Ending::Stopped | Ending::Stuck => true,
            Ending::Done | Ending::RolledBack | Ending::Superseded => false,
        },
    }
}

/// Tells whether `resume` accepts a run. One of an older homestak names no site, and cannot be.
pub(super) fn is_resumable(run: &RunHead) -> bool {
    is_unfinished(run) && !is_outdated(run)
}

/// Tells whether a run was started by an older homestak and not brought to an end.
pub(super) fn is_outdated(run: &RunHead) -> bool {
    is_unfinished(run) && run.site.is_none()
}

/// Says that a run of an older homestak can only be left behind.
pub(super) fn outdated(run: &RunHead) -> String {
    format!(
        "Run {} was started by an older homestak, so it can be neither resumed nor undone.",
        run.id
    )
}

/// Says how guests of a run of an older homestak become the site's.
pub(super) fn reidentify(run: &RunHead) -> String {
    format!(
        "homestak manifest reidentify {} gives its guests an identity of this site",
        flags(run)
    )
}

/// Returns the flags that name a run among the newest ones: no two of a manifest share a host.
pub(super) fn flags(run: &RunHead) -> String {
    format!("-M {} -H {}", run.manifest, first(&run.hosts))
}

/// Returns the newest run of each other site on a manifest and hosts; without them, on any.
pub(crate) async fn of_others(
    manifest: Option<&str>,
    hosts: &[&str],
    journal: &dyn Journal,
    site: Option<&SiteId>,
) -> Result<Vec<RunHead>, CommandError> {
    let mut others: Vec<RunHead> = Vec::new();
    // A site that has runs of its own has not lost its id.
    let own = |run: &RunHead| site.is_some() && run.site.as_ref() == site;
    if journal.runs(None).await?.iter().any(own) {
        return Ok(others);
    }
    for run in journal.runs(manifest).await? {
        let ours = run.site.is_none() || run.site.as_ref() == site;
        let meant = hosts.is_empty() || run.hosts.iter().any(|host| hosts.contains(&&**host));
        if !ours && meant && !others.iter().any(|other| other.site == run.site) {
            others.push(run);
        }
    }
    Ok(others)
}

/// Says of which site a run is, and how this one gets that id.
pub(crate) fn whose(run: &RunHead) -> String {
    let id = run.site.as_ref().map_or("", SiteId::as_str);
    format!(
        "this state directory knows runs of `{}` on {} of the site `{id}`; \
         homestak site new-id --id {id} if this is that site",
        run.manifest,
        run.hosts.join(",")
    )
}

/// Says of which site guests are, and how this one gets that id.
pub(crate) fn lost_id(manifests: &str, id: &SiteId) -> String {
    format!(
        "guests of a manifest `{manifests}` carry the site `{id}`; \
         homestak site new-id --id {id} if this is that site"
    )
}

/// Returns what to know when there is no such run: which other sites have one.
pub(super) async fn hints(
    which: &RunArgs,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Vec<String>, CommandError> {
    let host = which.host.as_deref();
    let others = of_others(
        which.manifest(),
        host.as_slice(),
        journal.as_ref(),
        Some(site),
    )
    .await?;
    Ok(others.iter().map(whose).collect())
}

/// Returns the runs of a site that flags choose, newest first.
pub(super) async fn listed(
    which: &RunArgs,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Vec<RunHead>, CommandError> {
    Ok(journal.page(&filter(which, site)).await?)
}

/// Returns the filter that lets the runs of a site through that flags choose.
pub(super) fn filter(which: &RunArgs, site: &SiteId) -> RunFilter {
    RunFilter {
        site: Some(site.clone()),
        manifest: which.manifest().map(str::to_owned),
        host: which.host.clone(),
        ..RunFilter::default()
    }
}

/// Returns the newest run of each manifest and its hosts.
pub(in crate::commands) fn newest(runs: Vec<RunHead>) -> Vec<RunHead> {
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
        [] => {
            let none = CommandError::refused(match which.manifest() {
                Some(manifest) => format!("No run of `{manifest}` is unfinished."),
                None => "No run is unfinished.".to_owned(),
            })
            .hint("homestak manifest history lists runs");
            let hints = hints(which, journal, site).await?;
            Err(hints.into_iter().fold(none, CommandError::hint))
        }
        [one] => read(one, journal).await,
        several => {
            let error = CommandError::usage("Which one? Several runs are unfinished.");
            Err(several
                .iter()
                .fold(error, |error, run| error.hint(flags(run))))
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
