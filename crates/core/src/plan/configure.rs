//! Reduces a plan of `apply` to its configuration phase: nodes that run are configured, and nothing
//! else is done.

use super::config::config_action;
use super::types::{Action, NodePlan, Plan, Reason, Refusal};
use crate::observed::PowerState;

/// Returns the plan that only configures nodes: those that are named, or all. A named node that
/// cannot be configured is refused.
#[must_use]
pub fn configure_only(mut plan: Plan, names: &[String]) -> Plan {
    let mut refusals = std::mem::take(&mut plan.refusals);
    for node in &mut plan.nodes {
        let is_named = names.contains(&node.name);
        if !names.is_empty() && !is_named {
            (node.action, node.reasons) = (Action::Nothing, Vec::new());
            continue;
        }
        match (obstacle(node), &node.config) {
            (None, Some(config)) => {
                let before = node.mode_before();
                (node.action, node.reasons) = config_action(config, before, Vec::new());
            }
            (why, _) => {
                let why = why.unwrap_or("it has no spec that is applied");
                if is_named {
                    let hint = "homestak manifest plan shows the whole plan".to_owned();
                    let text = format!("it cannot be configured: {why}");
                    plan.refusals
                        .push(Refusal::of(Some(&node.name), (text, hint)));
                }
                node.action = Action::Nothing;
                node.reasons = vec![Reason::new(format!("it is not configured: {why}"))];
            }
        }
    }
    // What other phases would be refused for is no obstacle.
    refusals.retain(|refusal| {
        let node = refusal.node.as_ref().and_then(|name| plan.node(name));
        node.is_some_and(|node| node.action == Action::Configure)
    });
    plan.refusals.extend(refusals);
    plan.steps = super::steps(&plan);
    (plan.estimate, plan.measured) = (None, false);
    plan
}

/// Returns why a node cannot be configured now.
fn obstacle(node: &NodePlan) -> Option<&'static str> {
    let (Some(wanted), Some(found)) = (&node.wanted, &node.found) else {
        return Some(match node.wanted {
            Some(_) => "it does not exist",
            None => "the manifest does not list it",
        });
    };
    if wanted.uuid != found.guest.uuid {
        return Some("the next apply replaces it");
    }
    match found.power {
        PowerState::Running => None,
        PowerState::Stopped => Some("it does not run"),
        PowerState::Unknown => Some("its power state is not known"),
    }
}
