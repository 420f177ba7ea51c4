//! Selects runs of the journal: the newest of a manifest, or the only unfinished one. When several
//! match, the user has to choose.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::PLAN_FORMAT;

use crate::error::DriverError;

pub use homestak_engine::journal::{
    HEARTBEAT_TIMEOUT, HolderState, JournalError, Lease, LeaseHolder, RunFilter, RunId, Scope,
    StepError, StepEvent,
};
pub use homestak_engine::journal::{Journal, Run, RunOutcome, RunSummary};
pub use homestak_engine::operate::{Interrupt, UndoEffect, UndoItem, rollback_plan};
pub use homestak_engine::ports::{ErrorClass, NextAction};
pub use homestak_engine::report::{ConfigState, ReportRow, RowStatus, RunReport};

/// Selects runs.
#[derive(Clone, Debug, Default)]
pub struct RunSelector {
    /// Runs on this manifest.
    pub manifest: Option<String>,
    /// Runs on this host.
    pub host: Option<String>,
}

/// Returns the first host of a run.
pub fn first(hosts: &[String]) -> &str {
    hosts.first().map_or("", String::as_str)
}

/// Returns whether a run is unfinished.
pub fn is_unfinished(run: &RunSummary) -> bool {
    match run.ended {
        None => true,
        Some((_, ending)) => match ending {
            RunOutcome::Failed | RunOutcome::Stopped | RunOutcome::Stuck => true,
            RunOutcome::Done | RunOutcome::RolledBack | RunOutcome::Superseded => false,
        },
    }
}

/// Returns whether a run can be resumed.
pub fn is_resumable(run: &RunSummary) -> bool {
    is_unfinished(run) && !is_outdated(run)
}

/// Returns whether a run is unfinished and was started by an older version.
pub fn is_outdated(run: &RunSummary) -> bool {
    is_unfinished(run) && run.form != PLAN_FORMAT
}

/// Returns the message for a run of an older version.
pub fn outdated(run: &RunSummary) -> String {
    format!(
        "Run {} was started by an older version of homestak, and can be neither resumed nor rolled back.",
        run.id
    )
}

/// Returns the hint for a run of an older version. Before sites had an id, guests had no identity
/// of a site.
pub fn outdated_hint(run: &RunSummary) -> String {
    if run.site.is_some() {
        return format!("{} continues from what is there", again(run));
    }
    format!(
        "homestak manifest reidentify {} gives its guests an identity of this site",
        flags(run)
    )
}

/// Returns the command that repeats a run.
pub fn again(run: &RunSummary) -> String {
    let verb = match run.verb.as_str() {
        verb @ ("destroy" | "reidentify") => verb,
        _ => "apply",
    };
    format!("homestak manifest {verb} {}", flags(run))
}

/// Returns the flags that select a run among the newest ones: no two runs of a manifest share a
/// host.
pub fn flags(run: &RunSummary) -> String {
    format!("-M {} -H {}", run.manifest, first(&run.hosts))
}

/// Returns the newest run of each other site on a manifest and hosts, or on any.
pub async fn runs_of_other_sites(
    manifest: Option<&str>,
    hosts: &[&str],
    journal: &dyn Journal,
    site: Option<&SiteId>,
) -> Result<Vec<RunSummary>, DriverError> {
    let mut others: Vec<RunSummary> = Vec::new();
    // A site with runs of its own has not lost its id.
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

/// Returns whether the journal has runs of a site.
pub async fn has_runs(journal: &dyn Journal, site: &SiteId) -> Result<bool, DriverError> {
    let runs = journal.runs(None).await?;
    Ok(runs.iter().any(|run| run.site.as_ref() == Some(site)))
}

/// Returns a hint about the site of a run.
pub fn other_site_hint(run: &RunSummary) -> String {
    let id = run.site.as_ref().map_or("", SiteId::as_str);
    format!(
        "this state directory knows runs of `{}` on {} of the site `{id}`; \
         homestak site new-id --id {id} if this is that site",
        run.manifest,
        run.hosts.join(",")
    )
}

/// Returns a hint about the site of guests.
pub fn lost_id_hint(manifests: &str, id: &SiteId) -> String {
    format!(
        "guests of a manifest `{manifests}` carry the site `{id}`; \
         homestak site new-id --id {id} if this is that site"
    )
}

/// Selected runs of a site.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// The selection.
    pub which: &'a RunSelector,
    /// The journal.
    pub journal: &'a Arc<dyn Journal>,
    /// The site.
    pub site: &'a SiteId,
}

