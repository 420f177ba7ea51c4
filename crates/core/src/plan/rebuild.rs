//! What can be remembered again of nodes that the journal does not know.
//!
//! In: what was seen. Out: records of guests that are the only ones to carry a node's identity, and
//! why others are not believed.
//! Never: a record from a name, a manifest's tag or notes alone: the identity is computed anew.

use std::collections::BTreeSet;

use crate::doc::scalar::SiteId;
use crate::observed::{GuestUuid, ObservedGuest};

use super::apply::{by_depth, empty, place, said, site_hosts};
use super::compare::found;
use super::owner::{Match, Owners, is_identity_of};
use super::place::offer;
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
    /// Identities of nodes, and of what is recorded: their guests are no strangers.
    pub claimed: BTreeSet<GuestUuid>,
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
        if !matches!(inputs.looks.get(&place), Some(Look::Seen(_))) {
            continue;
        }
        let known = inputs.records.of(name, host);
        let carrying = owners.of_node(&place, (host, name), known);
        claimed.extend(carrying.identities());
        if known.is_some() {
            // Another driver may have replaced what is recorded.
            if let Match::Copies(guests) = carrying {
                let why = only_copies(name, known, &guests);
                rebuilt.refusals.push(Refusal::of(Some(name), why));
            }
            continue;
        }
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
    rebuilt.claimed = claimed;
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
    let roots = site_hosts(inputs.resolved);
    let mut refusals = Vec::new();
    for (place, look) in inputs.looks {
        let Look::Seen(observed) = look else {
            continue;
        };
        let host = match place {
            Place::Host(host) => host.as_str(),
            Place::Inside(node) => roots.get(node.as_str()).copied().unwrap_or_default(),
        };
        let machine = offer(inputs, place).host;
        for guest in &observed.guests {
            let Some(uuid) = guest.uuid.as_ref().filter(|uuid| !claimed.contains(uuid)) else {
                continue;
            };
            // Of a cluster, each host entry shows the guests of all machines.
            let here = guest.host == machine;
            if !guest.belongs_to(inputs.site, manifest)
                || !here && is_machine_of_another(inputs, host, &guest.host)
                || is_of_another_host(inputs, host, guest, uuid)
            {
                continue;
            }
            let detail = format!(
                "guest {} ({}) on {} carries the tags of this site and of `{manifest}`, and the identity of none of its nodes",
                guest.vmid, guest.name, guest.host
            );
            let hint = match here {
                true => format!(
                    "homestak manifest plan -M {manifest} -H {host} lists what the manifest does not name any more; guests of a host entry that was renamed carry its old name"
                ),
                false => OWN.to_owned(),
            };
            refusals.push(Refusal::of(None, (detail, hint)));
        }
    }
    refusals
}

/// What there is to do about a guest that is nobody's.
const OWN: &str = "if it is to stay as a guest of its own, remove its tags `homestak*`";

fn is_machine_of_another(inputs: &Inputs<'_>, host: &str, machine: &str) -> bool {
    let mut others = inputs.catalog.guest_hosts().filter(|other| *other != host);
    others.any(|other| offer(inputs, &Place::Host(other.clone())).host == machine)
}

/// Tells whether a guest is recorded for another manifest or host, or has the identity of a node on
/// another host of the site. People rename guests, so every name that a node has is tried.
fn is_of_another_host(
    inputs: &Inputs<'_>,
    host: &str,
    guest: &ObservedGuest,
    uuid: &GuestUuid,
) -> bool {
    let manifest = (inputs.site, inputs.resolved.name.as_str());
    let nodes = inputs.resolved.nodes.iter().map(|node| node.name.as_str());
    let names: BTreeSet<&str> = nodes.chain([guest.name.as_str()]).collect();
    let mut others = inputs.catalog.guest_hosts().filter(|other| *other != host);
    inputs.elsewhere.has(uuid, guest.vmid)
        || others.any(|other| {
            let mut names = names.iter();
            names.any(|name| is_identity_of(manifest, other, name, uuid))
        })
}

/// Says why a guest of the site that no manifest of it names is not recorded, with the manifest that
/// its tags name.
pub fn unknown_manifest(
    site: &SiteId,
    guest: &ObservedGuest,
    known: impl Fn(&str) -> bool,
) -> Option<(String, Refusal)> {
    if guest.site.as_ref() != Some(site) || guest.uuid.is_none() {
        return None;
    }
    let manifest = guest.manifest.as_deref();
    if manifest.is_some_and(known) {
        return None;
    }
    let (whose, hint) = match manifest {
        Some(name) => (
            format!("of a manifest `{name}`, which the site does not have"),
            format!(
                "if the manifest was renamed, `manifests/{name}.yaml` is the name under which its nodes are recorded; {OWN}"
            ),
        ),
        None => ("of no manifest".to_owned(), OWN.to_owned()),
    };
    let detail = format!(
        "guest {} ({}) on {} carries the tags of this site and {whose}",
        guest.vmid, guest.name, guest.host
    );
    let about = manifest.unwrap_or_default().to_owned();
    Some((about, Refusal::of(None, (detail, hint))))
}
