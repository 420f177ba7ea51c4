//! The state of nodes.

use homestak_api::v1::{self, NodePower, NodeReport, NodeStatus};
use homestak_engine::journal::RunSummary;

use super::run::{config, images, progress, summary};
use crate::status::{NodeState, RunStatus};

/// Converts the state of the nodes of a run. With `offline`, their power state was not queried.
pub fn run(head: &RunSummary, state: &RunStatus, offline: bool) -> v1::RunStatus {
    let node = |(name, node): (&String, &NodeState)| {
        let live = node.live.as_ref();
        NodeStatus {
            name: name.clone(),
            status: progress(node.status),
            host: node.host.clone(),
            vm_id: node.guest_id,
            ip: node.address.clone(),
            error: node.error.clone(),
            power: (!offline).then(|| live.map_or(NodePower::Unknown, |live| live.power)),
            config: live.and_then(|live| live.config).map(config),
            differs: live.and_then(|live| live.differs),
            differences: live.map(|live| live.differences.clone()),
            last_contact: node.contact,
            report: node.account.as_ref().map(|account| NodeReport {
                state: account.state,
                generation: account.generation,
                published: account.published,
                behind: account.is_behind(),
                drift: account.drift,
                error: account.error.clone(),
                silent: account.silent,
            }),
        }
    };
    v1::RunStatus {
        run: v1::RunSummary {
            resumable: state.resumable,
            ..summary(head)
        },
        nodes: state.nodes.iter().map(node).collect(),
        images: images(&state.report),
        held_by: state.holder.clone(),
        offline,
        unknown: state.unasked.clone(),
    }
}
