//! Puts together what a run needs: journal, places, seeds, and whoever watches.
//!
//! In: a site, settings. Out: [`Driver`]: plans are made and carried out on it.
//! Never: a decision; a second way to put it together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{
    ConfigPlan, Elsewhere, Inputs, Look, Options, Paces, Place, Plan, Reason, Records, StepKind,
    Verb, ids, plan, unsupported,
};
use homestak_core::resolve::{Request, Resolved, manifest};
use homestak_engine::events::{Hub, Observer};
use homestak_engine::journal::{Ending, Journal, Lease, RunFilter, RunHead, RunId, Scope};
use homestak_engine::look::{look, settled};
use homestak_engine::operate::{Limits, Operator, UndoEffect, UndoItem, rollback_plan};
use homestak_engine::pace::durations;
use homestak_engine::ports::Places;
use homestak_providers::ssh::Keyring;

use crate::configure::{SiteConfigurer, notice_not_applied};
use crate::error::DriverError;
use crate::hosts::{Hosts, kind};
use crate::notices::Notices;
use crate::seeds::{SiteSeeds, keyring};
use crate::session::{Session, require_sound};
use crate::settings::DriverSettings;

/// How many runs on the same hosts are looked at for how long steps take: enough for a median,
/// few enough to be read in no time.
const MEASURED: usize = 5;

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
    /// Makes nodes what their specs say.
    pub configurer: SiteConfigurer,
}

/// Opens the journal alone, for those who only look.
pub fn journal(settings: &DriverSettings) -> Result<Arc<dyn Journal>, DriverError> {
    Ok(Arc::new(homestak_store::Sqlite::open(&settings.state)?))
}

