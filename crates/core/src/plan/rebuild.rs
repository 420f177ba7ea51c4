//! What can be remembered again of nodes that the journal does not know.
//!
//! In: what was seen. Out: records of guests that are the only ones to carry a node's identity, and
//! why others are not believed.
//! Never: a record from a name, a manifest's tag or notes alone: the identity is computed anew.

use std::collections::BTreeSet;

use crate::observed::{GuestUuid, ObservedGuest};

use super::apply::{by_depth, empty, place, said, site_hosts};
use super::compare::found;
use super::owner::{Match, Owners};
use super::record::{NodeRecord, NodeStatus};
use super::strays::{ambiguous, edited, only_copies, unusable};
use super::types::{Action, NodePlan, Place, Plan, Refusal};
use super::wanted::USER;
use super::{Inputs, Look};

/// What was found of the nodes of a manifest.
#[derive(Clone, Debug, Default)]
pub struct Rebuilt {
    /// Nodes whose guests are there, with what can be remembered of them.
    pub nodes: Vec<(NodePlan, NodeRecord)>,
    /// Guests that are not recorded, and why.
    pub refusals: Vec<Refusal>,
}

/// Looks for the guests of nodes that nothing is remembered of.
pub fn rebuild(inputs: &Inputs<'_>) -> Rebuilt {
    let owners = Owners::new(inputs.site, &inputs.resolved.name, inputs.looks);
    let hosts = site_hosts(inputs.resolved);
    let mut rebuilt = Rebuilt::default();
    let known = inputs
        .records
        .values()
        .map(|record| record.guest.uuid.clone());
    let mut claimed: BTreeSet<GuestUuid> = known.collect();
    for node in by_depth(inputs.resolved) {
        let name = node.name.as_str();
        let (Some(place), Some(host)) = (place(node), hosts.get(name)) else {
            continue;
        };
        let seen = matches!(inputs.looks.get(&place), Some(Look::Seen(_)));
        if !seen || inputs.records.of(name, host).is_some() {
            continue;
        }
        let carrying = owners.of_node(&place, (host, name), None);
        claimed.extend(carrying.identities());
        let (guest, why) = match carrying {
            Match::Absent => continue,
            Match::Guest(guest, _) => (Some(guest), unusable(name, guest)),
            Match::Copies(guests) => (None, Some(only_copies(name, None, &guests))),
            Match::Ambiguous(guests) => (None, Some(ambiguous(name, &guests))),
            Match::Edited(guest) => (None, Some(edited(name, inputs.site, guest))),
        };
        if let Some((detail, hint)) = why {
            rebuilt
                .refusals
                .push(Refusal::of(Some(name), (detail, hint)));
        } else if let Some(guest) = guest
            && let Some(found) = found(guest, None)
        {
            let record = record(inputs, name, (&place, host), guest, &found.guest);
            let node = NodePlan {
                name: name.to_owned(),
                host: (*host).to_owned(),
                place,
                depth: node.depth,
                action: Action::Nothing,
                reasons: vec![said("its guest was found")],
                wanted: None,
                found: Some(found),
                config: None,
                reidentified: None,
                recorded: None,
            };
            rebuilt.nodes.push((node, record));
        }
    }
    rebuilt.refusals.extend(unnamed(inputs, &claimed));
    rebuilt
}

/// Returns the plan under which records are written down: there is nothing to do in it.
pub fn rebuilt_plan(inputs: &Inputs<'_>, nodes: Vec<NodePlan>) -> Plan {
    empty(inputs, nodes, Vec::new(), Vec::new(), Vec::new())
}

/// What was created completely, and whether it can be reached, is found out by the next apply.
fn record(
    inputs: &Inputs<'_>,
    name: &str,
    (place, host): (&Place, &str),
    guest: &ObservedGuest,
    reference: &crate::observed::GuestRef,
) -> NodeRecord {
    let defaults = inputs.catalog.defaults();
    let user = defaults.and_then(|defaults| defaults.vm_user.as_ref());
    NodeRecord {
        name: name.to_owned(),
        host: host.to_owned(),
        place: place.clone(),
        site: Some(inputs.site.clone()),
        guest: reference.clone(),
        status: match guest.lock.as_deref() {
            Some("create") => NodeStatus::Creating,
            Some(_) | None => NodeStatus::Made,
        },
        source: None,
        address: None,
        user: Some(user.map_or_else(|| USER.to_owned(), ToString::to_string)),
        configured: None,
        hosts_guests: inputs.resolved.node(name).map(|node| node.can_host),
    }
}

/// Reports guests that say they are of this manifest and whose identity is no node's: the manifest
/// may have named them once, or somebody wrote their tags.
fn unnamed(inputs: &Inputs<'_>, claimed: &BTreeSet<GuestUuid>) -> Vec<Refusal> {
    let manifest = &inputs.resolved.name;
    let looks = inputs.looks.values().filter_map(|look| match look {
        Look::Seen(observed) => Some(&observed.guests),
        Look::Unseen(_) => None,
    });
    let says_so = looks.flatten().filter(|guest| {
        let uuid = guest.uuid.as_ref();
        guest.belongs_to(inputs.site, manifest) && uuid.is_some_and(|uuid| !claimed.contains(uuid))
    });
    let refused = says_so.map(|guest| {
        let detail = format!(
            "guest {} ({}) on {} carries the tags of this site and of `{manifest}`, and the identity of none of its nodes",
            guest.vmid, guest.name, guest.host
        );
        let hint = format!(
            "homestak manifest plan -M {manifest} lists what the manifest does not name any more"
        );
        Refusal::of(None, (detail, hint))
    });
    refused.collect()
}