impl Runs<'_> {
    /// Returns hints for when no run matches: other sites that have one.
    pub async fn hints(&self) -> Result<Vec<String>, DriverError> {
        let (manifest, host) = (self.which.manifest.as_deref(), self.which.host.as_deref());
        let journal = self.journal.as_ref();
        let others =
            runs_of_other_sites(manifest, host.as_slice(), journal, Some(self.site)).await?;
        Ok(others.iter().map(other_site_hint).collect())
    }

    /// Adds these hints to an error.
    async fn hinted(&self, error: DriverError) -> Result<DriverError, DriverError> {
        Ok(self
            .hints()
            .await?
            .into_iter()
            .fold(error, DriverError::hint))
    }

    /// Returns the runs, newest first.
    pub async fn listed(&self) -> Result<Vec<RunSummary>, DriverError> {
        Ok(self.journal.list_runs(&self.filter()).await?)
    }

    /// Returns a page of runs, newest first, and whether there are older ones.
    pub async fn page(
        &self,
        limit: usize,
        before: Option<RunId>,
    ) -> Result<(Vec<RunSummary>, bool), DriverError> {
        let filter = RunFilter {
            before,
            // One more, to detect older ones.
            limit: Some(limit + 1),
            ..self.filter()
        };
        let mut runs = self.journal.list_runs(&filter).await?;
        let more = runs.len() > limit;
        runs.truncate(limit);
        Ok((runs, more))
    }

    fn filter(&self) -> RunFilter {
        RunFilter {
            site: Some(self.site.clone()),
            manifest: self.which.manifest.clone(),
            host: self.which.host.clone(),
            ..RunFilter::default()
        }
    }

    /// Returns the newest runs. A run that was replaced by a newer one on any of its hosts is not
    /// among them.
    pub async fn current(&self) -> Result<Vec<RunSummary>, DriverError> {
        let of_any_host = RunFilter {
            host: None,
            ..self.filter()
        };
        let mut runs = newest(self.journal.list_runs(&of_any_host).await?);
        let host = self.which.host.as_ref();
        runs.retain(|run| host.is_none_or(|host| run.hosts.contains(host)));
        Ok(runs)
    }

    /// Returns the only unfinished run.
    pub async fn unfinished(&self) -> Result<RunSummary, DriverError> {
        let current = self.current().await?;
        let mut runs = current.clone();
        runs.retain(is_unfinished);
        let none = DriverError::refused(match self.which.manifest.as_deref() {
            Some(manifest) => format!("There is no unfinished run of `{manifest}`."),
            None => "There is no unfinished run.".to_owned(),
        })
        .hint("homestak manifest history lists runs");
        let several = "Several runs are unfinished; choose one.";
        self.only(runs, current.is_empty(), (none, several)).await
    }

    /// Returns the newest run of the selected manifest, or the only unfinished one.
    pub async fn last(&self) -> Result<RunSummary, DriverError> {
        let Some(manifest) = &self.which.manifest else {
            return self.unfinished().await;
        };
        let on = self.which.host.as_ref().map_or_else(String::new, |host| {
            format!(" on `{host}` that could be undone")
        });
        let none = DriverError::refused(format!("There is no run of `{manifest}`{on}."));
        let several = "There are runs on several hosts; choose one.";
        self.only(self.current().await?, true, (none, several))
            .await
    }

    /// Returns the only run; otherwise an error that lists the candidates, or mentions a run that
    /// was replaced.
    async fn only(
        &self,
        mut runs: Vec<RunSummary>,
        is_replaced: bool,
        (mut none, several): (DriverError, &str),
    ) -> Result<RunSummary, DriverError> {
        match (runs.pop(), runs.is_empty()) {
            (Some(one), true) => Ok(one),
            (Some(last), false) => {
                let all = runs.iter().chain([&last]);
                Err(all.fold(DriverError::usage(several), |error, run| {
                    error.hint(flags(run))
                }))
            }
            (None, _) => {
                if is_replaced && let Some(run) = self.listed().await?.first() {
                    none = none.hint(replaced(run));
                }
                Err(self.hinted(none).await?)
            }
        }
    }

    /// Reads a run by its number, or the newest.
    pub async fn read(&self, number: Option<RunId>) -> Result<Run, DriverError> {
        let id = match number {
            Some(number) => Some(number),
            None => self.page(1, None).await?.0.first().map(|run| run.id),
        };
        let run = match id {
            Some(id) => self.journal.run(id).await?,
            None => None,
        };
        let message = match (run, number) {
            (Some(run), _) if run.head.is_of(self.site) => return Ok(run),
            (Some(run), _) => {
                let site = run.head.site.as_ref().map_or("", SiteId::as_str);
                format!(
                    "Run {} belongs to the site `{site}`, and this site is `{}`.",
                    run.head.id, self.site
                )
            }
            (None, Some(number)) => format!("There is no run {number}."),
            (None, None) => "There is no run.".to_owned(),
        };
        let none =
            DriverError::failed(message).hint("homestak manifest history lists runs of this site");
        Err(self.hinted(none).await?)
    }
}

