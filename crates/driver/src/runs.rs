//! Which run is meant: the newest of a manifest, or the only one that is unfinished.
//!
//! In: flags, the journal. Out: a run.
//! Never: a guess between several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::FORM;

use crate::error::DriverError;

pub use homestak_engine::chronicle::{Chronicle, Row, Status};
pub use homestak_engine::journal::{Ending, Journal, Run, RunHead};
pub use homestak_engine::journal::{
    Happened, Holding, JournalError, Lease, Life, RunFilter, RunId, SILENT, Scope, Trouble,
};
pub use homestak_engine::operate::{Interrupt, UndoEffect, UndoItem, rollback_plan};

/// Which runs are meant.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// Those on this manifest.
    pub manifest: Option<String>,
    /// Those on this host.
    pub host: Option<String>,
}

/// Returns the host that a run is named by.
pub fn first(hosts: &[String]) -> &str {
    hosts.first().map_or("", String::as_str)
}

/// Tells whether a run was not brought to an end.
pub fn is_unfinished(run: &RunHead) -> bool {
    match run.ended {
        None => true,
        Some((_, ending)) => match ending {
            Ending::Failed | Ending::Stopped | Ending::Stuck => true,
            Ending::Done | Ending::RolledBack | Ending::Superseded => false,
        },
    }
}

/// Tells whether `resume` accepts a run.
pub fn is_resumable(run: &RunHead) -> bool {
    is_unfinished(run) && !is_outdated(run)
}

/// Tells whether a run was started by an older homestak and not brought to an end.
pub fn is_outdated(run: &RunHead) -> bool {
    is_unfinished(run) && run.form != FORM
}

/// Says that a run of an older homestak can only be left behind.
pub fn outdated(run: &RunHead) -> String {
    format!(
        "Run {} was started by an older homestak, so it can be neither resumed nor undone.",
        run.id
    )
}

/// Says what to do first about a run of an older homestak. Before sites had an id, its guests got no
/// identity of one.
pub fn way_on(run: &RunHead) -> String {
    if run.site.is_some() {
        return format!("{} continues from what is there", again(run));
    }
    format!(
        "homestak manifest reidentify {} gives its guests an identity of this site",
        flags(run)
    )
}

/// Returns the command that does again what a run was for.
fn again(run: &RunHead) -> String {
    let verb = match run.verb.as_str() {
        verb @ ("destroy" | "reidentify") => verb,
        _ => "apply",
    };
    format!("homestak manifest {verb} {}", flags(run))
}

/// Returns the flags that name a run among the newest ones: no two of a manifest share a host.
pub fn flags(run: &RunHead) -> String {
    format!("-M {} -H {}", run.manifest, first(&run.hosts))
}

