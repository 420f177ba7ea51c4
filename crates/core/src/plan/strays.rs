//! Guests that no node of the manifest is: those it does not name any more, copies, and guests of
//! others.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::{GuestUuid, ObservedGuest};

use super::apply::said;
use super::compare::found;
use super::owner::{Match, Owners, named};
use super::place::{Offer, offer};
use super::record::NodeRecord;
use super::types::{Action, Foreign, Found, NodePlan, Place, Refusal};
use super::{Inputs, Look};

/// Guests of this manifest that it does not name.
#[derive(Default)]
pub(super) struct Strays {
    /// What is known of each.
    pub(super) nodes: Vec<(NodePlan, Found)>,
    /// Those that carry the identity of another.
    pub(super) copies: Vec<Foreign>,
    /// Why some of them cannot be removed.
    pub(super) refusals: Vec<Refusal>,
}

/// Returns guests of this manifest, on machines of this plan, that are no node's.
pub(super) fn strays(
    inputs: &Inputs<'_>,
    owners: &Owners<'_>,
    claimed: &BTreeSet<GuestUuid>,
    roots: &BTreeMap<&str, &str>,
    offers: &mut BTreeMap<Place, Offer>,
) -> Strays {
    let mut strays = Strays::default();
    let mut names: BTreeSet<String> = roots.keys().map(|name| (*name).to_owned()).collect();
    // Guests without a site are known by the journal alone.
    let recorded: BTreeMap<&GuestUuid, &NodeRecord> = inputs
        .records
        .values()
        .map(|record| (&record.guest.uuid, record))
        .collect();
    for (place, look) in inputs.looks {
        let Look::Seen(observed) = look else {
            continue;
        };
        let (host, depth) = match place {
            Place::Host(host) => (host.as_str(), 0),
            Place::Inside(node) => {
                let depth = inputs.resolved.node(node).map_or(1, |node| node.depth + 1);
                (roots.get(node.as_str()).copied().unwrap_or_default(), depth)
            }
        };
        let machine = offers
            .entry(place.clone())
            .or_insert_with(|| offer(inputs, place))
            .host
            .clone();
        let mut seen = BTreeSet::new();
        for guest in &observed.guests {
            let Some(uuid) = guest.uuid.as_ref().filter(|uuid| !claimed.contains(*uuid)) else {
                continue;
            };
            let record = recorded.get(uuid).copied();
            let ours = guest.belongs_to(inputs.site, &inputs.resolved.name)
                || guest.site.is_none()
                    && record.is_some_and(|record| {
                        record.site.is_none() && record.guest.vmid == Some(guest.vmid)
                    });
            // Elsewhere in the cluster may be guests of this manifest for another host of the site;
            // one that was migrated is known by its record.
            let migrated = record.is_some_and(|record| record.guest.vmid == Some(guest.vmid));
            let here = guest.host == machine || migrated;
            if !ours || !here || guest.template || !seen.insert(uuid) {
                continue;
            }
            let guest = match owners.of_stray(place, uuid, record) {
                Match::Absent => continue,
                Match::Guest(guest, copies) => {
                    strays.copies.extend(copies_of(place, &guest.name, &copies));
                    guest
                }
                Match::Copies(copies) => {
                    strays.copies.extend(copies_of(place, &guest.name, &copies));
                    continue;
                }
                Match::Ambiguous(guests) => {
                    let (detail, hint) = ambiguous(&guest.name, &guests);
                    strays.refusals.push(Refusal {
                        node: None,
                        reason: said(&detail),
                        hint,
                    });
                    continue;
                }
            };
            let Some(found) = found(guest, None) else {
                continue;
            };
            let mut name = guest.name.clone();
            if name.is_empty() || !names.insert(name.clone()) {
                name = format!("{}#{}", guest.name, guest.vmid);
                names.insert(name.clone());
            }
            let stray = NodePlan {
                name,
                host: host.to_owned(),
                place: place.clone(),
                depth,
                action: Action::Leave,
                reasons: Vec::new(),
                wanted: None,
                found: None,
                config: None,
                reidentified: None,
            };
            strays.nodes.push((stray, found));
        }
    }
    strays
}

