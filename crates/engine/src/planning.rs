//! Makes plans: reads records, observes hosts, and compares running nodes with their specs.
//!
//! Changes nothing. A node that does not answer is never treated as matching its spec.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_core::catalog::Catalog;
use homestak_core::doc::Diagnostics;
use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{
    Action, ConfigPlan, InspectionFailure, NodeLocation, NodePlan, Observation, OtherRecords, Plan,
    PlanInputs, PlanOptions, Reason, Records, Verb, known_vmids, plan, unsupported,
};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest, manifest};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::journal::{Journal, JournalError, Scope};
use crate::observe::{ObserveError, inspected_plan, observe};
use crate::operate::Operator;
use crate::ports::{ConfigTarget, PowerState};
use crate::step_durations::step_durations;

/// How many nodes are compared at once.
const AT_ONCE: usize = 16;
/// Hint for a node whose record is incomplete.
pub const REBUILD: &str = "when the state directory was lost, `homestak state rebuild` records the \
                           nodes and lists what lets this driver in; then apply again";

/// The input of a plan.
pub struct PlanRequest<'a> {
    /// The site.
    pub site: &'a SiteId,
    /// The documents.
    pub catalog: &'a Catalog,
    /// The manifest.
    pub resolved: &'a ResolvedManifest,
    /// The overrides it was resolved with.
    pub request: &'a ResolveOptions,
    /// The options of the plan.
    pub options: &'a PlanOptions,
}

/// What a plan needs beside documents and journal.
#[async_trait]
pub trait PlanContext: Sync {
    /// The error of [`configs`](Self::configs).
    type Error;
    /// Called before hosts are observed, with the records of guests on other hosts.
    fn observing(&self, resolved: &ResolvedManifest, hosts: &[&str], elsewhere: &OtherRecords);
    /// Returns the configuration of each node whose spec is applied, by the driver or the node.
    async fn configs(
        &self,
        resolved: &ResolvedManifest,
        plan: &Plan,
    ) -> Result<BTreeMap<String, ConfigPlan>, Self::Error>;
    /// Returns a notice for a node whose spec is, unexpectedly, not applied.
    fn not_applied(&self, resolved: &ResolvedManifest, node: &NodePlan) -> Option<String>;
    /// Returns whether a node has a spec that is not applied because its host is simulated.
    fn is_simulated(&self, resolved: &ResolvedManifest, node: &NodePlan) -> bool;
}

/// Errors of planning.
#[derive(Debug)]
pub enum PlanError<E> {
    /// The journal cannot be read.
    Journal(JournalError),
    /// A host cannot be observed.
    Host(ObserveError),
    /// The manifest has errors if its existing nodes keep their ids.
    Diagnostics(Diagnostics),
    /// The configuration of a node cannot be determined.
    Context(E),
}