/// Returns the newest run of each other site on a manifest and hosts; without them, on any.
pub async fn of_others(
    manifest: Option<&str>,
    hosts: &[&str],
    journal: &dyn Journal,
    site: Option<&SiteId>,
) -> Result<Vec<RunHead>, DriverError> {
    let mut others: Vec<RunHead> = Vec::new();
    // A site that has runs of its own has not lost its id.
    if let Some(site) = site
        && has_runs(journal, site).await?
    {
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

/// Tells whether the journal knows runs of a site.
pub async fn has_runs(journal: &dyn Journal, site: &SiteId) -> Result<bool, DriverError> {
    let runs = journal.runs(None).await?;
    Ok(runs.iter().any(|run| run.site.as_ref() == Some(site)))
}

/// Says of which site a run is, and how this one gets that id.
pub fn whose(run: &RunHead) -> String {
    let id = run.site.as_ref().map_or("", SiteId::as_str);
    format!(
        "this state directory knows runs of `{}` on {} of the site `{id}`; \
         homestak site new-id --id {id} if this is that site",
        run.manifest,
        run.hosts.join(",")
    )
}

/// Says of which site guests are, and how this one gets that id.
pub fn lost_id(manifests: &str, id: &SiteId) -> String {
    format!(
        "guests of a manifest `{manifests}` carry the site `{id}`; \
         homestak site new-id --id {id} if this is that site"
    )
}

/// Returns what to know when there is no such run: which other sites have one.
pub async fn hints(
    which: &Which,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Vec<String>, DriverError> {
    let host = which.host.as_deref();
    let others = of_others(
        which.manifest.as_deref(),
        host.as_slice(),
        journal.as_ref(),
        Some(site),
    )
    .await?;
    Ok(others.iter().map(whose).collect())
}

/// Returns the runs of a site that flags choose, newest first.
pub async fn listed(
    which: &Which,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Vec<RunHead>, DriverError> {
    Ok(journal.page(&filter(which, site)).await?)
}

/// Returns the filter that lets the runs of a site through that are meant.
pub fn filter(which: &Which, site: &SiteId) -> RunFilter {
    RunFilter {
        site: Some(site.clone()),
        manifest: which.manifest.clone(),
        host: which.host.clone(),
        ..RunFilter::default()
    }
}

/// Returns the newest runs that flags choose. Newer runs on any host count, so that one that was
/// replaced on another host than the one that is named is not among them.
pub async fn current(
    which: &Which,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Vec<RunHead>, DriverError> {
    let mut runs = newest(of_site(which, journal, site).await?);
    runs.retain(|run| is_meant(which, run));
    Ok(runs)
}

async fn of_site(
    which: &Which,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Vec<RunHead>, DriverError> {
    let of_any_host = RunFilter {
        host: None,
        ..filter(which, site)
    };
    Ok(journal.page(&of_any_host).await?)
}

fn is_meant(which: &Which, run: &RunHead) -> bool {
    let host = which.host.as_ref();
    host.is_none_or(|host| run.hosts.contains(host))
}

/// Returns the runs that no newer run of the same manifest shares a host with. They come newest
/// first.
pub fn newest(mut runs: Vec<RunHead>) -> Vec<RunHead> {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    runs.retain(|run| {
        let hosts = seen.entry(run.manifest.clone()).or_default();
        // What replaced it counts, whether or not that was replaced itself.
        let fresh = run
            .hosts
            .iter()
            .filter(|host| hosts.insert((*host).clone()));
        fresh.count() == run.hosts.len()
    });
    runs
}

/// Adds that the newest run that flags choose was replaced by one on other hosts, if it was.
pub async fn with_replaced(
    error: DriverError,
    which: &Which,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<DriverError, DriverError> {
    let runs = listed(which, journal, site).await?;
    Ok(match runs.first() {
        Some(run) => error.hint(replaced(run)),
        None => error,
    })
}

/// Says that a run was replaced.
pub fn replaced(run: &RunHead) -> String {
    format!(
        "run {} ({} `{}` on {}) was replaced by a newer one on some of these hosts",
        run.id,
        run.verb,
        run.manifest,
        run.hosts.join(",")
    )
}

/// Returns the one run that is unfinished.
pub async fn unfinished(
    which: &Which,
    journal: &Arc<dyn Journal>,
    site: &SiteId,
) -> Result<Run, DriverError> {
    let current = current(which, journal, site).await?;
    let mut runs = current.clone();
    runs.retain(is_unfinished);
    match runs.as_slice() {
        [] => {
            let mut none = DriverError::refused(match which.manifest.as_deref() {
                Some(manifest) => format!("No run of `{manifest}` is unfinished."),
                None => "No run is unfinished.".to_owned(),
            })
            .hint("homestak manifest history lists runs");
            if current.is_empty() {
                none = with_replaced(none, which, journal, site).await?;
            }
            let hints = hints(which, journal, site).await?;
            Err(hints.into_iter().fold(none, DriverError::hint))
        }
        [one] => read(one, journal).await,
        several => {
            let error = DriverError::usage("Which one? Several runs are unfinished.");
            Err(several
                .iter()
                .fold(error, |error, run| error.hint(flags(run))))
        }
    }
}

/// Reads a run.
pub async fn read(head: &RunHead, journal: &Arc<dyn Journal>) -> Result<Run, DriverError> {
    let run = journal.run(head.id).await?;
    run.ok_or_else(|| DriverError::failed(format!("There is no run {}.", head.id)))
}

/// Says how a run ended, in a word.
pub fn word(run: &RunHead) -> &'static str {
    run.ended.map_or("unfinished", |(_, ending)| ending.word())
}

/// Refuses a run of an older homestak: what its plan does not say would have to be guessed.
pub fn require_known_form(run: &Run) -> Result<(), DriverError> {
    if run.plan.form == FORM {
        return Ok(());
    }
    let refused = DriverError::refused(outdated(&run.head)).hint(way_on(&run.head));
    Err(match run.head.site {
        Some(_) => refused,
        None => refused.hint(format!(
            "{} then continues from what is there",
            again(&run.head)
        )),
    })
}
