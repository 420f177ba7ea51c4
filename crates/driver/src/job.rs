//! A manifest to be planned and executed: lock it, plan, check the hosts, execute, verify.
//!
//! A plan with refusals is never executed; two runs never work on the same manifest and host.

use std::collections::BTreeSet;
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{Plan, PlanOptions, Verb, configure_only};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest};
use homestak_engine::context::run_blocking;
use homestak_engine::events::Observer;
use homestak_engine::journal::{Lease, RunOutcome, RunSummary, Scope};
use homestak_engine::operate::Interrupt;
use homestak_engine::planning::records;
use homestak_engine::verify::{NodeCheck, verify};
use homestak_site::SiteSource;

use crate::driver::Driver;
use crate::error::{DriverError, count};
use crate::nodes::RecordedNode;
use crate::preflight::FindingSeverity;
use crate::runs::{has_runs, is_unfinished, lost_id_hint, other_site_hint, runs_of_other_sites};
use crate::select::{ManifestSelector, select};
use crate::session::Session;
use crate::settings::DriverSettings;
use crate::wire;

/// A manifest to be planned and executed.
pub struct Job {
    /// The manifest.
    pub resolved: ResolvedManifest,
    /// How it was selected.
    pub choice: ManifestSelector,
    /// Everything a run needs.
    pub driver: Driver,
    request: ResolveOptions,
}

