//! The state of nodes.

use homestak_api::v1::{self, NodePower, NodeStatus};
use homestak_engine::journal::RunSummary;

use super::run::{images, progress, summary};
use crate::status::{NodeState, RunStatus};

/// Converts the state of the nodes of a run. With `offline`, nobody asked whether they run.
pub fn run(head: &RunSummary, state: &RunStatus, offline: bool) -> v1::RunStatus {
    let node = |(name, node): (&String, &NodeState)| {
        let live = node.live.as_ref();
        NodeStatus {
            name: name.clone(),
            status: progress(node.status),
            host: node.host.clone(),
            vm_id: node.guest_id.map(Into::into),
            ip: node.address.clone(),
            error: node.error.clone(),
            power: (!offline).then(|| live.map_or(NodePower::Unknown, |live| live.power)),
            differs: live.and_then(|live| live.differs),
            differences: live.map(|live| live.differences.clone()),
            last_contact: node.contact,
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
