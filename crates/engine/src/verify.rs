//! Looks whether every node of a plan is as it should be: it runs, it is reached, and it is inside
//! as its spec says.
//!
//! In: a plan that was carried out, and what is remembered. Out: a [`Verdict`] for each node.
//! Never: waiting; the run waited already. Never: a change.

use std::sync::Arc;

use homestak_core::plan::{Action, NodePlan, NodeRecord, Plan};

use crate::operate::board::Board;
use crate::ports::{Configurer, Inner, Places, PortError, PowerState, Reach, ssh_ports};
use crate::steps::planned;

/// Whether a node is as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The node.
    pub node: String,
    /// Whether it is as it should be.
    pub good: bool,
    /// What was seen.
    pub detail: String,
}

/// Looks at every node that the manifest names.
pub async fn verify(
    places: &Arc<dyn Places>,
    configurer: &Arc<dyn Configurer>,
    plan: &Plan,
    records: &[NodeRecord],
) -> Vec<Verdict> {
    let plan = Arc::new(plan.clone());
    let board = Board::new(plan.clone(), places.clone(), records);
    let mut verdicts = Vec::new();
    for node in &plan.nodes {
        if node.wanted.is_none() || node.action == Action::Leave {
            continue;
        }
        let seen = one(&board, configurer, node, plan.verify_ssh).await;
        let (good, detail) = match seen {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        verdicts.push(Verdict {
            node: node.name.clone(),
            good,
            detail,
        });
    }
    verdicts
}

async fn one(
    board: &Board,
    configurer: &Arc<dyn Configurer>,
    node: &NodePlan,
    ssh: bool,
) -> Result<String, String> {
    let text = |error: PortError| error.to_string();
    let guest = board.guest(&node.name).or_else(|| planned(node));
    let guest = guest.ok_or("the plan has no guest for it")?;
    let provider = board.open(&node.host, &node.location).await.map_err(text)?;
    let there = provider.inspect(&guest).await.map_err(text)?;
    let there = there.ok_or("it is not there")?;
    if there.uuid.is_none() {
        return Err(format!("the tags of guest {} were removed", there.vmid));
    }
    if there.power != PowerState::Running {
        return Err(format!("guest {} does not run", there.vmid));
    }
    let address = provider.address(&guest).await.map_err(text)?;
    let address = match address {
        Reach::At(address) => address,
        Reach::NoAgent => {
            let id = there.vmid;
            return Err(format!("the guest agent of guest {id} does not answer"));
        }
        Reach::NoAddress => return Err(format!("guest {} has no address", there.vmid)),
    };
    if ssh {
        let answers = board
            .places()
            .answers(&node.host, address, &ssh_ports(node, node.config.as_ref()))
            .await;
        if !answers.map_err(text)? {
            return Err(format!("SSH does not answer at {address}"));
        }
    }
    let runs = format!("guest {} runs at {address}", there.vmid);
    let Some(config) = &node.config else {
        return Ok(runs);
    };
    let Some(inner) = Inner::of(node, config, guest.uuid, address) else {
        return Ok(runs);
    };
    let found = configurer.check(&inner).await.map_err(text)?;
    let differs: Vec<&str> = found.changes.iter().map(|one| one.id.as_str()).collect();
    if found.settled {
        return Ok(format!("{runs} and is as its spec `{}` says", config.spec));
    }
    let (spec, differs) = (&config.spec, differs.join(", "));
    Err(format!(
        "{runs} and is not as its spec `{spec}` says: {differs}"
    ))
}
