//! Makes plans: reads what is recorded, looks at hosts, and asks nodes that run what differs in
//! them. Whoever plans comes through here, so that tests try the planning that is carried out.
//!
//! Never: a change; a node that does not answer taken for one that is as it should be.

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
use crate::look::{look, settled};
use crate::operate::Operator;
use crate::pace::paces;
use crate::ports::{Inner, PortError, PowerState};

/// How many nodes are asked at once.
const AT_ONCE: usize = 16;
/// What to do about a node of which the state directory does not know enough.
pub const REBUILD: &str = "when the state directory was lost, `homestak state rebuild` records the \
                           nodes and lists what lets this driver in; then apply again";

/// What is planned.
pub struct PlanRequest<'a> {
    /// The site whose guests are ours.
    pub site: &'a SiteId,
    /// The documents.
    pub catalog: &'a Catalog,
    /// The manifest.
    pub resolved: &'a ResolvedManifest,
    /// What it was resolved with.
    pub request: &'a ResolveOptions,
    /// What the person asks for.
    pub options: &'a PlanOptions,
}

/// What a plan needs to know that neither documents nor the journal say.
#[async_trait]
pub trait PlanContext: Sync {
    /// Why nodes cannot be configured.
    type Error;
    /// Hears which hosts are about to be looked at, and what is recorded for others.
    fn looking(&self, resolved: &ResolvedManifest, hosts: &[&str], elsewhere: &OtherRecords);
    /// Returns what the nodes of a plan become inside, as far as they are configured from here.
    async fn configs(
        &self,
        resolved: &ResolvedManifest,
        plan: &Plan,
    ) -> Result<BTreeMap<String, ConfigPlan>, Self::Error>;
    /// Says that the spec of a node is not applied, where nobody would expect that.
    fn not_applied(&self, resolved: &ResolvedManifest, node: &NodePlan) -> Option<String>;
}

/// Why there is no plan.
#[derive(Debug)]
pub enum PlanError<E> {
    /// What is recorded cannot be read.
    Journal(JournalError),
    /// A host cannot be looked at.
    Host(PortError),
    /// The manifest has faults when its nodes keep the ids that they have.
    Diagnostics(Diagnostics),
    /// Nodes cannot be configured.
    Context(E),
}

impl<E> From<JournalError> for PlanError<E> {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl<E> From<PortError> for PlanError<E> {
    fn from(error: PortError) -> Self {
        Self::Host(error)
    }
}

/// Reads what is remembered of the nodes of a manifest.
pub async fn records(journal: &dyn Journal, scopes: &[Scope]) -> Result<Records, JournalError> {
    let mut all = Records::default();
    for scope in scopes {
        all.extend(journal.records(scope).await?);
    }
    Ok(all)
}

impl Operator {
    /// Looks, and makes a plan from what is there.
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
        context.looking(resolved, &hosts, &elsewhere);
        let mut observations = look(&self.places, resolved, &records).await?;
        // Again, with the ids that guests have already: a new node must not move the others.
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
        let paces = paces(&*self.journal, &hosts).await?;
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
        let outside = settled(&self.places, &mut observations, &records, |observations| {
            make(observations, &nothing)
        });
        let outside = outside.await?;
        if options.verb != Verb::Apply {
            return Ok(outside);
        }
        // What runs is asked how it is inside; what does not is configured once it does.
        let configs = context.configs(resolved, &outside).await;
        let mut configs = configs.map_err(PlanError::Context)?;
        self.ask(&outside, &mut configs).await;
        // Plans can be large: without configurations, the one there is serves.
        let mut plan = match configs.is_empty() {
            true => outside,
            false => {
                drop(outside);
                make(&observations, &configs)
            }
        };
        for node in plan.nodes.iter_mut().filter(|node| node.wanted.is_some()) {
            let notice = context.not_applied(resolved, node);
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

    /// Asks every node that runs and stays what differs in it.
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
            let inner = there
                .address
                .and_then(|address| Inner::of(node, config, there.guest.uuid.clone(), address));
            let Some(inner) = inner else {
                config.unseen = Some(InspectionFailure {
                    why: "nothing records its address".into(),
                    hint: REBUILD.to_owned(),
                });
                continue;
            };
            let (configurer, slots) = (self.configurer.clone(), slots.clone());
            // Cancel safety: looking changes nothing.
            asked.spawn(
                async move {
                    let _slot = slots.acquire().await;
                    let found = configurer.check(&inner).await;
                    (inner.node, found)
                }
                .in_current_span(),
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
