//! The plan of `destroy`: what the manifest made is removed, children before their parents.
//!
//! Never a guest that does not carry an identity of this site, or that the journal contradicts.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::GuestUuid;

use super::apply::{by_depth, empty, place, said, site_hosts};
use super::compare::{found, remembered};
use super::owner::{Match, Owners, named};
use super::place::{Offer, offer};
use super::strays::{
    ambiguous, bystanders, copies_of, edited, foreign, given_up, only_copies, strays,
    unseen_inside, unusable,
};
use super::types::{Action, NodePlan, Place, Plan, Reason, ReasonKind, Refusal};
use super::{Inputs, Look};

/// Why there is nothing to remove.
const NOT_THERE: &str = "it is not there";

/// Makes the plan of `destroy`.
pub(super) fn plan(inputs: &Inputs<'_>) -> Plan {
    let roots = site_hosts(inputs.resolved);
    let owners = Owners::new(inputs.site, &inputs.resolved.name, inputs.looks);
    let mut offers: BTreeMap<Place, Offer> = BTreeMap::new();
    let mut claimed: BTreeSet<GuestUuid> = BTreeSet::new();
    let mut nodes = Vec::new();
    let mut copies = Vec::new();
    let mut refusals = Vec::new();
    for node in by_depth(inputs.resolved) {
        let name = node.name.as_str();
        let (Some(place), Some(host)) = (place(node), roots.get(name)) else {
            continue;
        };
        // The guest of a node that was moved to another parent is one that is not named any more.
        let record = inputs.records.of(name, host);
        let record = record.filter(|record| record.place == place);
        let (mut hidden, mut lost) = (None, None);
        offers
            .entry(place.clone())
            .or_insert_with(|| offer(inputs, &place));
        let (reason, there) = match inputs.looks.get(&place) {
            None => {
                hidden = record.map(remembered);
                (gone_with(&place), None)
            }
            Some(Look::Unseen(why)) => {
                hidden = record.map(remembered);
                (format!("{why}; {}", gone_with(&place)), None)
            }
            Some(Look::Seen(_)) => {
                let carrying = owners.of_node(&place, (host, name), record);
                claimed.extend(carrying.identities());
                if let Match::Absent | Match::Copies(_) = &carrying {
                    lost = owners.given_up(&place, record);
                }
                match carrying {
                    Match::Absent => match (lost, record) {
                        (Some(guest), _) => (given_up(guest), None),
                        // It may be on its way, or have left its first-boot data.
                        (None, Some(record)) if record.is_cut_off() => (
                            "it may be half-created".to_owned(),
                            Some(remembered(record)),
                        ),
                        (None, _) => (NOT_THERE.to_owned(), None),
                    },
                    Match::Guest(guest, others) => {
                        if let Some((detail, hint)) = unusable(name, guest) {
                            refusals.push(Refusal::of(Some(name), (detail, hint)));
                        }
                        copies.extend(copies_of(&place, name, &others));
                        match found(guest, record) {
                            Some(found) => (found.guest.to_string(), Some(found)),
                            None => (NOT_THERE.to_owned(), None),
                        }
                    }
                    Match::Copies(others) => {
                        copies.extend(copies_of(&place, name, &others));
                        if others.iter().any(|other| !other.is_copy()) {
                            let (detail, hint) = only_copies(name, record, &others);
                            refusals.push(Refusal::of(Some(name), (detail, hint)));
                        }
                        let stays = lost.map_or_else(|| NOT_THERE.to_owned(), given_up);
                        let guests = named(&others);
                        (
                            format!("{stays}; its identity is carried by {guests}"),
                            None,
                        )
                    }
                    Match::Ambiguous(guests) => {
                        let (detail, hint) = ambiguous(name, &guests);
                        refusals.push(Refusal::of(Some(name), (detail.clone(), hint)));
                        (detail, None)
                    }
                    Match::Edited(guest) => {
                        let (detail, hint) = edited(name, inputs.site, guest);
                        refusals.push(Refusal::of(Some(name), (detail.clone(), hint)));
                        (detail, None)
                    }
                }
            }
        };
        let kind = lost.map_or(ReasonKind::Other, |_| ReasonKind::GivenUp);
        let mut reasons = vec![Reason {
            kind,
            ..said(&reason)
        }];
        let inside = there
            .as_ref()
            .and_then(|found| unseen_inside(inputs, (host, name), found, true));
        reasons.extend(inside);
        nodes.push(NodePlan {
            name: name.to_owned(),
            host: (*host).to_owned(),
            place,
            depth: node.depth,
            action: if there.is_some() {
                Action::Destroy
            } else {
                Action::Nothing
            },
            reasons,
            wanted: None,
            found: there.or(hidden),
            config: None,
            reidentified: None,
            recorded: None,
        });
    }
    let strays = strays(inputs, &owners, &claimed, &roots, &mut offers);
    for stray in strays.nodes {
        let (action, why) = match &stray.unproven {
            Some(why) => (Action::Leave, why.clone()),
            None => {
                let why = format!("{}; {}", stray.found.guest, stray.why);
                (Action::Destroy, why)
            }
        };
        nodes.push(stray.node(inputs, action, &why));
    }
    nodes.extend(strays.given_up);
    copies.extend(strays.copies);
    refusals.extend(strays.refusals);
    nodes.sort_by_key(|node| node.depth);
    let foreign = foreign(inputs, &offers, copies, &nodes, &claimed);
    refusals.extend(bystanders(inputs, &offers, &nodes, &BTreeSet::new()));
    empty(inputs, nodes, Vec::new(), foreign, refusals)
}

fn gone_with(place: &Place) -> String {
    match place {
        Place::Host(host) => format!("`{host}` was not looked at"),
        Place::Inside(node) => format!("what is in it goes with `{node}`"),
    }
}
