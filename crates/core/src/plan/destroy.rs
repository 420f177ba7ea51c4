//! The plan of `destroy`: deletes the guests of a manifest, children before their parents. A guest
//! without an identity of this site, or that contradicts the journal, is never deleted.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::GuestUuid;

use super::apply::{by_depth, location, new_plan, no_host, site_hosts};
use super::compare::{existing, from_record};
use super::guest_index::{GuestIndex, GuestMatch, guest_list};
use super::host_profile::{HostProfile, profile};
use super::orphans::{
    ambiguous, copies_of, edited, foreign, only_copies, orphans, refuse_lost_guests,
    unknown_guests, untagged, unusable,
};
use super::types::{Action, NodeLocation, NodePlan, Plan, Reason, ReasonKind, Refusal};
use super::{Observation, PlanInputs};

/// The reason when there is nothing to delete.
const ABSENT: &str = "it does not exist";

/// Makes the plan of `destroy`.
pub(super) fn plan(inputs: &PlanInputs<'_>) -> Plan {
    let roots = site_hosts(inputs.resolved);
    let guest_index = GuestIndex::new(inputs.site, &inputs.resolved.name, inputs.observations);
    let mut profiles: BTreeMap<NodeLocation, HostProfile> = BTreeMap::new();
    let mut claimed: BTreeSet<GuestUuid> = BTreeSet::new();
    let mut nodes = Vec::new();
    let mut copies = Vec::new();
    let mut refusals = Vec::new();
    for node in by_depth(inputs.resolved) {
        let name = node.name.as_str();
        let (Some(location), Some(host)) = (location(node), roots.get(name)) else {
            refusals.push(no_host(inputs, node));
            continue;
        };
        // The guest of a node that was moved to another parent is an orphan.
        let record = inputs.records.of(name, host);
        let record = record.filter(|record| record.location == location);
        let (mut recorded, mut untagged_guest) = (None, None);
        profiles
            .entry(location.clone())
            .or_insert_with(|| profile(inputs, &location));
        let (reason, found) = match inputs.observations.get(&location) {
            None => {
                recorded = record.map(from_record);
                (unobserved_reason(&location), None)
            }
            Some(Observation::Unavailable(why)) => {
                recorded = record.map(from_record);
                (format!("{why}; {}", unobserved_reason(&location)), None)
            }
            Some(Observation::Available(_)) => {
                let matched = guest_index.of_node(&location, (host, name), record);
                claimed.extend(matched.identities());
                if let GuestMatch::Absent | GuestMatch::Copies(_) = &matched {
                    untagged_guest = guest_index.untagged(&location, record);
                }
                match matched {
                    GuestMatch::Absent => match (untagged_guest, record) {
                        (Some(guest), _) => (untagged(guest), None),
                        // It may still be created, or have left its first-boot data.
                        (None, Some(record)) if record.is_interrupted() => (
                            "it may be partially created".to_owned(),
                            Some(from_record(record)),
                        ),
                        (None, _) => (ABSENT.to_owned(), None),
                    },
                    GuestMatch::Guest(guest, others) => {
                        if let Some((detail, hint)) = unusable(name, guest) {
                            refusals.push(Refusal::of(Some(name), (detail, hint)));
                        }
                        copies.extend(copies_of(&location, name, &others));
                        match existing(guest, record) {
                            Some(found) => (found.guest.to_string(), Some(found)),
                            None => (ABSENT.to_owned(), None),
                        }
                    }
                    GuestMatch::Copies(others) => {
                        copies.extend(copies_of(&location, name, &others));
                        if others.iter().any(|other| !other.is_copy()) {
                            let (detail, hint) = only_copies(name, record, &others);
                            refusals.push(Refusal::of(Some(name), (detail, hint)));
                        }
                        let state = untagged_guest.map_or_else(|| ABSENT.to_owned(), untagged);
                        let guests = guest_list(&others);
                        (
                            format!("{state}; its identity is carried by {guests}"),
                            None,
                        )
                    }
                    GuestMatch::Ambiguous(guests) => {
                        let (detail, hint) = ambiguous(name, &guests);
                        refusals.push(Refusal::of(Some(name), (detail.clone(), hint)));
                        (detail, None)
                    }
                    GuestMatch::Edited(guest) => {
                        let (detail, hint) = edited(name, inputs.site, guest);
                        refusals.push(Refusal::of(Some(name), (detail.clone(), hint)));
                        (detail, None)
                    }
                }
            }
        };
        let kind = untagged_guest.map_or(ReasonKind::Other, |_| ReasonKind::Untagged);
        let mut reasons = vec![Reason {
            kind,
            ..Reason::new(reason)
        }];
        let inside = found
            .as_ref()
            .and_then(|found| unknown_guests(inputs, (host, name), found, true));
        reasons.extend(inside);
        let action = match found {
            Some(_) => Action::Destroy,
            None => Action::Nothing,
        };
        nodes.push(NodePlan {
            found: found.or(recorded),
            ..NodePlan::new(name, (*host, &location), node.depth, action, reasons)
        });
    }
    let orphans = orphans(inputs, &guest_index, &claimed, &roots, &mut profiles);
    for orphan in orphans.nodes {
        let (action, why) = match &orphan.unproven {
            Some(why) => (Action::Keep, why.clone()),
            None => {
                let why = format!("{}; {}", orphan.found.guest, orphan.why);
                (Action::Destroy, why)
            }
        };
        nodes.push(orphan.node(inputs, action, &why));
    }
    nodes.extend(orphans.untagged);
    copies.extend(orphans.copies);
    refusals.extend(orphans.refusals);
    nodes.sort_by_key(|node| node.depth);
    let foreign = foreign(inputs, &profiles, copies, &nodes, &claimed);
    refusals.extend(refuse_lost_guests(
        inputs,
        &profiles,
        &nodes,
        &BTreeSet::new(),
    ));
    new_plan(inputs, nodes, Vec::new(), foreign, refusals)
}

/// Returns the hint for a manifest without a host: the hosts on which it is recorded.
pub(super) fn host_hint(inputs: &PlanInputs<'_>) -> String {
    let manifest = &inputs.resolved.name;
    let records = inputs.other_records.0.iter();
    let hosts: BTreeSet<&str> = records
        .filter(|(of, _)| of == manifest)
        .map(|(_, record)| record.host.as_str())
        .collect();
    let flags: Vec<String> = hosts.iter().map(|host| format!("-H {host}")).collect();
    match flags.is_empty() {
        true => "pass -H HOST, or set `host: NAME` on the node".to_owned(),
        false => format!(
            "pass {}: nodes of `{manifest}` are recorded there",
            flags.join(" or ")
        ),
    }
}

fn unobserved_reason(location: &NodeLocation) -> String {
    match location {
        NodeLocation::Host(host) => format!("`{host}` was not observed"),
        NodeLocation::Inside(node) => format!("its guest, if any, is destroyed with `{node}`"),
    }
}
