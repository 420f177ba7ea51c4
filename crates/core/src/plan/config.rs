//! The configuration of a node: its spec, resolved for its guest. The JSON may contain secrets.
//!
//! Addresses that the host assigns are not part of it.

use std::borrow::Cow;

use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::guest::DesiredGuest;
use super::types::{Action, ConfigPlan, Plan, Reason};
use crate::catalog::Catalog;
use crate::foreign::ForeignText;
use crate::resolve::{SecretVisibility, spec::spec};

/// The SSH port when the posture sets none.
const DEFAULT_SSH_PORT: u16 = 22;

/// Returns the spec as it is sent to the node, with the SSH key of the driver. `None` if the spec does
/// not exist.
pub fn spec_json(
    catalog: &Catalog,
    name: &str,
    (node, wanted): (&str, &DesiredGuest),
    key: &str,
) -> Option<String> {
    let mut json = spec(catalog, name, None, SecretVisibility::Exposed)?.json();
    json["identity"]["hostname"] = json!(node);
    json["access"]["_driver"] = json!({ "user": wanted.user, "ssh_keys": [key] });
    let map = json.as_object_mut()?;
    map.remove("network");
    if let (Some((ip, prefix)), Some(gateway)) = (wanted.nic.address, wanted.nic.gateway) {
        let network =
            json!({ "ip": format!("{ip}/{prefix}"), "gateway": gateway, "dns": wanted.dns });
        map.insert("network".to_owned(), network);
    }
    Some(json.to_string())
}

/// Returns the plan without the values of differences, for the journal. Later steps do not need them:
/// they inspect the node again, resolve the spec again and compare it with its digest.
#[must_use]
pub fn without_config_values(plan: &Plan) -> Cow<'_, Plan> {
    let mut configs = plan.nodes.iter().filter_map(|node| node.config.as_ref());
    if configs.all(|config| config.found.is_none()) {
        return Cow::Borrowed(plan);
    }
    let mut plan = plan.clone();
    let configs = plan
        .nodes
        .iter_mut()
        .filter_map(|node| node.config.as_mut());
    for change in configs
        .filter_map(|config| config.found.as_mut())
        .flat_map(|found| &mut found.changes)
    {
        change.expected = ForeignText::default();
        change.found = ForeignText::default();
    }
    Cow::Owned(plan)
}

/// Returns the digest of a resolved spec.
pub fn spec_digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the SSH port that a resolved spec sets.
pub fn ssh_port(text: &str) -> u16 {
    let json: Json = serde_json::from_str(text).unwrap_or_default();
    let port = json["access"]["_posture"]["ssh"]["port"].as_u64();
    port.and_then(|port| u16::try_from(port).ok())
        .unwrap_or(DEFAULT_SSH_PORT)
}

/// Decides whether a running node that needs no other action is configured.
pub(super) fn config_action(
    config: &ConfigPlan,
    mut reasons: Vec<Reason>,
) -> (Action, Vec<Reason>) {
    if config.is_settled() {
        return (Action::Nothing, reasons);
    }
    let spec = &config.spec;
    let text = match &config.found {
        Some(found) => {
            let n = found.changes.len();
            let differences = if n == 1 { "difference" } else { "differences" };
            format!("{n} {differences} from its spec `{spec}`")
        }
        None => format!(
            "it could not be compared with its spec `{spec}`{}",
            inspection_failure(config)
        ),
    };
    reasons.insert(0, Reason::new(text));
    (Action::Configure, reasons)
}

/// Returns why a node could not be inspected, as a suffix for a message.
pub(super) fn inspection_failure(config: &ConfigPlan) -> String {
    let unseen = config.unseen.as_ref();
    unseen.map_or_else(String::new, |unseen| format!(": {}", unseen.why))
}
