//! Rebuilds lost records from the observed guests.
//!
//! A guest is recorded only if it is the only one that carries the identity of a node. Name, tags and
//! notes alone are not trusted: the identity is computed from the documents.

use std::collections::BTreeSet;

use crate::doc::scalar::SiteId;
use crate::observed::{GuestUuid, ObservedGuest};

use super::apply::{by_depth, location, new_plan, site_hosts};
use super::compare::existing;
use super::desired::DEFAULT_USER;
use super::guest_index::{GuestIndex, GuestMatch, is_identity_of};
use super::host_profile::profile;
use super::orphans::{ambiguous, edited, only_copies, unusable};
use super::record::{NodeRecord, NodeStatus};
use super::types::{Action, NodeLocation, NodePlan, Plan, Reason, Refusal};
use super::{Observation, PlanInputs};

/// The rebuilt records of a manifest.
#[derive(Clone, Debug, Default)]
pub struct RebuiltRecords {
    /// Nodes whose guests exist, with their records.
    pub nodes: Vec<(NodePlan, NodeRecord)>,
    /// Why guests are not recorded.
    pub refusals: Vec<Refusal>,
    /// Identities of nodes and of existing records.
    pub claimed: BTreeSet<GuestUuid>,
}

/// Finds the guests of nodes without a record.
pub fn rebuild_records(inputs: &PlanInputs<'_>) -> RebuiltRecords {
    let guest_index = GuestIndex::new(inputs.site, &inputs.resolved.name, inputs.observations);
    let hosts = site_hosts(inputs.resolved);
    let mut rebuilt = RebuiltRecords::default();
    let known = inputs
        .records
        .values()
        .map(|record| record.guest.uuid.clone());
    let mut claimed: BTreeSet<GuestUuid> = known.collect();
    for node in by_depth(inputs.resolved) {
        let name = node.name.as_str();
        let (Some(location), Some(host)) = (location(node), hosts.get(name)) else {
            continue;
        };
        if !matches!(
            inputs.observations.get(&location),
            Some(Observation::Available(_))
        ) {
            continue;
        }
        let known = inputs.records.of(name, host);
        let matched = guest_index.of_node(&location, (host, name), known);
        claimed.extend(matched.identities());
        if known.is_some() {
            // Another driver may have replaced what is recorded.
            if let GuestMatch::Copies(guests) = matched {
                let why = only_copies(name, known, &guests);
                rebuilt.refusals.push(Refusal::of(Some(name), why));
            }
            continue;
        }
        let (guest, why) = match matched {
            GuestMatch::Absent => continue,
            GuestMatch::Guest(guest, _) => (Some(guest), unusable(name, guest)),
            GuestMatch::Copies(guests) => (None, Some(only_copies(name, None, &guests))),
            GuestMatch::Ambiguous(guests) => (None, Some(ambiguous(name, &guests))),
            GuestMatch::Edited(guest) => (None, Some(edited(name, inputs.site, guest))),
        };
        if let Some((detail, hint)) = why {
            rebuilt
                .refusals
                .push(Refusal::of(Some(name), (detail, hint)));
        } else if let Some(guest) = guest
            && let Some(found) = existing(guest, None)
        {
            let record = record(inputs, name, (&location, host), guest, &found.guest);
            let reasons = vec![Reason::new("its guest was found")];
            let (at, action) = ((*host, &location), Action::Nothing);
            let node = NodePlan {
                found: Some(found),
                ..NodePlan::new(name, at, node.depth, action, reasons)
            };
            rebuilt.nodes.push((node, record));
        }
    }
    rebuilt.refusals.extend(unlisted(inputs, &claimed));
    rebuilt.claimed = claimed;
    rebuilt
}

/// Returns the empty plan under which rebuilt records are written to the journal.
pub fn rebuild_plan(inputs: &PlanInputs<'_>, nodes: Vec<NodePlan>) -> Plan {
    new_plan(inputs, nodes, Vec::new(), Vec::new(), Vec::new())
}

