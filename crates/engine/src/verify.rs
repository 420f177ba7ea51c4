//! Verifies that every node of an executed plan runs, is reachable and matches its spec.
//!
//! Neither waits nor changes anything.

use std::sync::Arc;

use homestak_core::plan::{Action, NodePlan, NodeRecord, Plan};

use crate::operate::run_context::RunContext;
use crate::ports::{
    ConfigTarget, Configurer, GuestAddress, HostConnector, PortError, PowerState, ssh_ports,
};
use crate::steps::planned;

/// The result of verifying a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCheck {
    /// The node.
    pub node: String,
    /// Whether it passed.
    pub good: bool,
    /// Details.
    pub detail: String,
}

/// Verifies every node of the manifest.
pub async fn verify(
    connector: &Arc<dyn HostConnector>,
    configurer: &Arc<dyn Configurer>,
    plan: &Plan,
    records: &[NodeRecord],
) -> Vec<NodeCheck> {
    let plan = Arc::new(plan.clone());
    let context = RunContext::new(plan.clone(), connector.clone(), records);
    let mut checks = Vec::new();
    for node in &plan.nodes {
        if node.wanted.is_none() || node.action == Action::Keep {
            continue;
        }
        let ssh = plan.verify_ssh && (!node.pulls() || context.hosts_others(&node.name));
        let seen = one(&context, configurer, (&plan.manifest, node), ssh).await;
        let (good, detail) = match seen {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        checks.push(NodeCheck {
            node: node.name.clone(),
            good,
            detail,
        });
    }
    checks
}

async fn one(
    context: &RunContext,
    configurer: &Arc<dyn Configurer>,
    (manifest, node): (&str, &NodePlan),
    ssh: bool,
) -> Result<String, String> {
    let text = |error: PortError| error.to_string();
    let guest = context.guest(&node.name).or_else(|| planned(node));
    let guest = guest.ok_or("the plan has no guest for it")?;
    let provider = context
        .provider(&node.host, &node.location)
        .await
        .map_err(text)?;
    let there = provider.inspect(&guest).await.map_err(text)?;
    let there = there.ok_or("it does not exist")?;
    if there.uuid.is_none() {
        return Err(format!("the tags of guest {} were removed", there.vmid));
    }
    if there.power != PowerState::Running {
        return Err(format!("guest {} is not running", there.vmid));
    }
    let address = provider.address(&guest).await.map_err(text)?;
    let address = match address {
        GuestAddress::At(address) => address,
        GuestAddress::NoAgent => {
            let id = there.vmid;
            return Err(format!("the guest agent of guest {id} does not answer"));
        }
        GuestAddress::NoAddress => return Err(format!("guest {} has no address", there.vmid)),
    };
    if ssh {
        let answers = context
            .connector()
            .ssh_answers(&node.host, address, &ssh_ports(node, node.config.as_ref()))
            .await;
        if !answers.map_err(text)? {
            return Err(format!("SSH does not answer at {address}"));
        }
    }
    let runs = format!("guest {} runs at {address}", there.vmid);
    let Some(config) = &node.config else {
        return Ok(runs);
    };
    let Some(inner) = ConfigTarget::of(manifest, (node, config), guest.uuid, address) else {
        return Ok(runs);
    };
    let found = configurer.check(&inner).await.map_err(text)?;
    let differs: Vec<&str> = found.changes.iter().map(|one| one.id.as_str()).collect();
    if found.settled {
        return Ok(format!("{runs} and matches its spec `{}`", config.spec));
    }
    let (spec, differs) = (&config.spec, differs.join(", "));
    if node.pulls() {
        return Err(format!(
            "{runs} and has not reported that it matches its spec `{spec}`"
        ));
    }
    Err(format!(
        "{runs} and does not match its spec `{spec}`: {differs}"
    ))
}
