//! Which run is meant: the newest of a manifest, or the only one that is unfinished.
//!
//! In: flags, the journal. Out: a run.
//! Never: a guess between several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::PLAN_FORMAT;

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
    is_unfinished(run) && run.form != PLAN_FORMAT
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

/// The runs of a site that flags choose.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// Which they are.
    pub which: &'a Which,
    /// Where they are recorded.
    pub journal: &'a Arc<dyn Journal>,
    /// The site.
    pub site: &'a SiteId,
}

impl Runs<'_> {
    /// Returns what to know when there is no such run: which other sites have one.
    pub async fn hints(&self) -> Result<Vec<String>, DriverError> {
        let (manifest, host) = (self.which.manifest.as_deref(), self.which.host.as_deref());
        let journal = self.journal.as_ref();
        let others = of_others(manifest, host.as_slice(), journal, Some(self.site)).await?;
        Ok(others.iter().map(whose).collect())
    }

    /// Adds to an error which other sites have such runs.
    async fn hinted(&self, error: DriverError) -> Result<DriverError, DriverError> {
        Ok(self
            .hints()
            .await?
            .into_iter()
            .fold(error, DriverError::hint))
    }

    /// Returns them, newest first.
    pub async fn listed(&self) -> Result<Vec<RunHead>, DriverError> {
        Ok(self.journal.page(&self.filter()).await?)
    }

    /// Returns so many of them, the newest or those before one, and whether there are older ones.
    pub async fn page(
        &self,
        limit: usize,
        before: Option<RunId>,
    ) -> Result<(Vec<RunHead>, bool), DriverError> {
        let filter = RunFilter {
            before,
            // One more, to know whether there are more.
            limit: Some(limit + 1),
            ..self.filter()
        };
        let mut runs = self.journal.page(&filter).await?;
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

    /// Returns the newest of them. Newer runs on any host count, so that one that was replaced on
    /// another host than the one that is named is not among them.
    pub async fn current(&self) -> Result<Vec<RunHead>, DriverError> {
        let of_any_host = RunFilter {
            host: None,
            ..self.filter()
        };
        let mut runs = newest(self.journal.page(&of_any_host).await?);
        let host = self.which.host.as_ref();
        runs.retain(|run| host.is_none_or(|host| run.hosts.contains(host)));
        Ok(runs)
    }

    /// Returns the one run that is unfinished.
    pub async fn unfinished(&self) -> Result<RunHead, DriverError> {
        let current = self.current().await?;
        let mut runs = current.clone();
        runs.retain(is_unfinished);
        let none = DriverError::refused(match self.which.manifest.as_deref() {
            Some(manifest) => format!("No run of `{manifest}` is unfinished."),
            None => "No run is unfinished.".to_owned(),
        })
        .hint("homestak manifest history lists runs");
        let several = "Which one? Several runs are unfinished.";
        self.only(runs, current.is_empty(), (none, several)).await
    }

    /// Returns the newest run of the manifest that is named, or the only one that is unfinished.
    pub async fn last(&self) -> Result<RunHead, DriverError> {
        let Some(manifest) = &self.which.manifest else {
            return self.unfinished().await;
        };
        let on = self.which.host.as_ref().map_or_else(String::new, |host| {
            format!(" on `{host}` that could be undone")
        });
        let none = DriverError::refused(format!("There is no run of `{manifest}`{on}."));
        let several = "Which one? It ran on several hosts.";
        self.only(self.current().await?, true, (none, several))
            .await
    }

    /// Returns the only run, or says that there is none, and whether it was replaced by one on other
    /// hosts; or which there are.
    async fn only(
        &self,
        mut runs: Vec<RunHead>,
        is_replaced: bool,
        (mut none, several): (DriverError, &str),
    ) -> Result<RunHead, DriverError> {
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

    /// Reads the run of that number, or the newest of them.
    pub async fn read(&self, number: Option<RunId>) -> Result<Run, DriverError> {
        let id = match number {
            Some(number) => Some(number),
            None => self.page(1, None).await?.0.first().map(|run| run.id),
        };
        let run = match id {
            Some(id) => self.journal.run(id).await?,
            None => None,
        };
        if let Some(run) = run.filter(|run| run.head.is_of(self.site)) {
            return Ok(run);
        }
        let none = DriverError::failed("There is no such run.")
            .hint("homestak manifest history lists runs");
        Err(self.hinted(none).await?)
    }
}

/// Takes a run to resume or undo it, and reads it: it may have ended while it was not held.
pub(crate) async fn take(
    head: &RunHead,
    journal: &Arc<dyn Journal>,
) -> Result<(Box<dyn Lease>, Run), DriverError> {
    let lease = journal.hold(&head.scopes()).await?;
    let run = read(head, journal).await?;
    require_known_form(&run)?;
    Ok((lease, run))
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
fn require_known_form(run: &Run) -> Result<(), DriverError> {
    if run.plan.format == PLAN_FORMAT {
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