impl<E> From<JournalError> for PlanError<E> {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl<E> From<ObserveError> for PlanError<E> {
    fn from(error: ObserveError) -> Self {
        Self::Host(error)
    }
}

/// Reads the records of a manifest.
pub async fn records(journal: &dyn Journal, scopes: &[Scope]) -> Result<Records, JournalError> {
    let mut all = Records::default();
    for scope in scopes {
        all.extend(journal.records(scope).await?);
    }
    Ok(all)
}

impl Operator {
    /// Observes hosts and makes a plan.
    pub async fn plan<C: PlanContext>(
        &self,
        wanted: &PlanRequest<'_>,
        context: &C,
    ) -> Result<Plan, PlanError<C::Error>> {
        let PlanRequest {
            site,
            catalog,
            resolved,
            request,
            options,
        } = *wanted;
        let scopes = Scope::of_manifest(site, resolved);
        let records = records(&*self.journal, &scopes).await?;
        let elsewhere = self.journal.elsewhere(site, &scopes).await?;
        let hosts: Vec<&str> = scopes.iter().map(|scope| scope.host.as_str()).collect();
        context.observing(resolved, &hosts, &elsewhere);
        let mut observations = observe(&self.connector, resolved, &records).await?;
        // Resolved again with the ids of existing guests: a new node must not change their ids.
        let recorded = known_vmids(site, resolved, &observations, &records);
        let again;
        let resolved = if recorded == request.recorded {
            resolved
        } else {
            let request = ResolveOptions {
                recorded,
                ..request.clone()
            };
            let (sound, faults) = manifest(catalog, &resolved.name, &request);
            let sound = sound.filter(|_| faults.errors() == 0);
            again = sound.ok_or(PlanError::Diagnostics(faults))?;
            &again
        };
        let paces = step_durations(&*self.journal, &hosts).await?;
        let make = |observations: &BTreeMap<NodeLocation, Observation>,
                    configs: &BTreeMap<String, ConfigPlan>| {
            plan(&PlanInputs {
                site,
                catalog,
                resolved,
                observations,
                records: &records,
                other_records: &elsewhere,
                configs,
                options,
                step_durations: &paces,
            })
        };
        let nothing = BTreeMap::new();
        let outside = inspected_plan(
            &self.connector,
            &mut observations,
            &records,
            |observations| make(observations, &nothing),
        );
        let outside = outside.await?;
        if options.verb != Verb::Apply {
            return Ok(outside);
        }
        // Running nodes are compared with their specs; others are configured once they run.
        let configs = context.configs(resolved, &outside).await;
        let mut configs = configs.map_err(PlanError::Context)?;
        self.ask(&outside, &mut configs).await;
        // Plans can be large: without configurations, the existing one is returned.
        let mut plan = match configs.is_empty() {
            true => outside,
            false => {
                drop(outside);
                make(&observations, &configs)
            }
        };
        for node in plan.nodes.iter_mut().filter(|node| node.wanted.is_some()) {
            let notice = context.not_applied(resolved, node);
            node.simulated = context.is_simulated(resolved, node);
            node.reasons.extend(notice.map(|text| Reason {
                text,
                ..Reason::default()
            }));
        }
        let refusals = unsupported(catalog, resolved, &plan);
        plan.refusals.extend(refusals);
        for node in &plan.nodes {
            let reasons: Vec<&str> = node.reasons.iter().map(|one| one.text.as_str()).collect();
            tracing::debug!(node = node.name, host = node.host, action = ?node.action, ?reasons, "planned");
        }
        Ok(plan)
    }

    /// Compares running nodes that are kept with their specs, and adds the results to `configs`.
    async fn ask(&self, plan: &Plan, configs: &mut BTreeMap<String, ConfigPlan>) {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut asked = JoinSet::new();
        let stays = |node: &&NodePlan| {
            matches!(
                node.action,
                Action::Nothing | Action::Change | Action::Start
            )
        };
        for node in plan.nodes.iter().filter(stays) {
            let config = configs.get_mut(&node.name);
            let there = node.found.as_ref();
            let there = there.filter(|there| there.power == PowerState::Running);
            let (Some(config), Some(there)) = (config, there) else {
                continue;
            };
            let inner = there.address.and_then(|address| {
                let guest = there.guest.uuid.clone();
                ConfigTarget::of(&plan.manifest, (node, config), guest, address)
            });
            let Some(inner) = inner else {
                config.unseen = Some(InspectionFailure {
                    why: "its address is not recorded".into(),
                    hint: REBUILD.to_owned(),
                });
                continue;
            };
            let (configurer, slots) = (self.configurer.clone(), slots.clone());
            let span = tracing::error_span!("check", node = node.name);
            // Cancel safety: changes nothing.
            asked.spawn(
                async move {
                    let _slot = slots.acquire().await;
                    let found = configurer.check(&inner).await;
                    (inner.node, found)
                }
                .instrument(span),
            );
        }
        while let Some(answer) = asked.join_next().await {
            let Ok((node, found)) = answer else {
                continue;
            };
            match (found, configs.get_mut(&node)) {
                (Ok(found), Some(config)) => config.found = Some(found),
                (Err(error), Some(config)) => {
                    config.unseen = Some(InspectionFailure {
                        why: error.detail,
                        hint: error.hint,
                    });
                }
                (_, None) => {}
            }
        }
    }
}