impl Driver {
    /// Puts everything together; events of runs go to the observer.
    pub fn new(
        session: Arc<Session>,
        settings: &DriverSettings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, DriverError> {
        let clock = settings.time.clock();
        let hub = Hub::new(observer, clock.clone());
        let keyring = keyring(settings).limited(session.timeouts());
        let hosts = Hosts::new(session.clone(), hub.clone(), settings, keyring.clone());
        let hosts = Arc::new(hosts);
        let configurer = SiteConfigurer::new(session.clone(), keyring.clone(), settings);
        Ok(Self {
            operator: Operator {
                places: hosts.clone(),
                seeds: Arc::new(SiteSeeds::new(session.clone(), keyring.clone())),
                configurer: Arc::new(configurer.clone()),
                journal: journal(settings)?,
                hub,
                clock,
                limits: Limits {
                    timeouts: settings.timeouts,
                    ..Limits::default()
                },
                watcher: watcher(settings),
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

    /// Returns where places are found.
    pub fn places(&self) -> &Arc<dyn Places> {
        &self.operator.places
    }

    /// Reads what is remembered of the nodes of a manifest.
    pub async fn records(&self, scopes: &[Scope]) -> Result<Records, DriverError> {
        let mut all = Records::default();
        for scope in scopes {
            all.extend(self.journal().records(scope).await?);
        }
        Ok(all)
    }

    /// Returns how long steps take: the median of each kind in the newest runs on these hosts.
    async fn paces(&self, hosts: &[&str]) -> Result<Paces, DriverError> {
        let mut taken: BTreeMap<StepKind, Vec<f64>> = BTreeMap::new();
        let mut newest = BTreeSet::new();
        for host in hosts {
            let filter = RunFilter {
                host: Some((*host).to_owned()),
                limit: Some(MEASURED),
                ..RunFilter::default()
            };
            let runs = self.journal().page(&filter).await?;
            newest.extend(runs.iter().map(|run| run.id));
        }
        for id in newest.into_iter().rev().take(MEASURED) {
            let run = self.journal().run(id).await?;
            for (kind, seconds) in run.iter().flat_map(durations) {
                taken.entry(kind).or_default().push(seconds);
            }
        }
        let median = |(kind, mut seconds): (StepKind, Vec<f64>)| {
            seconds.sort_by(f64::total_cmp);
            (kind, seconds[seconds.len() / 2])
        };
        let here: Vec<(StepKind, f64)> = taken.into_iter().map(median).collect();
        Ok(Paces::new(&here, &self.journal().durations().await?))
    }

    /// Looks, and makes a plan from what is there.
    pub async fn plan(
        &self,
        resolved: &Resolved,
        request: &Request,
        options: &Options,
    ) -> Result<Plan, DriverError> {
        let notices = self.session.notices.as_ref();
        let site = self.session.id()?;
        let scopes = scopes(site, resolved);
        let records = self.records(&scopes).await?;
        let elsewhere = self.journal().elsewhere(site, &scopes).await?;
        notice_elsewhere(&elsewhere, &resolved.name, notices);
        let hosts: Vec<&str> = scopes.iter().map(|scope| scope.host.as_str()).collect();
        notices.detail(&format!("looking at {}", hosts.join(", ")));
        let lost = |error| DriverError::of_host(hosts.first().copied().unwrap_or_default(), &error);
        let looks = look(self.places(), resolved, &records).await;
        let mut looks = looks.map_err(lost)?;
        let request = Request {
            recorded: ids(site, resolved, &looks, &records),
            ..request.clone()
        };
        // Again, with the ids that guests have already: a new node must not move the others.
        let (again, faults) = manifest(&self.session.catalog, &resolved.name, &request);
        if faults.errors() > 0 {
            // Notices were shown when it was resolved first.
            require_sound(notices, &faults, &self.session.catalog.sources)?;
        }
        let again = again.ok_or_else(|| DriverError::failed("The manifest could not be read."))?;
        let paces = self.paces(&hosts).await?;
        let make = |looks: &BTreeMap<Place, Look>, configs: &BTreeMap<String, ConfigPlan>| {
            plan(&Inputs {
                site,
                catalog: &self.session.catalog,
                resolved: &again,
                looks,
                records: &records,
                elsewhere: &elsewhere,
                configs,
                options,
                paces: &paces,
            })
        };
        let nothing = BTreeMap::new();
        let outside = settled(self.places(), &mut looks, &records, |looks| {
            make(looks, &nothing)
        });
        let outside = outside.await.map_err(lost)?;
        if options.verb != Verb::Apply {
            return Ok(outside);
        }
        // What runs is asked how it is inside; what does not is configured once it does.
        let mut configs = self.configurer.configs(&again, &outside).await?;
        self.configurer.ask(&outside, &mut configs).await;
        let mut plan = make(&looks, &configs);
        for node in plan.nodes.iter_mut().filter(|node| node.wanted.is_some()) {
            let notice = notice_not_applied(&self.session.catalog, &again, node);
            node.reasons
                .extend(notice.map(|text| Reason { text, source: None }));
        }
        let refusals = unsupported(&self.session.catalog, &again, &plan, |host| {
            kind(&self.session.catalog, host).traits.seeds_containers
        });
        plan.refusals.extend(refusals);
        Ok(plan)
    }

    /// Returns what a run that was rolled back did and cannot be undone.
    pub async fn lost(
        &self,
        ended: Option<Ending>,
        run: Option<RunId>,
    ) -> Result<Vec<UndoItem>, DriverError> {
        let (Some(Ending::RolledBack), Some(id)) = (ended, run) else {
            return Ok(Vec::new());
        };
        let run = self.journal().run(id).await?;
        let mut items = run.as_ref().map(rollback_plan).unwrap_or_default();
        items.retain(|item| item.effect == UndoEffect::Lost);
        Ok(items)
    }

    /// Tells whether rolling a run back would undo anything of it.
    pub async fn is_undoable(&self, run: Option<RunId>) -> Result<bool, DriverError> {
        let Some(id) = run else {
            return Ok(false);
        };
        let run = self.journal().run(id).await?;
        let items = run.as_ref().map(rollback_plan).unwrap_or_default();
        Ok(items.iter().any(|item| item.effect == UndoEffect::Undone))
    }

    /// Ends earlier runs on the same manifest and hosts that nobody carries out any more.
    /// The caller holds their scopes.
    pub async fn supersede(&self, runs: &[RunHead]) -> Result<(), DriverError> {
        for run in runs {
            let now = self.operator.clock.now();
            self.journal().end(run.id, Ending::Superseded, now).await?;
        }
        Ok(())
    }
}

/// Returns what excludes what: one scope for each host of the site.
pub fn scopes(site: &SiteId, resolved: &Resolved) -> Vec<Scope> {
    let hosts = resolved.nodes.iter().filter_map(|node| node.host.as_ref());
    let mut scopes: Vec<Scope> = hosts
        .map(|host| Scope {
            site: Some(site.clone()),
            manifest: resolved.name.clone(),
            host: host.value.clone(),
        })
        .collect();
    scopes.sort();
    scopes.dedup();
    scopes
}

/// Returns the scopes of a run that is written down.
pub fn scopes_of(run: &RunHead) -> Vec<Scope> {
    let hosts = run.hosts.iter();
    hosts
        .map(|host| Scope {
            site: run.site.clone(),
            manifest: run.manifest.clone(),
            host: host.clone(),
        })
        .collect()
}

/// Takes scopes, or says who has them.
pub async fn hold(
    journal: &Arc<dyn Journal>,
    scopes: &[Scope],
) -> Result<Box<dyn Lease>, DriverError> {
    Ok(journal.hold(scopes).await?)
}

/// Makes the random mark of a run.
fn mark() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

#[cfg(debug_assertions)]
fn watcher(settings: &DriverSettings) -> Option<Arc<dyn homestak_engine::operate::Watcher>> {
    let moment = settings.crash_at?;
    Some(Arc::new(crate::crash::Crash::at(moment)))
}

#[cfg(not(debug_assertions))]
fn watcher(_: &DriverSettings) -> Option<Arc<dyn homestak_engine::operate::Watcher>> {
    None
}

/// Names nodes of the manifest that are recorded on hosts that the plan is not for: it leaves them.
fn notice_elsewhere(elsewhere: &Elsewhere, manifest: &str, notices: &dyn Notices) {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (of, record) in &elsewhere.0 {
        if of == manifest {
            let nodes = hosts.entry(record.host.as_str()).or_default();
            nodes.push(record.name.as_str());
        }
    }
    for (host, nodes) in hosts {
        let nodes = nodes.join("`, `");
        notices.say(&format!(
            "notice: `{manifest}` is on `{host}` too, with `{nodes}`; this plan is not for `{host}`"
        ));
    }
}