impl Job {
    /// Resolves the manifest and opens what executing it needs. `site` is the site id of a plan
    /// file, and whether the id was new when the plan was made.
    pub fn open(
        choice: ManifestSelector,
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

    /// Returns the scopes of the manifest.
    fn scopes(&self) -> Result<Vec<Scope>, DriverError> {
        Ok(Scope::of_manifest(self.session().id()?, &self.resolved))
    }

    /// Locks the manifest on its hosts, and ensures that a site without an id has not lost it.
    /// Without hosts there is nothing to lock, and a plan executes nothing.
    pub async fn lock(&self) -> Result<Option<Box<dyn Lease>>, DriverError> {
        self.lock_scopes(&self.scopes()?).await
    }

    /// Locks the manifest on its hosts and on those of some recorded nodes, which may be others. Also
    /// returns what was locked.
    pub(crate) async fn lock_with(
        &self,
        recorded: &[&RecordedNode],
    ) -> Result<(Option<Box<dyn Lease>>, BTreeSet<Scope>), DriverError> {
        let mut scopes: BTreeSet<Scope> = self.scopes()?.into_iter().collect();
        let hosts = recorded.iter().map(|node| self.scope_of(node));
        scopes.extend(hosts.collect::<Result<Vec<Scope>, DriverError>>()?);
        let locked: Vec<Scope> = scopes.iter().cloned().collect();
        Ok((self.lock_scopes(&locked).await?, scopes))
    }

    /// Returns the scope that runs on a recorded node lock. Its record may be of the first format,
    /// which has no site.
    pub(crate) fn scope_of(&self, node: &RecordedNode) -> Result<Scope, DriverError> {
        let Scope { manifest, host, .. } = &node.scope;
        Ok(Scope::new(Some(self.session().id()?), manifest, host))
    }

    async fn lock_scopes(&self, scopes: &[Scope]) -> Result<Option<Box<dyn Lease>>, DriverError> {
        let lease = match scopes {
            [] => None,
            scopes => Some(self.driver.journal().lock(scopes).await?),
        };
        let session = self.session();
        if session.has_id {
            return Ok(lease);
        }
        let mut others = self.runs_of_other_sites().await?;
        if others.is_empty() && matches!(session.search.source, SiteSource::Directory(_)) {
            others = self.of_any_manifest().await?;
        }
        if others.is_empty() {
            return Ok(lease);
        }
        session.require_none_yet()?;
        let refused = DriverError::refused("The site has no id; its id may have been lost.");
        let hints = others.iter().map(other_site_hint);
        Err(hints
            .fold(refused, DriverError::hint)
            .hint("homestak site new-id gives it an id of its own"))
    }

    /// Returns runs of other sites on the same manifest and hosts.
    async fn runs_of_other_sites(&self) -> Result<Vec<RunSummary>, DriverError> {
        let scopes = self.scopes()?;
        let hosts: Vec<&str> = scopes.iter().map(|scope| &*scope.host).collect();
        let (journal, site) = (self.driver.journal(), self.session().id()?);
        runs_of_other_sites(
            Some(&self.resolved.name),
            &hosts,
            journal.as_ref(),
            Some(site),
        )
        .await
    }

    /// Returns runs of other sites on any manifest; none when the journal has runs of the first
    /// format, because then the site may never have had an id.
    async fn of_any_manifest(&self) -> Result<Vec<RunSummary>, DriverError> {
        let journal = self.driver.journal();
        let runs = journal.runs(None).await?;
        if runs.iter().any(|run| run.site.is_none()) {
            return Ok(Vec::new());
        }
        runs_of_other_sites(None, &[], journal.as_ref(), Some(self.session().id()?)).await
    }

    /// Observes hosts and makes a plan.
    pub async fn plan(&self, options: &PlanOptions) -> Result<Plan, DriverError> {
        let configurer = self.driver.configurer.clone().announcing();
        let plan = self
            .driver
            .plan_with(&configurer, &self.resolved, &self.request, options)
            .await?;
        self.notice_other_ids(&plan).await?;
        Ok(plan)
    }

    /// Observes hosts, and plans only the configuration of nodes that run: of those that are named,
    /// or of all.
    pub async fn plan_configuration(
        &self,
        options: &PlanOptions,
        names: &[String],
    ) -> Result<Plan, DriverError> {
        let known = || self.resolved.nodes.iter().map(|node| node.name.as_str());
        if let Some(name) = names.iter().find(|name| !known().any(|one| one == *name)) {
            return Err(DriverError::unknown("node", name, known()));
        }
        Ok(configure_only(self.plan(options).await?, names))
    }

    /// Reports other sites that this one may be, when it has no id or the plan finds none of its
    /// guests: by runs on the same manifest and hosts, and by tags of guests.
    async fn notice_other_ids(&self, plan: &Plan) -> Result<(), DriverError> {
        let finds_none = plan.nodes.iter().all(|node| node.found.is_none());
        let removes_none = plan.verb != Verb::Apply && plan.is_empty();
        let mut named = BTreeSet::new();
        if !self.session().has_id || removes_none {
            for run in self.runs_of_other_sites().await? {
                self.session()
                    .notices
                    .notice(&format!("notice: {}", other_site_hint(&run)));
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
                let notice = lost_id_hint(&plan.manifest, id);
                self.session().notices.notice(&format!("notice: {notice}"));
            }
        }
        Ok(())
    }

    /// Returns unfinished runs on the same manifest and hosts.
    pub async fn unfinished(&self) -> Result<Vec<RunSummary>, DriverError> {
        let scopes = self.scopes()?;
        let site = self.session().id()?;
        let shares = |run: &RunSummary| {
            run.is_of(site) && scopes.iter().any(|scope| run.hosts.contains(&scope.host))
        };
        let runs = self
            .driver
            .journal()
            .runs(Some(&self.resolved.name))
            .await?;
        let mut runs: Vec<RunSummary> = runs.into_iter().filter(shares).collect();
        // A failed run stays failed, and only the newest can be resumed.
        let newest = runs.first().map(|run| run.id);
        runs.retain(|run| {
            let open = matches!(run.ended, None | Some((_, RunOutcome::Stopped)));
            open || is_unfinished(run) && Some(run.id) == newest
        });
        Ok(runs)
    }

    /// Reports the runs that this one replaces, and ends those that are still open.
    pub async fn take_over(&self, runs: &[RunSummary]) -> Result<(), DriverError> {
        for run in runs {
            let how = run
                .ended
                .map_or("was interrupted", |(_, ending)| match ending {
                    RunOutcome::Stopped => "was stopped",
                    RunOutcome::Stuck => "got stuck",
                    _ => "failed",
                });
            self.session().notices.notice(&format!(
                "Run {} ({}) {how}; this run replaces it.",
                run.id, run.verb
            ));
        }
        let open = |run: &&RunSummary| matches!(run.ended, None | Some((_, RunOutcome::Stopped)));
        let open: Vec<RunSummary> = runs.iter().filter(open).cloned().collect();
        self.driver.supersede(&open).await
    }

    /// Checks every host of a plan. Failures refuse the plan; other findings are reported.
    pub async fn preflight(&self, plan: &Plan) -> Result<(), DriverError> {
        let notices = &self.session().notices;
        let mut failures = Vec::new();
        for host in &plan.hosts {
            notices.detail(&format!("checking {host}"));
            for finding in self.driver.hosts.of(host)?.check(host, Some(plan)).await? {
                let text = format!("{host}: {}: {}", finding.check, finding.detail);
                match finding.severity {
                    FindingSeverity::Good => {}
                    FindingSeverity::Unknown => notices.detail(&format!("unknown: {text}")),
                    FindingSeverity::Warning => notices.notice(&format!("warning: {text}")),
                    FindingSeverity::Failure => {
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
        Err(refused.hint("use --skip-preflight to continue without these checks"))
    }

    /// Ensures that the SSH key for nodes exists.
    pub async fn require_keys(&self) -> Result<(), DriverError> {
        let keyring = self.driver.keyring.clone();
        let own = run_blocking("create the driver's SSH key", move || keyring.driver_key()).await;
        let failed = |error| DriverError::of_host("the driver", &error);
        own.map(drop).map_err(failed)
    }

    /// Executes a plan. A site without an id gets one first, so that its guests can be found again.
    pub async fn carry_out(
        &self,
        verb: &str,
        plan: impl Into<Arc<Plan>>,
        interrupt: Interrupt,
    ) -> Result<RunOutcome, DriverError> {
        let session = self.driver.session.clone();
        crate::blocking::run_blocking(move || session.keep_id()).await?;
        let operator = &self.driver.operator;
        Ok(operator.execute(verb, plan, interrupt).await?.1)
    }

    /// Verifies every node of an executed plan.
    pub async fn verify(&self, plan: &Plan) -> Result<Vec<NodeCheck>, DriverError> {
        let operator = &self.driver.operator;
        let records = records(operator.journal.as_ref(), &self.scopes()?).await?;
        let records: Vec<_> = records.values().cloned().collect();
        Ok(verify(&operator.connector, &operator.configurer, plan, &records).await)
    }
}

/// Fails when a plan has refusals.
pub fn refusals(plan: &Plan) -> Result<(), DriverError> {
    if plan.refusals.is_empty() {
        return Ok(());
    }
    let refused = DriverError::refused(format!(
        "The plan cannot be executed: {}.",
        count(plan.refusals.len(), "refusal")
    ));
    Err(DriverError {
        diagnostics: Some(wire::diagnostic::refusals(&plan.refusals)),
        ..refused
    })
}