/// Locks a run and reads it: it may have ended before it was locked.
pub(crate) async fn take(
    head: &RunSummary,
    journal: &Arc<dyn Journal>,
) -> Result<(Box<dyn Lease>, Run), DriverError> {
    let lease = journal.lock(&head.scopes()).await?;
    let run = read(head, journal).await?;
    require_known_form(&run)?;
    Ok((lease, run))
}

/// Returns the runs that no newer run of the same manifest shares a host with. The input is sorted
/// newest first.
pub fn newest(mut runs: Vec<RunSummary>) -> Vec<RunSummary> {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    runs.retain(|run| {
        let hosts = seen.entry(run.manifest.clone()).or_default();
        // Runs that were replaced themselves count, too.
        let fresh = run
            .hosts
            .iter()
            .filter(|host| hosts.insert((*host).clone()));
        fresh.count() == run.hosts.len()
    });
    runs
}

/// Returns the hint for a run that was replaced.
pub fn replaced(run: &RunSummary) -> String {
    format!(
        "run {} ({} `{}` on {}) was replaced by a newer one on some of these hosts",
        run.id,
        run.verb,
        run.manifest,
        run.hosts.join(",")
    )
}

/// Reads a run.
pub async fn read(head: &RunSummary, journal: &Arc<dyn Journal>) -> Result<Run, DriverError> {
    let run = journal.run(head.id).await?;
    run.ok_or_else(|| DriverError::failed(format!("There is no run {}.", head.id)))
}

/// Returns the name of the outcome, or `unfinished`.
pub fn outcome_name(run: &RunSummary) -> &'static str {
    run.ended.map_or("unfinished", |(_, ending)| ending.name())
}

/// Fails for a run of an older version, whose plan lacks what is needed.
fn require_known_form(run: &Run) -> Result<(), DriverError> {
    if run.plan.format == PLAN_FORMAT {
        return Ok(());
    }
    let refused = DriverError::refused(outdated(&run.head)).hint(outdated_hint(&run.head));
    Err(match run.head.site {
        Some(_) => refused,
        None => refused.hint(format!(
            "{} then continues from what is there",
            again(&run.head)
        )),
    })
}