/// Says why nothing can be done to a guest, whoever's it is.
pub(super) fn unusable(node: &str, guest: &ObservedGuest) -> Option<(String, String)> {
    if let Some(why) = &guest.contested {
        let detail = format!("{why} (guest {} of `{node}`)", guest.vmid);
        let hint = "if someone copied it, remove its tags `homestak*`; if it is the original, \
                    `homestak manifest apply` says what to restore";
        return Some((detail, hint.to_owned()));
    }
    guest.template.then(|| {
        let detail = format!("guest {} of `{node}` was made a template", guest.vmid);
        let hint = "remove its tags `homestak*` to keep it; the node is then created again";
        (detail, hint.to_owned())
    })
}

/// Says that several guests carry one identity.
pub(super) fn ambiguous(node: &str, guests: &[&ObservedGuest]) -> (String, String) {
    let detail = format!(
        "{} carry the identity of `{node}`, and nothing recorded here tells which one is its guest",
        named(guests)
    );
    let hint =
        "remove the tags `homestak*` from each copy; the guest that keeps them is the node's";
    (detail, hint.to_owned())
}

/// Says that only copies of a node's guest are there.
pub(super) fn only_copies(
    node: &str,
    record: Option<&NodeRecord>,
    copies: &[&ObservedGuest],
) -> (String, String) {
    let recorded = record.and_then(|record| record.guest.vmid);
    let original = recorded.or_else(|| copies.first().and_then(|copy| copy.created_as));
    let was = original.map_or_else(String::new, |vmid| format!(", which was guest {vmid}"));
    let verb = if copies.len() == 1 {
        "carries"
    } else {
        "carry"
    };
    let detail = format!("{} {verb} the identity of `{node}`{was}", named(copies));
    let mut hint =
        "remove its tags `homestak*` to make it a guest of its own; the node is then created again"
            .to_owned();
    // Created under its own id: by another driver of the site, unless someone forged its tags.
    if recorded.is_some() && copies.len() == 1 && !copies.iter().any(|copy| copy.is_copy()) {
        hint += &format!(
            "; if another driver of this site created it, homestak manifest forget {node} makes it the node's"
        );
    }
    (detail, hint)
}

/// Reports guests that carry the identity of a node without being its guest.
pub(super) fn copies_of(place: &Place, node: &str, guests: &[&ObservedGuest]) -> Vec<Foreign> {
    let copy = |guest: &&ObservedGuest| Foreign {
        copy_of: Some(node.to_owned()),
        ..foreign_guest(place, guest)
    };
    guests.iter().map(copy).collect()
}

fn foreign_guest(place: &Place, guest: &ObservedGuest) -> Foreign {
    Foreign {
        place: place.clone(),
        vmid: guest.vmid,
        name: guest.name.clone(),
        host: guest.host.clone(),
        manifest: guest.manifest.clone(),
        site: guest.site.clone(),
        copy_of: None,
    }
}

/// Lists guests that are not of this manifest, on machines of this plan, after known copies.
pub(super) fn foreign(
    inputs: &Inputs<'_>,
    offers: &BTreeMap<Place, Offer>,
    copies: Vec<Foreign>,
    nodes: &[NodePlan],
) -> Vec<Foreign> {
    let mut foreign = copies;
    for (place, look) in inputs.looks {
        let (Look::Seen(observed), Some(offer)) = (look, offers.get(place)) else {
            continue;
        };
        // A guest without a site may be ours; then the plan names it as a node.
        let known: BTreeSet<u32> = inputs
            .records
            .values()
            .filter(|record| record.place == *place && record.site.is_none())
            .filter_map(|record| record.guest.vmid)
            .collect();
        let planned: BTreeSet<Option<u32>> = nodes
            .iter()
            .filter(|node| node.place == *place)
            .filter_map(|node| Some(node.found.as_ref()?.guest.vmid))
            .collect();
        let others = observed.guests.iter().filter(|guest| {
            let ours = planned.contains(&Some(guest.vmid))
                || guest.belongs_to(inputs.site, &inputs.resolved.name)
                || guest.uuid.is_some() && guest.site.is_none() && known.contains(&guest.vmid);
            guest.host == offer.host && !ours
        });
        foreign.extend(others.map(|guest| Foreign {
            site: guest.site.clone().filter(|site| site != inputs.site),
            ..foreign_guest(place, guest)
        }));
    }
    foreign
}
