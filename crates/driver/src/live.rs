//! How the nodes of a run are now, as their hosts and the nodes themselves answer.
//!
//! Whatever does not answer is unknown, and never taken for what the journal says.

use std::collections::BTreeMap;
use std::sync::Arc;

use homestak_core::observed::PowerState;
use homestak_core::plan::{Action, NodePlan, PlanOptions, StepKind, Verb};
use homestak_core::resolve::{ResolveOptions, manifest};
use homestak_engine::journal::{Happened, Journal, Run, RunHead};
use jiff::Timestamp;

use crate::configure::notice_not_applied;
use crate::driver::Driver;
use crate::error::DriverError;

/// How a node is now.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// `running`, `stopped`, `absent` or `unknown`.
    pub power: &'static str,
    /// Whether it differs from its manifest and spec; `None` when that could not be seen.
    pub differs: Option<bool>,
    /// In what, in words.
    pub differences: Vec<String>,
    /// Whether it answered just now.
    pub answered: bool,
}

/// Asks the hosts of a run, and nodes that run. The error says why nothing could be asked.
pub async fn ask(head: &RunHead, driver: &Driver) -> Result<BTreeMap<String, Live>, DriverError> {
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
    let live = |node: &NodePlan| live(node, notice_not_applied(catalog, &resolved, node).is_some());
    Ok(nodes.map(|node| (node.name.clone(), live(node))).collect())
}

/// Says how a node is. What is inside is unknown when its spec is not applied.
fn live(node: &NodePlan, not_applied: bool) -> Live {
    let found = node.found.as_ref();
    let config = node.config.as_ref();
    let inside = config.and_then(|config| config.found.as_ref());
    let unseen = not_applied || config.is_some() && inside.is_none();
    let power = match found.map(|found| found.power) {
        Some(PowerState::Running) => "running",
        Some(PowerState::Stopped) => "stopped",
        Some(PowerState::Unknown) => "unknown",
        // A guest without its tags may run, and is not looked at.
        None if node.is_untagged() => "unknown",
        None => "absent",
    };
    let mut differences: Vec<String> = node.reasons.iter().map(|one| one.text.clone()).collect();
    let changes = inside.iter().flat_map(|found| &found.changes);
    differences.extend(changes.map(|change| format!("{} differs", change.id)));
    let differs = match node.action {
        Action::Nothing if unseen => None,
        Action::Nothing => Some(false),
        Action::Configure if unseen => None,
        Action::Start if power == "unknown" => None,
        Action::Create
        | Action::Start
        | Action::Change
        | Action::Configure
        | Action::Replace
        | Action::Destroy
        | Action::Reidentify
        | Action::Leave => Some(true),
    };
    Live {
        power,
        differs,
        differences,
        answered: inside.is_some(),
    }
}

/// Returns when the guests that nodes are now were last reached, by the newest runs on the same
/// manifest and hosts, the newest first.
pub async fn contacts(
    runs: &[RunHead],
    journal: &Arc<dyn Journal>,
) -> Result<BTreeMap<String, Timestamp>, DriverError> {
    /// A node that no run of these reached was reached long ago, if ever.
    const RUNS: usize = 10;
    // `None`: the guest before was another.
    let mut last: BTreeMap<String, Option<Timestamp>> = BTreeMap::new();
    for head in runs.iter().take(RUNS) {
        let Some(run) = journal.run(head.id).await? else {
            continue;
        };
        for (node, reached) in met(&run) {
            last.entry(node).or_insert(reached);
        }
    }
    let reached = |(node, at): (String, Option<Timestamp>)| Some((node, at?));
    Ok(last.into_iter().filter_map(reached).collect())
}

/// Returns when nodes were reached, or that they were created or removed, the newest first.
fn met(run: &Run) -> Vec<(String, Option<Timestamp>)> {
    let met = run.of_steps().rev().filter_map(|(at, entry)| {
        let step = &run.plan.steps[at];
        let met = match (step.kind, &entry.happened) {
            (StepKind::Ready | StepKind::Configure, Happened::Done { .. }) => Some(entry.at),
            (StepKind::Create | StepKind::Destroy, _) => None,
            _ => return None,
        };
        Some((run.plan.nodes.get(step.node?)?.name.clone(), met))
    });
    met.collect()
}
