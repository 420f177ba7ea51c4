//! Puts together what a run needs: journal, places, seeds, and whoever watches.
//!
//! In: a site, settings. Out: [`Bench`]: plans are made and carried out on it.
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
use homestak_engine::journal::{
    Ending, Journal, JournalError, Lease, RunFilter, RunHead, RunId, Scope,
};
use homestak_engine::look::{look, settled};
use homestak_engine::operate::{Interrupt, Limits, Operator, UndoEffect, UndoItem, rollback_plan};
use homestak_engine::pace::durations;
use homestak_engine::ports::Places;
use homestak_providers::local::VmEngine;
use homestak_providers::ssh::Keyring;
use tokio::signal::unix::{SignalKind, signal};

use crate::clock;
use crate::commands::require_sound;
use crate::configure::{SiteConfigurer, notice_not_applied};
use crate::connect::failed;
use crate::error::CommandError;
use crate::local_host::{LOCAL, LocalPlace};
use crate::places::SitePlaces;
use crate::seeds::{SiteSeeds, keyring};
use crate::session::Session;
use crate::settings::Settings;
use crate::sim_host;
use crate::ui::Printer;
use crate::ui::progress::Screen;

/// How many runs on the same hosts are looked at for how long steps take: enough for a median,
/// few enough to be read in no time.
const MEASURED: usize = 5;

/// Everything a run needs.
pub(crate) struct Bench {
    /// The site.
    pub(crate) session: Arc<Session>,
    /// Carries plans out.
    pub(crate) operator: Operator,
    /// Watches.
    pub(crate) screen: Arc<Screen>,
    /// This machine as a host.
    pub(crate) local: LocalPlace,
    /// The driver's SSH keys.
    pub(crate) keyring: Keyring,
    /// Makes nodes what their specs say.
    pub(crate) configurer: SiteConfigurer,
}

/// Opens the journal alone, for commands that only look.
pub(crate) fn journal(settings: &Settings) -> Result<Arc<dyn Journal>, CommandError> {
    Ok(Arc::new(homestak_store::Sqlite::open(&settings.state)?))
}

impl Bench {
    /// Puts everything together.
    pub(crate) fn new(
        session: Arc<Session>,
        settings: &Settings,
        screen: Screen,
    ) -> Result<Self, CommandError> {
        Self::with_engine(session, settings, screen, None)
    }

