//! A manifest on its way: hold it, plan, check the hosts, carry it out.
//!
//! In: a manifest and options. Out: a plan, and how a run ended.
//! Never: a plan with refusals carried out; two runs on the same manifest and host at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{Plan, PlanOptions, Verb};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest};
use homestak_engine::context::off;
use homestak_engine::events::Observer;
use homestak_engine::journal::{Ending, Lease, RunHead, Scope};
use homestak_engine::operate::Interrupt;
use homestak_engine::planning::records;
use homestak_engine::verify::{Verdict, verify};
use homestak_site::SiteSource;
use serde_json::json;

use crate::driver::Driver;
use crate::error::{DriverError, count};
use crate::preflight::Severity;
use crate::runs::{has_runs, is_unfinished, lost_id, of_others, whose};
use crate::select::{Choice, select};
use crate::session::Session;
use crate::settings::DriverSettings;

/// A manifest on its way.
pub struct Job {
    /// The manifest.
    pub resolved: ResolvedManifest,
    /// How it was chosen.
    pub choice: Choice,
    /// Everything a run needs.
    pub driver: Driver,
    request: ResolveOptions,
}

impl Job {
    /// Resolves the manifest and puts together what carrying it out needs. A plan that was written
    /// brings the id of its site, and whether the site was given it for the plan.
    pub fn open(
        choice: Choice,
        site: Option<(&SiteId, bool)>,
        mut session: Session,
        settings: &DriverSettings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, DriverError> {
        let (resolved, request) = select(&choice, &mut session)?;
        session.id()?;
        if let Some((id, is_new)) = site {
            session.expect_id(id, is_new)?;
        }
        session.limit(&resolved.settings.limits());
        Ok(Self {
            resolved,
            choice,
            driver: Driver::new(Arc::new(session), settings, observer)?,
            request,
        })
    }

    fn session(&self) -> &Session {
        &self.driver.session
    }

    /// Returns what excludes what.
    fn scopes(&self) -> Result<Vec<Scope>, DriverError> {
        Ok(Scope::of_manifest(self.session().id()?, &self.resolved))
    }

    /// Makes sure that nobody else works on the same, and that a site without an id is not one
    /// that has lost it.
    pub async fn hold(&self) -> Result<Box<dyn Lease>, DriverError> {
        let lease = self.driver.journal().hold(&self.scopes()?).await?;
        let session = self.session();
        if session.has_id {
            return Ok(lease);
        }
        let mut others = self.of_others().await?;
        if others.is_empty() && matches!(session.search.source, SiteSource::Directory(_)) {
            others = self.of_any_manifest().await?;
        }
        if others.is_empty() {
            return Ok(lease);
        }
        session.require_none_yet()?;
        let refused = DriverError::refused("The site has no id, and it may have had one.");
        let hints = others.iter().map(whose);
        Err(hints
            .fold(refused, DriverError::hint)
            .hint("homestak site new-id gives it an id of its own"))
    }

    /// Returns runs of other sites on the same manifest and hosts.
    async fn of_others(&self) -> Result<Vec<RunHead>, DriverError> {
        let scopes = self.scopes()?;
        let hosts: Vec<&str> = scopes.iter().map(|scope| &*scope.host).collect();
        let (journal, site) = (self.driver.journal(), self.session().id()?);
        of_others(
            Some(&self.resolved.name),
            &hosts,
            journal.as_ref(),
            Some(site),
        )
        .await
    }

    /// Returns runs of other sites on any manifest, unless an older homestak left some without a
    /// site: then this site may be one that never had an id.
    async fn of_any_manifest(&self) -> Result<Vec<RunHead>, DriverError> {
        let journal = self.driver.journal();
        let runs = journal.runs(None).await?;
        if runs.iter().any(|run| run.site.is_none()) {
            return Ok(Vec::new());
        }
        of_others(None, &[], journal.as_ref(), Some(self.session().id()?)).await
    }

    /// Looks and plans.
    pub async fn plan(&self, options: &PlanOptions) -> Result<Plan, DriverError> {
        let plan = self
            .driver
            .plan(&self.resolved, &self.request, options)
            .await?;
        self.notice_other_ids(&plan).await?;
        Ok(plan)
    }

    /// Names other sites that this one may be, when it has no id or the plan finds nothing of its
    /// own: by runs on the same manifest and hosts, and by guests of a manifest of that name.
    async fn notice_other_ids(&self, plan: &Plan) -> Result<(), DriverError> {
        let finds_none = plan.nodes.iter().all(|node| node.found.is_none());
        let removes_none = plan.verb != Verb::Apply && plan.is_empty();
        let mut named = BTreeSet::new();
        if !self.session().has_id || removes_none {
            for run in self.of_others().await? {
                self.session()
                    .notices
                    .notice(&format!("notice: {}", whose(&run)));
                named.extend(run.site);
            }
        }
        let (journal, own) = (self.driver.journal(), self.session().id()?);
        // A site that has runs of its own has not lost its id.
        let lost = finds_none && !has_runs(journal.as_ref(), own).await?;
        let guests = plan
            .foreign
            .iter()
            .filter(|guest| lost && guest.manifest.as_deref() == Some(plan.manifest.as_str()));
        for id in guests.filter_map(|guest| guest.site.as_ref()) {
            if id != own && named.insert(id.clone()) {
                let notice = lost_id(&plan.manifest, id);
                self.session().notices.notice(&format!("notice: {notice}"));
            }
        }
        Ok(())
    }

    /// Returns earlier runs on the same manifest and hosts that were not brought to an end.
    pub async fn unfinished(&self) -> Result<Vec<RunHead>, DriverError> {
        let scopes = self.scopes()?;
        let site = self.session().id()?;
        let shares = |run: &RunHead| {
            run.is_of(site) && scopes.iter().any(|scope| run.hosts.contains(&scope.host))
        };
        let runs = self
            .driver
            .journal()
            .runs(Some(&self.resolved.name))
            .await?;
        let mut runs: Vec<RunHead> = runs.into_iter().filter(shares).collect();
        // One that failed stays as it ended, but only the newest can still be resumed.
        let newest = runs.first().map(|run| run.id);
        runs.retain(|run| {
            let open = matches!(run.ended, None | Some((_, Ending::Stopped)));
            open || is_unfinished(run) && Some(run.id) == newest
        });
        Ok(runs)
    }

    /// Says that earlier runs are left behind, and ends those that are still open.
    pub async fn take_over(&self, runs: &[RunHead]) -> Result<(), DriverError> {
        for run in runs {
            let how = run.ended.map_or("was cut off", |(_, ending)| match ending {
                Ending::Stopped => "was stopped",
                Ending::Stuck => "got stuck",
                _ => "failed",
            });
            self.session().notices.notice(&format!(
                "Run {} ({}) {how}; this one takes over from what is there.",
                run.id, run.verb
            ));
        }
        let open = |run: &&RunHead| matches!(run.ended, None | Some((_, Ending::Stopped)));
        let open: Vec<RunHead> = runs.iter().filter(open).cloned().collect();
        self.driver.supersede(&open).await
    }

    /// Checks every host of a plan. Findings are notices; failures refuse the plan.
    pub async fn preflight(&self, plan: &Plan) -> Result<(), DriverError> {
        let notices = &self.session().notices;
        let makes = Some(plan).filter(|plan| plan.verb == Verb::Apply);
        let mut failures = Vec::new();
        for host in &plan.hosts {
            notices.detail(&format!("checking {host}"));
            for finding in self.driver.hosts.of(host).check(host, makes).await? {
                let text = format!("{host}: {}: {}", finding.check, finding.detail);
                match finding.severity {
                    Severity::Good => {}
                    Severity::Unknown => notices.detail(&format!("unknown: {text}")),
                    Severity::Warning => notices.notice(&format!("warning: {text}")),
                    Severity::Failure => {
                        notices.notice(&format!("failure: {text}"));
                        failures.push(finding.fix);
                    }
                }
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        let refused = DriverError::refused(format!(
            "The hosts are not ready: {}.",
            count(failures.len(), "failure")
        ));
        let refused = failures
            .into_iter()
            .filter(|fix| !fix.is_empty())
            .fold(refused, DriverError::hint);
        Err(refused.hint("--skip-preflight goes on without these checks"))
    }

    /// Makes sure that what nodes are given is there, before anything is made.
    pub async fn require_keys(&self) -> Result<(), DriverError> {
        let keyring = self.driver.keyring.clone();
        let own = off("make the driver's SSH key", move || keyring.driver_key()).await;
        let failed = |error| DriverError::of_host("the driver", &error);
        own.map(drop).map_err(failed)
    }

    /// Carries a plan out. A site without an id is given one first: what is recorded is found again
    /// by it.
    pub async fn carry_out(
        &self,
        verb: &str,
        plan: impl Into<Arc<Plan>>,
        interrupt: Interrupt,
    ) -> Result<Ending, DriverError> {
        let session = self.driver.session.clone();
        crate::off::off(move || session.keep_id()).await?;
        let operator = &self.driver.operator;
        Ok(operator.carry_out(verb, plan, interrupt).await?.1)
    }

    /// Looks whether every node of a plan that was carried out is as it should be.
    pub async fn verify(&self, plan: &Plan) -> Result<Vec<Verdict>, DriverError> {
        let operator = &self.driver.operator;
        let records = records(operator.journal.as_ref(), &self.scopes()?).await?;
        let records: Vec<_> = records.values().cloned().collect();
        Ok(verify(&operator.places, &operator.configurer, plan, &records).await)
    }
}

/// Stops a plan that cannot be carried out.
pub fn refusals(plan: &Plan) -> Result<(), DriverError> {
    if plan.refusals.is_empty() {
        return Ok(());
    }
    let refused = DriverError::refused(format!(
        "The plan cannot be carried out: {}.",
        count(plan.refusals.len(), "refusal")
    ));
    Err(DriverError {
        diagnostics: Some(Box::new(json!(plan.refusals))),
        ..refused
    })
}
