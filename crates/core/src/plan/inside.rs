//! What a node becomes inside: its spec, resolved for the guest that it is.
//!
//! In: the documents, a spec's name, the node. Out: JSON text, which may hold secrets.
//! Never: an address that the place gave out; the place sees to that one itself.

use std::borrow::Cow;

use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::apply::said;
use super::types::{Action, ConfigPlan, Plan, Reason, Wanted};
use crate::catalog::Catalog;
use crate::foreign::ForeignText;
use crate::resolve::{Reveal, spec::spec};

/// Where SSH listens when no posture says otherwise.
const SSH: u16 = 22;

/// Returns the spec of a node as the node gets it, with the key of its driver. `None` when there is
/// no such spec.
pub fn spec_text(
    catalog: &Catalog,
    name: &str,
    (node, wanted): (&str, &Wanted),
    key: &str,
) -> Option<String> {
    let mut json = spec(catalog, name, None, Reveal::Exposed)?.json();
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

/// Returns a plan to be remembered: which fields of a node differ, and not what is in them. Nothing
/// that is done later needs the values: the node is asked again, and the spec is made from the
/// site's documents again and compared with its digest.
#[must_use]
pub fn without_values(plan: &Plan) -> Cow<'_, Plan> {
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

/// Returns what a spec adds up to.
pub fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns where SSH listens on a node with a resolved spec.
pub fn port(text: &str) -> u16 {
    let json: Json = serde_json::from_str(text).unwrap_or_default();
    let port = json["access"]["_posture"]["ssh"]["port"].as_u64();
    port.and_then(|port| u16::try_from(port).ok())
        .unwrap_or(SSH)
}

/// Decides what is done to a node that runs, by what it is like inside.
pub(super) fn inside(config: &ConfigPlan, mut reasons: Vec<Reason>) -> (Action, Vec<Reason>) {
    if config.is_settled() {
        return (Action::Nothing, reasons);
    }
    let spec = &config.spec;
    let text = match &config.found {
        Some(found) => {
            let n = found.changes.len();
            let places = if n == 1 { "place" } else { "places" };
            format!("it differs from its spec `{spec}` in {n} {places}")
        }
        None => format!(
            "whether it is as its spec `{spec}` says could not be seen{}",
            why(config)
        ),
    };
    reasons.insert(0, said(&text));
    (Action::Configure, reasons)
}

/// Says why a node could not be asked, where that is known.
pub(super) fn why(config: &ConfigPlan) -> String {
    let unseen = config.unseen.as_ref();
    unseen.map_or_else(String::new, |unseen| format!(": {}", unseen.why))
}