    /// Puts everything together, with what `vm` nodes of this machine run in.
    pub(crate) fn with_engine(
        session: Arc<Session>,
        settings: &Settings,
        screen: Screen,
        engine: Option<VmEngine>,
    ) -> Result<Self, CommandError> {
        let clock = clock::shared();
        let screen = Arc::new(screen);
        let observer: Arc<dyn Observer> = screen.clone();
        let hub = Hub::new(observer, clock.clone());
        let sim = (sim_host::directory(settings), settings.sim_speed);
        let mut local = LocalPlace::new(settings);
        local.vm_engine = engine.unwrap_or(local.vm_engine);
        let keyring = keyring(settings);
        let places = SitePlaces::new(
            session.clone(),
            hub.clone(),
            sim,
            (local.clone(), keyring.clone()),
        );
        let configurer = SiteConfigurer::new(session.clone(), keyring.clone(), settings);
        Ok(Self {
            operator: Operator {
                places: Arc::new(places),
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
            screen,
            local,
            keyring,
            configurer,
        })
    }

    /// Returns the journal.
    pub(crate) fn journal(&self) -> &Arc<dyn Journal> {
        &self.operator.journal
    }

    /// Returns where places are found.
    pub(crate) fn places(&self) -> &Arc<dyn Places> {
        &self.operator.places
    }

    /// Reads what is remembered of the nodes of a manifest.
    pub(crate) async fn records(&self, scopes: &[Scope]) -> Result<Records, CommandError> {
        let mut all = Records::default();
        for scope in scopes {
            all.extend(self.journal().records(scope).await?);
        }
        Ok(all)
    }

    /// Returns how long steps take: the median of each kind in the newest runs on these hosts.
    async fn paces(&self, hosts: &[&str]) -> Result<Paces, CommandError> {
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
    pub(crate) async fn plan(
        &self,
        resolved: &Resolved,
        request: &Request,
        options: &Options,
        printer: &Printer,
    ) -> Result<Plan, CommandError> {
        let site = self.session.id()?;
        let scopes = scopes(site, resolved);
        let records = self.records(&scopes).await?;
        let elsewhere = self.journal().elsewhere(site, &scopes).await?;
        notice_elsewhere(&elsewhere, &resolved.name, printer);
        let hosts: Vec<&str> = scopes.iter().map(|scope| scope.host.as_str()).collect();
        printer.detail(&format!("looking at {}", hosts.join(", ")));
        let lost = |error| failed(hosts.first().copied().unwrap_or_default(), &error);
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
            require_sound(printer, &faults, &self.session.catalog.sources)?;
        }
        let again = again.ok_or_else(|| CommandError::failed("The manifest could not be read."))?;
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
        let mut configs = self.configurer.configs(&again, &outside)?;
        self.configurer.ask(&outside, &mut configs).await;
        let mut plan = make(&looks, &configs);
        for node in plan.nodes.iter_mut().filter(|node| node.wanted.is_some()) {
            let notice = notice_not_applied(&again, node);
            node.reasons
                .extend(notice.map(|text| Reason { text, source: None }));
        }
        let refusals = unsupported(&self.session.catalog, &again, &plan, |host| host == LOCAL);
        plan.refusals.extend(refusals);
        Ok(plan)
    }

    /// Returns what a run that was rolled back did and cannot be undone.
    pub(crate) async fn lost(
        &self,
        ended: Option<Ending>,
        run: Option<RunId>,
    ) -> Result<Vec<UndoItem>, CommandError> {
        let (Some(Ending::RolledBack), Some(id)) = (ended, run) else {
            return Ok(Vec::new());
        };
        let run = self.journal().run(id).await?;
        let mut items = run.as_ref().map(rollback_plan).unwrap_or_default();
        items.retain(|item| item.effect == UndoEffect::Lost);
        Ok(items)
    }

    /// Ends earlier runs on the same manifest and hosts that nobody carries out any more.
    /// The caller holds their scopes.
    pub(crate) async fn supersede(&self, runs: &[RunHead]) -> Result<(), CommandError> {
        for run in runs {
            let now = self.operator.clock.now();
            self.journal().end(run.id, Ending::Superseded, now).await?;
        }
        Ok(())
    }

    /// Lets something be done; asks it to stop at the first interrupt, and leaves it at the second.
    pub(crate) async fn drive<T>(
        &self,
        work: impl AsyncFnOnce(Interrupt) -> Result<T, JournalError>,
        printer: &Printer,
    ) -> Result<Option<T>, CommandError> {
        let (interrupter, interrupt) = Interrupt::new();
        let no_signals = |error| CommandError::failed(format!("Cannot hear signals: {error}."));
        let mut interrupts = signal(SignalKind::interrupt()).map_err(no_signals)?;
        let mut terminates = signal(SignalKind::terminate()).map_err(no_signals)?;
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
        let mut work = std::pin::pin!(work(interrupt));
        let mut asked = false;
        let done = loop {
            tokio::select! {
                // Cancel safety: left only when a person insists; every intent is written down.
                done = &mut work => break Some(done),
                // Cancel safety: a signal that is not taken now is taken next time.
                _ = interrupts.recv() => {}
                // Cancel safety: as above.
                _ = terminates.recv() => {}
                // Cancel safety: a tick that is missed is only a redraw.
                _ = tick.tick() => {
                    self.screen.tick(self.operator.clock.now());
                    continue;
                }
            }
            if std::mem::replace(&mut asked, true) {
                break None;
            }
            interrupter.ask();
            self.screen.note(
                printer,
                "Stopping: waits end, nothing new is begun, and what cannot be left is finished. Interrupt again to leave at once.",
            );
        };
        self.screen.finish();
        done.transpose().map_err(CommandError::from)
    }
}

/// Returns what excludes what: one scope for each host of the site.
pub(crate) fn scopes(site: &SiteId, resolved: &Resolved) -> Vec<Scope> {
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
pub(crate) fn scopes_of(run: &RunHead) -> Vec<Scope> {
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
pub(crate) async fn hold(
    journal: &Arc<dyn Journal>,
    scopes: &[Scope],
) -> Result<Box<dyn Lease>, CommandError> {
    Ok(journal.hold(scopes).await?)
}

/// Makes the random mark of a run.
fn mark() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

#[cfg(debug_assertions)]
fn watcher(settings: &Settings) -> Option<Arc<dyn homestak_engine::operate::Watcher>> {
    let moment = settings.crash_at?;
    Some(Arc::new(crate::crash::Crash::at(moment)))
}

#[cfg(not(debug_assertions))]
fn watcher(_: &Settings) -> Option<Arc<dyn homestak_engine::operate::Watcher>> {
    None
}

/// Names nodes of the manifest that are recorded on hosts that the plan is not for: it leaves them.
fn notice_elsewhere(elsewhere: &Elsewhere, manifest: &str, printer: &Printer) {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (of, record) in &elsewhere.0 {
        if of == manifest {
            let nodes = hosts.entry(record.host.as_str()).or_default();
            nodes.push(record.name.as_str());
        }
    }
    for (host, nodes) in hosts {
        let nodes = nodes.join("`, `");
        printer.say(&format!(
            "notice: `{manifest}` is on `{host}` too, with `{nodes}`; this plan is not for `{host}`"
        ));
    }
}