/// Returns the record of a guest that was found. The next apply determines whether it was created
/// completely and can be reached.
fn record(
    inputs: &PlanInputs<'_>,
    name: &str,
    (location, host): (&NodeLocation, &str),
    guest: &ObservedGuest,
    reference: &crate::observed::GuestRef,
) -> NodeRecord {
    let defaults = inputs.catalog.defaults();
    let user = defaults.and_then(|defaults| defaults.vm_user.as_ref());
    NodeRecord {
        name: name.to_owned(),
        host: host.to_owned(),
        location: location.clone(),
        site: Some(inputs.site.clone()),
        guest: reference.clone(),
        status: match guest.lock.as_deref() {
            Some("create") => NodeStatus::Creating,
            Some(_) | None => NodeStatus::Created,
        },
        source: None,
        address: None,
        user: Some(user.map_or_else(|| DEFAULT_USER.to_owned(), ToString::to_string)),
        configured: None,
        hosts_guests: inputs.resolved.node(name).map(|node| node.can_host),
    }
}

/// Reports guests tagged with this manifest whose identity is that of no node: the manifest may have
/// listed them earlier, or the tags were set manually.
fn unlisted(inputs: &PlanInputs<'_>, claimed: &BTreeSet<GuestUuid>) -> Vec<Refusal> {
    let manifest = &inputs.resolved.name;
    let roots = site_hosts(inputs.resolved);
    let mut refusals = Vec::new();
    for (location, observation) in inputs.observations {
        let Observation::Available(observed) = observation else {
            continue;
        };
        let host = match location {
            NodeLocation::Host(host) => host.as_str(),
            NodeLocation::Inside(node) => roots.get(node.as_str()).copied().unwrap_or_default(),
        };
        let machine = profile(inputs, location).host;
        for guest in &observed.guests {
            let Some(uuid) = guest.uuid.as_ref().filter(|uuid| !claimed.contains(uuid)) else {
                continue;
            };
            // Each host entry of a cluster lists the guests of all machines.
            let here = guest.host == machine;
            if !guest.belongs_to(inputs.site, manifest)
                || !here && is_machine_of_another(inputs, host, &guest.host)
                || is_of_another_host(inputs, host, guest, uuid)
            {
                continue;
            }
            let detail = format!(
                "guest {} ({}) on {} carries the tags of this site and of `{manifest}`, but not the identity of any of its nodes",
                guest.vmid, guest.name, guest.host
            );
            let hint = match here {
                true => format!(
                    "homestak manifest plan -M {manifest} -H {host} lists guests that are no longer in the manifest; guests of a renamed host entry keep its old name"
                ),
                false => REMOVE_TAGS.to_owned(),
            };
            refusals.push(Refusal::of(None, (detail, hint)));
        }
    }
    refusals
}

/// The hint for a guest that belongs to no node.
const REMOVE_TAGS: &str = "to keep it outside homestak, remove its tags `homestak*`";

fn is_machine_of_another(inputs: &PlanInputs<'_>, host: &str, machine: &str) -> bool {
    let mut others = inputs.catalog.guest_hosts().filter(|other| *other != host);
    others.any(|other| profile(inputs, &NodeLocation::Host(other.clone())).host == machine)
}

/// Returns whether a guest is recorded for another manifest or host, or has the identity of a node on
/// another host of the site. Guests can be renamed, so every node name is tried.
fn is_of_another_host(
    inputs: &PlanInputs<'_>,
    host: &str,
    guest: &ObservedGuest,
    uuid: &GuestUuid,
) -> bool {
    let manifest = (inputs.site, inputs.resolved.name.as_str());
    let nodes = inputs.resolved.nodes.iter().map(|node| node.name.as_str());
    let names: BTreeSet<&str> = nodes.chain([guest.name.as_str()]).collect();
    let mut others = inputs.catalog.guest_hosts().filter(|other| *other != host);
    inputs.other_records.has(uuid, guest.vmid)
        || others.any(|other| {
            let mut names = names.iter();
            names.any(|name| is_identity_of(manifest, other, name, uuid))
        })
}

/// Returns why a guest of the site with an unknown manifest in its tags is not recorded, with the name
/// of that manifest.
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
                "if the manifest was renamed, its nodes are recorded under `manifests/{name}.yaml`; {REMOVE_TAGS}"
            ),
        ),
        None => ("of no manifest".to_owned(), REMOVE_TAGS.to_owned()),
    };
    let detail = format!(
        "guest {} ({}) on {} carries the tags of this site and {whose}",
        guest.vmid, guest.name, guest.host
    );
    let about = manifest.unwrap_or_default().to_owned();
    Some((about, Refusal::of(None, (detail, hint))))
}
