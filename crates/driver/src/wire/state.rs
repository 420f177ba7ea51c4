//! Records of nodes, restored from the hosts.

use homestak_api::v1::{LockedNode, OtherSite, RefusedNode, RestoredNode, StateRebuild};
use homestak_core::plan::NodeRecord;

use crate::rebuild::RebuildReport;

/// Converts what was restored, with the nodes that the driver cannot log in to yet.
pub fn rebuild(
    summary: &RebuildReport,
    locked: &[(&NodeRecord, Vec<String>)],
    success: bool,
    dry_run: bool,
) -> StateRebuild {
    let restored = summary.restored.iter();
    let restored = restored.map(|(manifest, record)| RestoredNode {
        manifest: manifest.clone(),
        host: record.host.clone(),
        node: record.name.clone(),
        vmid: record.guest.vmid,
        address: record.address,
    });
    let refused = summary.refused.iter();
    let refused = refused.map(|(manifest, refusal)| RefusedNode {
        manifest: manifest.clone(),
        node: refusal.node.clone(),
        reason: refusal.reason.text.clone(),
        hint: refusal.hint.clone(),
    });
    let locked = locked.iter().map(|(record, commands)| LockedNode {
        node: record.name.clone(),
        host: record.host.clone(),
        commands: commands.clone(),
    });
    let sites = summary.sites.iter().map(|(site, manifests)| OtherSite {
        site: site.to_string(),
        manifests: manifests.clone(),
    });
    StateRebuild {
        success,
        dry_run,
        restored: restored.collect(),
        known: summary.known.len() - summary.restored.len(),
        refused: refused.collect(),
        without_keys: locked.collect(),
        unreachable: summary.lost.clone(),
        other_sites: sites.collect(),
    }
}
