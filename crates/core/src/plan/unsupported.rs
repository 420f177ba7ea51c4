//! Refuses what a manifest can contain and this version does not support. Otherwise a node that is
//! created but not configured would be reported as complete.

use super::compare::located;
use super::guest::DesiredGuest;
use super::types::{Plan, Refusal};
use crate::catalog::Catalog;
use crate::doc::manifest::{Mode, NodeType};
use crate::host_kind::HostTraits;
use crate::observed::GuestKind;
use crate::resolve::{Origin, ResolvedManifest, ResolvedNode};

/// Returns a refusal for each unsupported setting of a planned node.
pub fn unsupported(catalog: &Catalog, resolved: &ResolvedManifest, plan: &Plan) -> Vec<Refusal> {
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
        for (text, origin, hint) in missing_features(catalog, written, wanted, &node.host, traits) {
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
        if let Some(spec) = &written.spec
            && wanted.kind == GuestKind::Ct
            && !traits.seeds_containers
        {
            let host = &node.host;
            let why = match written.mode.value {
                Mode::Push | Mode::Hybrid => "the driver cannot log in to containers",
                Mode::Pull => "no first-boot data is written to containers",
            };
            refuse(
                format!(
                    "{why} on `{host}`, so the spec `{}` would not be applied",
                    spec.value
                ),
                &spec.origin,
                "remove `spec`, or use `type: vm`",
            );
        }
    }
    refusals
}

/// Returns settings of a node that its host does not support. Site-wide defaults are ignored on hosts
/// that do not support them.
fn missing_features<'n>(
    catalog: &Catalog,
    node: &'n ResolvedNode,
    wanted: &DesiredGuest,
    host: &str,
    traits: HostTraits,
) -> Vec<(String, &'n Origin, &'static str)> {
    let mut missing = Vec::new();
    if let Some(vmid) = node.vmid.as_ref().filter(|_| !traits.numbers_guests) {
        missing.push((
            format!("`{host}` assigns ids itself, so `vmid` cannot be set"),
            &vmid.origin,
            "remove `vmid`",
        ));
    }
    if !traits.has_bridges {
        let default = catalog
            .defaults()
            .and_then(|defaults| defaults.bridge.as_ref());
        let default = default.map(|bridge| Origin::Written(bridge.span));
        let net = &node.networking;
        let is_requested = |origin: &Origin| {
            matches!(origin, Origin::Written(_)) && Some(origin) != default.as_ref()
        };
        if is_requested(&net.bridge.origin) {
            missing.push((
                format!(
                    "`{host}` does not support bridges, such as `{}`",
                    net.bridge.value
                ),
                &net.bridge.origin,
                "remove `bridge` from its preset and network, or use another host",
            ));
        }
        if let Some(vlan) = &net.vlan {
            missing.push((
                format!("`{host}` does not support VLANs, such as {}", vlan.value),
                &vlan.origin,
                "use a network without `vlan`, or another host",
            ));
        }
    }
    if wanted.kind == GuestKind::Ct && !traits.runs_containers {
        missing.push((
            format!("`{host}` does not support containers"),
            &node.kind.origin,
            "use `type: vm`, or another host",
        ));
    }
    let source = node.template.as_ref().or(node.image.as_ref());
    if let Some(source) = source.filter(|_| !traits.has_storages && wanted.image.is_none()) {
        missing.push((
            format!(
                "`{host}` has no storages, so the volume `{}` cannot be used",
                source.value
            ),
            &source.origin,
            "use an image of the site",
        ));
    }
    missing
}
