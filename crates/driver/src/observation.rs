//! The present state of the nodes of a run, as their hosts and the nodes themselves report it.
//!
//! Whatever does not answer is unknown; the journal is no substitute.

use std::collections::BTreeMap;
use std::sync::Arc;

use homestak_api::v1::NodePower;
use homestak_core::doc::manifest::Mode;
use homestak_core::observed::PowerState;
use homestak_core::plan::{Action, NodePlan, PlanOptions, StepKind, Verb};
use homestak_core::resolve::{ResolveOptions, manifest};
use homestak_engine::journal::{Journal, Run, RunSummary, StepEvent};
use homestak_engine::report::ConfigState;
use jiff::Timestamp;

use crate::configure::not_applied;
use crate::driver::Driver;
use crate::error::DriverError;

/// The observed state of a node.
#[derive(Clone, Debug)]
pub struct NodeObservation {
    /// Whether it runs.
    pub power: NodePower,
    /// Whether it differs from its manifest and spec; `None` when that is not known.
    pub differs: Option<bool>,
    /// The differences as text.
    pub differences: Vec<String>,
    /// Whether it answered now.
    pub answered: bool,
    /// Whether its spec is applied; `None` without one, and while it is not applied.
    pub config: Option<ConfigState>,
}

/// Observes the nodes of a run. The error explains why hosts could not be asked.
pub async fn ask(
    head: &RunSummary,
    driver: &Driver,
) -> Result<BTreeMap<String, NodeObservation>, DriverError> {
    let request = ResolveOptions {
        host: head.hosts.first().cloned(),
        ..ResolveOptions::default()
    };
    let catalog = &driver.session.catalog;
    let (resolved, faults) = manifest(catalog, &head.manifest, &request);
    let Some(resolved) = resolved.filter(|_| faults.errors() == 0) else {
        return Err(DriverError::failed(format!(
            "The site has no valid manifest `{}`, so its hosts were not asked.",
            head.manifest
        )));
    };
    let options = PlanOptions::new(Verb::Apply);
    let plan = driver.plan(&resolved, &request, &options).await?;
    let nodes = plan.nodes.iter();
    let live = |node: &NodePlan| live(node, not_applied(catalog, &resolved, node).is_some());
    Ok(nodes.map(|node| (node.name.clone(), live(node))).collect())
}

/// Derives the state of a node. Its inside is unknown when its spec is not applied.
fn live(node: &NodePlan, not_applied: bool) -> NodeObservation {
    let found = node.found.as_ref();
    let config = node.config.as_ref();
    let inside = config.and_then(|config| config.found.as_ref());
    let unseen = not_applied || config.is_some() && inside.is_none();
    let power = match found.map(|found| found.power) {
        Some(PowerState::Running) => NodePower::Running,
        Some(PowerState::Stopped) => NodePower::Stopped,
        Some(PowerState::Unknown) => NodePower::Unknown,
        // A guest without its tags may run, and is not inspected.
        None if node.is_untagged() => NodePower::Unknown,
        None => NodePower::Absent,
    };
    let mut differences: Vec<String> = node.reasons.iter().map(|one| one.text.clone()).collect();
    let changes = inside.iter().flat_map(|found| &found.changes);
    differences.extend(changes.map(|change| format!("{} differs", change.id)));
    let differs = match node.action {
        Action::Nothing if unseen => None,
        Action::Nothing => Some(false),
        Action::Configure if unseen => None,
        Action::Start if power == NodePower::Unknown => None,
        Action::Create
        | Action::Start
        | Action::Change
        | Action::Configure
        | Action::Replace
        | Action::Destroy
        | Action::Reidentify
        | Action::Keep => Some(true),
    };
    NodeObservation {
        power,
        differs,
        differences,
        // What a node reported to the server is no answer of now.
        answered: inside.is_some() && config.is_some_and(|config| config.mode != Mode::Pull),
        config: ConfigState::planned(node),
    }
}

/// Returns when the present guests of nodes were last reached, from the newest runs on the same
/// manifest and hosts.
pub async fn contacts(
    runs: &[RunSummary],
    journal: &Arc<dyn Journal>,
) -> Result<BTreeMap<String, Timestamp>, DriverError> {
    /// Nodes that none of these runs reached count as never reached.
    const RUNS: usize = 10;
    // `None`: before that, the node had another guest.
    let mut last: BTreeMap<String, Option<Timestamp>> = BTreeMap::new();
    for head in runs.iter().take(RUNS) {
        let Some(run) = journal.run(head.id).await? else {
            continue;
        };
        for (node, reached) in last_contacts(&run) {
            last.entry(node).or_insert(reached);
        }
    }
    let reached = |(node, at): (String, Option<Timestamp>)| Some((node, at?));
    Ok(last.into_iter().filter_map(reached).collect())
}

/// Returns when nodes were reached, or that they were created or destroyed, newest first.
fn last_contacts(run: &Run) -> Vec<(String, Option<Timestamp>)> {
    let contacts = run.step_entries().rev().filter_map(|(at, entry)| {
        let step = &run.plan.steps[at];
        let reached = match (step.kind, &entry.happened) {
            (StepKind::Ready | StepKind::Configure, StepEvent::Done { .. }) => Some(entry.at),
            (StepKind::Create | StepKind::Destroy, _) => None,
            _ => return None,
        };
        Some((run.plan.nodes.get(step.node?)?.name.clone(), reached))
    });
    contacts.collect()
}
