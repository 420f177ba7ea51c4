//! The configuration of a node: its spec, resolved for its guest. The JSON may contain secrets.
//!
//! Addresses that the host assigns are not part of it.

use std::borrow::Cow;

use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::guest::DesiredGuest;
use super::types::{Action, ConfigPlan, Plan, Reason};
use crate::catalog::Catalog;
use crate::doc::manifest::Mode;
use crate::foreign::ForeignText;
use crate::hex;
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
    hex::encode(&Sha256::digest(text.as_bytes())[..16])
}

/// Returns the SSH port that a resolved spec sets.
pub fn ssh_port(text: &str) -> u16 {
    let json: Json = serde_json::from_str(text).unwrap_or_default();
    let port = json["access"]["_posture"]["ssh"]["port"].as_u64();
    port.and_then(|port| u16::try_from(port).ok())
        .unwrap_or(DEFAULT_SSH_PORT)
}

/// Decides whether a running node that needs no other action is configured. `before` is the mode in
/// which it was configured last, if that is recorded.
pub(super) fn config_action(
    config: &ConfigPlan,
    before: Option<Mode>,
    mut reasons: Vec<Reason>,
) -> (Action, Vec<Reason>) {
    let change = mode_change(config, before);
    // Without a listing, it adds nothing that the node has reported nothing in its new mode.
    let is_said = config.is_settled() || change.is_some() && !config.is_listed();
    if !is_said {
        reasons.insert(0, difference(config));
    }
    let action = match change.is_none() && config.is_settled() {
        true => Action::Nothing,
        false => Action::Configure,
    };
    if let Some(change) = change {
        reasons.insert(0, change);
    }
    (action, reasons)
}

/// Returns the reason to configure a node that was last configured in another mode.
pub(super) fn mode_change(config: &ConfigPlan, before: Option<Mode>) -> Option<Reason> {
    let before = before.filter(|before| *before != config.mode)?;
    let text = format!("its mode changes from `{before}` to `{}`", config.mode);
    Some(Reason::new(text))
}

/// Returns how a node differs from its spec.
fn difference(config: &ConfigPlan) -> Reason {
    let spec = &config.spec;
    let text = match &config.found {
        Some(_) if !config.is_listed() => {
            format!("it has not reported that it matches its spec `{spec}`")
        }
        Some(found) if found.changes.is_empty() => {
            let mode = config.mode;
            format!("its spec `{spec}` was not yet applied in the mode `{mode}`")
        }
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
    Reason::new(text)
}

/// Returns why a node could not be inspected, as a suffix for a message.
pub(super) fn inspection_failure(config: &ConfigPlan) -> String {
    let unseen = config.unseen.as_ref();
    unseen.map_or_else(String::new, |unseen| format!(": {}", unseen.why))
}
