//! The plan of `destroy`: what the manifest made is removed, children before their parents.
//!
//! In: [`Inputs`]. Out: a [`Plan`].
//! Never: a guest that does not carry our identity and this manifest's tag.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::GuestUuid;

use super::apply::{by_depth, empty, foreign, identity_of, places, site_hosts, strays};
use super::compare::{Finder, found, remembered};
use super::place::{Offer, offer};
use super::types::{Action, Found, NodePlan, Place, Plan, Reason};
use super::{Inputs, Look};

/// Makes the plan of `destroy`.
pub(super) fn plan(inputs: &Inputs<'_>) -> Plan {
    let roots = site_hosts(inputs);
    let places = places(inputs);
    let finder = Finder::new(inputs);
    let mut offers: BTreeMap<Place, Offer> = BTreeMap::new();
    let mut claimed: BTreeSet<GuestUuid> = BTreeSet::new();
    let mut nodes = Vec::new();
    for node in by_depth(inputs) {
        let name = node.name.as_str();
        let (Some(place), Some(host)) = (places.get(name), roots.get(name)) else {
            continue;
        };
        let record = inputs.records.get(name);
        let record = record.filter(|record| record.host == *host);
        let Some(uuid) = identity_of(inputs, name, host, record) else {
            continue;
        };
        let mut hidden = None;
        let machine = offers
            .entry(place.clone())
            .or_insert_with(|| offer(inputs, place))
            .host
            .clone();
        let (reason, there) = match inputs.looks.get_key_value(place) {
            None => (gone_with(place), None),
            Some((_, Look::Unseen(why))) => {
                hidden = record.map(remembered);
                (format!("{why}; {}", gone_with(place)), None)
            }
            Some((place, Look::Seen(_))) => {
                let carrying = finder.carrying(place, &uuid).first().copied();
                let guest = carrying.or_else(|| finder.named(place, name, &machine, &claimed));
                match guest.and_then(|guest| found(guest, record)) {
                    Some(found) => (at(&found), Some(found)),
                    None => ("it is not there".to_owned(), None),
                }
            }
        };
        claimed.extend(there.as_ref().map(|found| found.guest.uuid.clone()));
        nodes.push(NodePlan {
            name: name.to_owned(),
            host: (*host).to_owned(),
            place: place.clone(),
            depth: node.depth,
            action: if there.is_some() {
                Action::Destroy
            } else {
                Action::Nothing
            },
            reasons: vec![Reason {
                text: reason,
                source: None,
            }],
            wanted: None,
            found: there.or(hidden),
            config: None,
        });
    }
    for (mut stray, found) in strays(inputs, &claimed, &roots, &mut offers) {
        stray.action = Action::Destroy;
        stray.reasons = vec![Reason {
            text: format!("{}; the manifest does not name it any more", at(&found)),
            source: None,
        }];
        stray.found = Some(found);
        nodes.push(stray);
    }
    nodes.sort_by_key(|node| node.depth);
    let foreign = foreign(inputs, &offers);
    empty(inputs, nodes, Vec::new(), foreign, Vec::new())
}

fn at(found: &Found) -> String {
    format!("guest {} on {}", found.guest.vmid, found.guest.host)
}

fn gone_with(place: &Place) -> String {
    match place {
        Place::Host(host) => format!("`{host}` was not looked at"),
        Place::Inside(node) => format!("what is in it goes with `{node}`"),
    }
}
