//! Puts together what a run needs: journal, hosts, first-boot data and configuration.

use std::sync::Arc;

use homestak_core::plan::{Plan, PlanOptions};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest};
use homestak_engine::events::{EventHub, Observer};
use homestak_engine::journal::{Journal, RunId, RunOutcome, RunSummary};
use homestak_engine::observe::ObserveError;
use homestak_engine::operate::{Limits, Operator, UndoItem, rollback_plan};
use homestak_engine::planning::{PlanError, PlanRequest};
use homestak_engine::ports::HostConnector;
use homestak_providers::ssh::Keyring;

use crate::configure::SiteConfigurer;
use crate::error::DriverError;
use crate::hosts::Hosts;
use crate::runs::{RunSelector, Runs};
use crate::seed_source::{SiteSeedSource, keyring};
use crate::session::{Session, require_sound};
use crate::settings::DriverSettings;

/// Everything a run needs.
pub struct Driver {
    /// The site.
    pub session: Arc<Session>,
    /// Carries plans out.
    pub operator: Operator,
    /// The hosts of the site.
    pub hosts: Arc<Hosts>,
    /// The driver's SSH keys.
    pub keyring: Keyring,
    /// Applies specs inside nodes.
    pub configurer: SiteConfigurer,
}

/// Opens the journal only, for commands that only read.
pub fn journal(settings: &DriverSettings) -> Result<Arc<dyn Journal>, DriverError> {
    Ok(Arc::new(homestak_store::Sqlite::open(&settings.state)?))
}

impl Driver {
    /// Puts everything together; events of runs go to the observer. Opens the journal, so that
    /// asynchronous code calls it through [`run_blocking`](crate::run_blocking()).
    pub fn new(
        session: Arc<Session>,
        settings: &DriverSettings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, DriverError> {
        let clock = settings.time.clock();
        let hub = EventHub::new(observer, clock.clone());
        let keyring = keyring(settings).with_timeouts(session.timeouts());
        let hosts = Hosts::new(session.clone(), hub.clone(), settings, keyring.clone());
        let hosts = Arc::new(hosts);
        let configurer = SiteConfigurer::new(session.clone(), keyring.clone(), settings);
        Ok(Self {
            operator: Operator {
                connector: hosts.clone(),
                seeds: Arc::new(SiteSeedSource::new(
                    session.clone(),
                    keyring.clone(),
                    configurer.clone(),
                )),
                configurer: Arc::new(configurer.clone()),
                journal: journal(settings)?,
                hub,
                clock,
                limits: Limits {
                    timeouts: settings.timeouts,
                    ..Limits::default()
                },
                point_observer: point_observer(settings),
                mark,
            },
            session,
            hosts,
            keyring,
            configurer,
        })
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.operator.journal
    }

    /// Returns the selected runs of the site.
    pub fn runs<'a>(&'a self, which: &'a RunSelector) -> Result<Runs<'a>, DriverError> {
        Ok(Runs {
            which,
            journal: self.journal(),
            site: self.session.id()?,
        })
    }

    /// Returns the connector to hosts.
    pub fn connector(&self) -> &Arc<dyn HostConnector> {
        &self.operator.connector
    }

    /// Observes hosts and makes a plan.
    pub async fn plan(
        &self,
        resolved: &ResolvedManifest,
        request: &ResolveOptions,
        options: &PlanOptions,
    ) -> Result<Plan, DriverError> {
        self.plan_with(&self.configurer, resolved, request, options)
            .await
    }

    /// Makes a plan with a certain configurer.
    pub(crate) async fn plan_with(
        &self,
        configurer: &SiteConfigurer,
        resolved: &ResolvedManifest,
        request: &ResolveOptions,
        options: &PlanOptions,
    ) -> Result<Plan, DriverError> {
        let (catalog, site) = (&self.session.catalog, self.session.id()?);
        let wanted = PlanRequest {
            site,
            catalog,
            resolved,
            request,
            options,
        };
        let plan = self.operator.plan(&wanted, configurer).await;
        plan.map_err(|error| match error {
            PlanError::Journal(error) => error.into(),
            PlanError::Host(ObserveError { host, error }) => {
                DriverError::of_host(host.as_deref().unwrap_or("the host"), &error)
            }
            PlanError::Diagnostics(faults) => {
                // Notices were reported when the manifest was resolved first.
                let sound = require_sound(self.session.notices.as_ref(), &faults, &catalog.sources);
                let unread = || DriverError::failed("The manifest could not be read.");
                sound.err().unwrap_or_else(unread)
            }
            PlanError::Context(error) => error,
        })
    }

    /// Returns what rolling a run back undoes and what it cannot undo, by the journal alone.
    pub async fn undo_items(&self, run: Option<RunId>) -> Result<Vec<UndoItem>, DriverError> {
        let run = match run {
            Some(id) => self.journal().run(id).await?,
            None => None,
        };
        Ok(run.as_ref().map(rollback_plan).unwrap_or_default())
    }

    /// Marks earlier runs on the same manifest and hosts as superseded. The caller has locked their
    /// scopes.
    pub async fn supersede(&self, runs: &[RunSummary]) -> Result<(), DriverError> {
        for run in runs {
            let now = self.operator.clock.now();
            self.journal()
                .end(run.id, RunOutcome::Superseded, now)
                .await?;
        }
        Ok(())
    }
}

/// Makes the random mark of a run.
fn mark() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

#[cfg(debug_assertions)]
fn point_observer(
    settings: &DriverSettings,
) -> Option<Arc<dyn homestak_engine::operate::StepPointObserver>> {
    let moment = settings.crash_at?;
    Some(Arc::new(crate::crash::Crash::at(moment)))
}

#[cfg(not(debug_assertions))]
fn point_observer(
    _: &DriverSettings,
) -> Option<Arc<dyn homestak_engine::operate::StepPointObserver>> {
    None
}
