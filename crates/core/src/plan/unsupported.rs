//! What a manifest can ask for and this version cannot do. It is refused, because a node that is
//! created and then not configured would be reported as complete.

use super::compare::located;
use super::types::{Plan, Refusal, Wanted};
use crate::catalog::Catalog;
use crate::doc::manifest::{Mode, NodeType};
use crate::kind::Traits;
use crate::observed::GuestKind;
use crate::resolve::{Origin, Resolved, ResolvedNode};

/// Returns a refusal for each node of a plan that asks for what cannot be done.
pub fn unsupported(catalog: &Catalog, resolved: &Resolved, plan: &Plan) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for node in &plan.nodes {
        let (Some(written), Some(wanted)) = (resolved.node(&node.name), &node.wanted) else {
            continue;
        };
        let mut refuse = |text: String, origin: &Origin, hint: &str| {
            refusals.push(Refusal {
                node: Some(node.name.clone()),
                reason: located(catalog, text, Some(origin)),
                hint: hint.to_owned(),
            });
        };
        let traits = catalog.traits_of(&node.host);
        for (text, origin, hint) in lacking(catalog, written, wanted, &node.host, traits) {
            refuse(text, origin, hint);
        }
        match written.kind.value {
            NodeType::K3s => refuse(
                "nodes of type `k3s` are not implemented yet".to_owned(),
                &written.kind.origin,
                "`type: vm` creates the machine without Kubernetes",
            ),
            NodeType::Vm | NodeType::Ct | NodeType::Pve => {}
        }
        match written.mode.value {
            Mode::Push => {}
            Mode::Pull | Mode::Hybrid => refuse(
                format!(
                    "configuration by {} is not implemented yet; the node would stay unconfigured",
                    written.mode.value
                ),
                &written.mode.origin,
                "--mode push configures it from here",
            ),
        }
        if let Some(spec) = &written.spec
            && wanted.kind == GuestKind::Ct
            && !traits.seeds_containers
        {
            refuse(
                format!(
                    "the driver cannot log in to containers on Proxmox VE, so the spec `{}` would not be applied",
                    spec.value
                ),
                &spec.origin,
                "leave `spec` out, or write `type: vm`",
            );
        }
    }
    refusals
}

/// Returns what a node asks for by name that its host does not have. What the site names for all
/// hosts is not asked of those that lack it.
fn lacking<'n>(
    catalog: &Catalog,
    node: &'n ResolvedNode,
    wanted: &Wanted,
    host: &str,
    traits: Traits,
) -> Vec<(String, &'n Origin, &'static str)> {
    let mut lacking = Vec::new();
    if let Some(vmid) = node.vmid.as_ref().filter(|_| !traits.numbers_guests) {
        lacking.push((
            format!("`{host}` does not number its guests, so that `vmid` cannot be chosen"),
            &vmid.origin,
            "leave `vmid` out: the host gives the guest an id",
        ));
    }
    if !traits.has_bridges {
        let usual = catalog
            .defaults()
            .and_then(|defaults| defaults.bridge.as_ref());
        let usual = usual.map(|bridge| Origin::Written(bridge.span));
        let net = &node.networking;
        let asks = |origin: &Origin| {
            matches!(origin, Origin::Written(_)) && Some(origin) != usual.as_ref()
        };
        if asks(&net.bridge.origin) {
            lacking.push((
                format!("`{host}` has no bridges, and `{}` is one", net.bridge.value),
                &net.bridge.origin,
                "leave `bridge` out of its preset and network, or name another host",
            ));
        }
        if let Some(vlan) = &net.vlan {
            lacking.push((
                format!("`{host}` has no bridges, and so no VLAN {}", vlan.value),
                &vlan.origin,
                "name a network without `vlan`, or another host",
            ));
        }
    }
    let source = node.template.as_ref().or(node.image.as_ref());
    if let Some(source) = source.filter(|_| !traits.has_storages && wanted.image.is_none()) {
        lacking.push((
            format!(
                "`{host}` has no storages, and `{}` is a volume of one",
                source.value
            ),
            &source.origin,
            "name an image of the site",
        ));
    }
    lacking
}
