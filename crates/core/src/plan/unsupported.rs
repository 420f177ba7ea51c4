//! What a manifest can ask for and this version cannot do. It is refused, because a node that is
//! created and then not configured would be reported as complete.

use super::compare::located;
use super::types::{Plan, Refusal};
use crate::catalog::Catalog;
use crate::doc::manifest::{Mode, NodeType};
use crate::observed::GuestKind;
use crate::resolve::{Origin, Resolved};

/// Returns a refusal for each node of a plan that asks for what cannot be done.
/// `can_enter` tells whether the driver can log in to containers of a host.
pub fn unsupported(
    catalog: &Catalog,
    resolved: &Resolved,
    plan: &Plan,
    can_enter: impl Fn(&str) -> bool,
) -> Vec<Refusal> {
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
            && !can_enter(&node.host)
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
