//! Guests that no node of the manifest is: those it does not name any more, copies, and guests of
//! others.

use std::collections::{BTreeMap, BTreeSet};

use crate::doc::scalar::SiteId;
use crate::observed::{Contradiction, GuestId, GuestKind, GuestUuid, Observed, ObservedGuest};

use super::apply::{place as place_of, said};
use super::compare::found;
use super::owner::{Match, Owners, is_identity_of, named};
use super::place::{Offer, offer};
use super::record::NodeRecord;
use super::types::{Action, Foreign, Found, NodePlan, Place, Reason, ReasonKind, Refusal};
use super::{Inputs, Look};

/// A guest that carries the marks of this manifest, which does not name it.
pub(super) struct Stray {
    /// How the plan names it.
    pub(super) node: NodePlan,
    /// What was seen of it.
    pub(super) found: Found,
    /// Why it is not removed: its tags alone do not prove whose it is.
    pub(super) unproven: Option<String>,
    /// Why the manifest has no such node there.
    pub(super) why: String,
    /// What its guest is called, when that is not the recorded name.
    renamed: Option<String>,
}

impl Stray {
    /// Returns its part of the plan.
    pub(super) fn node(self, inputs: &Inputs<'_>, action: Action, why: &str) -> NodePlan {
        let mut node = self.node;
        node.action = action;
        node.reasons = vec![said(why)];
        node.reasons.extend(self.renamed.map(|text| said(&text)));
        if action == Action::Destroy {
            let of = (node.host.as_str(), node.record_name());
            let inside = unseen_inside(inputs, of, &self.found, false);
            node.reasons.extend(inside);
        }
        node.found = Some(self.found);
        node
    }
}

/// Guests of this manifest that it does not name.
#[derive(Default)]
pub(super) struct Strays {
    /// What is known of each.
    pub(super) nodes: Vec<Stray>,
    /// Recorded guests that do not carry their tags any more.
    pub(super) given_up: Vec<NodePlan>,
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
            Place::Inside(node) => match roots.get(node.as_str()) {
                Some(host) => {
                    let depth = inputs.resolved.node(node).map_or(1, |node| node.depth + 1);
                    (*host, depth)
                }
                // The node it runs in is not named any more either.
                None => match inputs.records.values().find(|one| one.name == *node) {
                    Some(parent) => (parent.host.as_str(), parent.depth(inputs.records) + 1),
                    None => continue,
                },
            },
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
            let here = match record {
                Some(record) if record.host != host => false,
                Some(_) | None => guest.host == machine || migrated,
            };
            if !ours || !here || is_elsewhere(inputs, host, guest, uuid) || !seen.insert(uuid) {
                continue;
            }
            let guest = match owners.of_stray(place, uuid, record) {
                Match::Absent | Match::Edited(_) => continue,
                Match::Guest(guest, copies) => {
                    strays.copies.extend(copies_of(place, &guest.name, &copies));
                    guest
                }
                Match::Copies(copies) => {
                    strays.copies.extend(copies_of(place, &guest.name, &copies));
                    continue;
                }
                Match::Ambiguous(guests) => {
                    let why = ambiguous(&guest.name, &guests);
                    strays.refusals.push(Refusal::of(None, why));
                    continue;
                }
            };
            let why = unusable(&guest.name, guest);
            strays
                .refusals
                .extend(why.map(|why| Refusal::of(None, why)));
            let Some(found) = found(guest, record) else {
                continue;
            };
            let name = record.map_or(&guest.name, |record| &record.name);
            let why = match roots.get(name.as_str()) {
                None => "the manifest does not name it any more".to_owned(),
                Some(now) if *now != host => {
                    format!("the manifest names `{name}` on `{now}`, and not on `{host}` any more")
                }
                Some(_) => format!("it is not the guest of `{name}` any more"),
            };
            let renamed = (*name != guest.name)
                .then(|| format!("guest {} is called `{}` now", guest.vmid, guest.name));
            let stray = NodePlan {
                name: name.clone(),
                host: host.to_owned(),
                place: place.clone(),
                depth,
                action: Action::Leave,
                reasons: Vec::new(),
                wanted: None,
                found: None,
                config: None,
                reidentified: None,
                recorded: record.map(|record| record.name.clone()),
            };
            strays.nodes.push(Stray {
                node: stray,
                found,
                why,
                renamed,
                unproven: record
                    .is_none()
                    .then(|| unproven(inputs, host, guest, uuid))
                    .flatten(),
            });
        }
    }
    // Parents before their children.
    strays.nodes.sort_by_key(|stray| stray.node.depth);
    name(&mut strays.nodes, roots);
    strays.given_up = lost_tags(inputs, owners, roots);
    strays
}

/// Returns nodes that the manifest does not name, and whose recorded guests were made guests of
/// their own.
fn lost_tags(
    inputs: &Inputs<'_>,
    owners: &Owners<'_>,
    roots: &BTreeMap<&str, &str>,
) -> Vec<NodePlan> {
    let is_here = |record: &NodeRecord| match roots.get(record.name.as_str()) {
        Some(host) if **host == record.host => {
            let node = inputs.resolved.node(&record.name).and_then(place_of);
            node.is_some_and(|place| place == record.place)
        }
        Some(_) | None => false,
    };
    let mut nodes = Vec::new();
    for record in inputs.records.values().filter(|record| !is_here(record)) {
        let Some(guest) = owners.given_up(&record.place, Some(record)) else {
            continue;
        };
        let name = &record.name;
        let is_named = roots.contains_key(name.as_str());
        nodes.push(NodePlan {
            name: match is_named {
                true => format!("{name}#{}", guest.vmid),
                false => name.clone(),
            },
            host: record.host.clone(),
            place: record.place.clone(),
            depth: record.depth(inputs.records),
            action: Action::Leave,
            reasons: vec![Reason {
                kind: ReasonKind::GivenUp,
                ..said(&given_up(guest))
            }],
            wanted: None,
            found: None,
            config: None,
            reidentified: None,
            recorded: None,
        });
    }
    nodes
}

/// Gives each stray a name of its own. What is recorded keeps its name before what is only called so.
fn name(strays: &mut [Stray], roots: &BTreeMap<&str, &str>) {
    let mut taken: BTreeSet<String> = roots.keys().map(|name| (*name).to_owned()).collect();
    let (recorded, others): (Vec<&mut Stray>, Vec<&mut Stray>) = strays
        .iter_mut()
        .partition(|stray| stray.node.recorded.is_some());
    for stray in recorded.into_iter().chain(others) {
        let node = &mut stray.node;
        if node.name.is_empty() || !taken.insert(node.name.clone()) {
            let id = stray.found.guest.vmid;
            let id = id.map_or_else(String::new, |id| id.to_string());
            node.name = format!("{}#{id}", node.name);
            taken.insert(node.name.clone());
        }
        node.recorded = node.recorded.take().filter(|known| *known != node.name);
    }
}

/// Tells whether a guest is one of another manifest or of another host of the site, whatever its
/// tags say.
fn is_elsewhere(inputs: &Inputs<'_>, host: &str, guest: &ObservedGuest, uuid: &GuestUuid) -> bool {
    let manifest = (inputs.site, inputs.resolved.name.as_str());
    let mut hosts = inputs.catalog.guest_hosts().filter(|other| *other != host);
    inputs.elsewhere.has(uuid, guest.vmid)
        || hosts.any(|other| is_identity_of(manifest, other, &guest.name, uuid))
}

/// Says why the tags of a guest that is not recorded do not prove that it is one of the manifest.
fn unproven(
    inputs: &Inputs<'_>,
    host: &str,
    guest: &ObservedGuest,
    uuid: &GuestUuid,
) -> Option<String> {
    let name = &guest.name;
    let manifest = (inputs.site, inputs.resolved.name.as_str());
    let why = || {
        format!(
            "its tags name this manifest; nothing is recorded of it, and its identity is not that \
             of a node `{name}`"
        )
    };
    (!is_identity_of(manifest, host, name, uuid)).then(why)
}

/// A guest by everything that tells it from others: its id, its identity and its machine.
pub(super) type Exact = (GuestId, GuestUuid, String);

/// Refuses to remove nodes with guests in them that the plan does not remove: they would go with
/// their node. Guests of `again` go too, and their nodes are created again.
pub(super) fn bystanders(
    inputs: &Inputs<'_>,
    offers: &BTreeMap<Place, Offer>,
    nodes: &[NodePlan],
    again: &BTreeSet<Exact>,
) -> Vec<Refusal> {
    let by_name: BTreeMap<&str, &NodePlan> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node))
        .collect();
    // The innermost node that goes, with the guest in it. Its children may not be in the plan.
    let going = |place: &Place| {
        let mut place = place.clone();
        while let Place::Inside(parent) = &place {
            place = match by_name.get(parent.as_str()) {
                Some(node) if goes(node) => return Some(node.name.as_str()),
                Some(node) => node.place.clone(),
                None => inputs.resolved.node(parent).and_then(place_of)?,
            };
        }
        None
    };
    let mut refusals: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (place, look) in inputs.looks {
        let (Look::Seen(observed), Some(node)) = (look, going(place)) else {
            continue;
        };
        let machine = offers.get(place).map(|offer| offer.host.as_str());
        let left = left_inside(observed, machine, |guest| {
            let exact = |uuid: &GuestUuid| (guest.vmid, uuid.clone(), guest.host.clone());
            is_removed(nodes, place, guest)
                || guest
                    .uuid
                    .as_ref()
                    .is_some_and(|uuid| again.contains(&exact(uuid)))
        });
        if !left.is_empty() {
            refusals.entry(node).or_default().extend(left);
        }
    }
    let refusal = |(node, guests): (&str, Vec<String>)| {
        let hint = match inputs.options.depth {
            Some(_) => {
                "move or remove them first; without --depth, nodes among them are created again"
            }
            None => "move or remove them first",
        };
        Refusal::of(Some(node), (lost_with_it("plan", &guests), hint.to_owned()))
    };
    refusals.into_iter().map(refusal).collect()
}

fn goes(node: &NodePlan) -> bool {
    matches!(node.action, Action::Destroy | Action::Replace)
}

/// Tells whether nodes of a plan that are removed include a guest at a place.
pub fn is_removed(nodes: &[NodePlan], place: &Place, guest: &ObservedGuest) -> bool {
    nodes.iter().filter(|node| goes(node)).any(|node| {
        let Some(found) = node.found.as_ref().map(|found| &found.guest) else {
            return false;
        };
        let same = found.vmid == Some(guest.vmid);
        match &guest.uuid {
            Some(uuid) => same && found.uuid == *uuid && found.host == guest.host,
            // It is being created, and does not carry its identity yet.
            None => same && guest.name.is_empty() && node.place == *place,
        }
    })
}

/// Returns the guests on a machine that do not go on purpose when it is removed. Guests elsewhere in
/// its cluster stay.
pub fn left_inside(
    observed: &Observed,
    machine: Option<&str>,
    goes: impl Fn(&ObservedGuest) -> bool,
) -> Vec<String> {
    let machine = machine.filter(|name| observed.hosts.iter().any(|host| host.name == *name));
    let here = |guest: &&ObservedGuest| machine.is_none_or(|machine| machine == guest.host);
    let guests = observed.guests.iter().filter(here);
    guests
        .filter(|guest| !goes(guest))
        .map(|guest| format!("{} ({})", guest.vmid, guest.name))
        .collect()
}

/// Says that guests would go with the node they are in. `of` is what does not remove them.
pub fn lost_with_it(of: &str, guests: &[String]) -> String {
    format!(
        "guests in it that this {of} does not remove would be destroyed with it: {}",
        guests.join(", ")
    )
}

/// What is said of a node that goes without anybody having seen what runs in it.
pub const UNSEEN_INSIDE: &str = "what runs in it was not seen, and is destroyed with it";

/// Says that what runs in a guest goes with it unseen. Its name is the recorded one; `named` when it
/// is the manifest's.
pub(super) fn unseen_inside(
    inputs: &Inputs<'_>,
    (host, node): (&str, &str),
    found: &Found,
    named: bool,
) -> Option<Reason> {
    let inside = Place::Inside(node.to_owned());
    let written = inputs.resolved.node(node);
    // A look is known by the node's name alone, and then it is the manifest's node.
    let seen =
        (named || written.is_none()) && matches!(inputs.looks.get(&inside), Some(Look::Seen(_)));
    if seen || found.guest.kind == GuestKind::Ct {
        return None;
    }
    let recorded: Vec<&str> = inputs
        .records
        .values()
        .filter(|record| record.place == inside && record.host == host)
        .map(|record| record.name.as_str())
        .collect();
    let hosts = found.hosts_guests == Some(true)
        || named && written.is_some_and(|node| node.can_host)
        || !recorded.is_empty();
    if !hosts {
        let unknown = !named && found.hosts_guests.is_none();
        return unknown
            .then(|| said("whether guests run in it is not known; they are destroyed with it"));
    }
    let mut text = UNSEEN_INSIDE.to_owned();
    if !recorded.is_empty() {
        text += &format!("; recorded there: `{}`", recorded.join("`, `"));
    }
    Some(Reason {
        kind: ReasonKind::UnseenInside,
        ..said(&text)
    })
}

/// Says why nothing can be done to a guest, whoever's it is.
pub(super) fn unusable(node: &str, guest: &ObservedGuest) -> Option<(String, String)> {
    if let Some(Contradiction { detail, hint }) = &guest.contested {
        let detail = format!("{detail} (guest {} of `{node}`)", guest.vmid);
        return Some((detail, hint.clone()));
    }
    guest.template.then(|| {
        let detail = format!("guest {} of `{node}` was made a template", guest.vmid);
        let hint = "remove its tags `homestak*` to keep it; the node is then created again";
        (detail, hint.to_owned())
    })
}

/// Says that the recorded guest of a node does not carry its marks any more.
pub(super) fn edited(node: &str, site: &SiteId, guest: &ObservedGuest) -> (String, String) {
    if let Some(contested) = unusable(node, guest) {
        return contested;
    }
    let marks = match &guest.site {
        Some(other) => format!("its tags name another site, `{other}`"),
        None => "its tags name no site, or several".to_owned(),
    };
    let detail = format!("guest {} is recorded as `{node}`, and {marks}", guest.vmid);
    let hint = format!(
        "give it the tag `homestak-s-{site}` and no other of that kind; or, if it is another's \
         guest now, homestak manifest forget {node}"
    );
    (detail, hint)
}

/// Says that the recorded guest of a node was made a guest of its own.
pub(super) fn given_up(guest: &ObservedGuest) -> String {
    format!(
        "guest {} on {} is recorded as its guest, and does not carry its tags any more: it stays",
        guest.vmid, guest.host
    )
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
    claimed: &BTreeSet<GuestUuid>,
) -> Vec<Foreign> {
    let mut foreign = copies;
    let copies: BTreeSet<(Place, GuestId)> = foreign
        .iter()
        .map(|guest| (guest.place.clone(), guest.vmid))
        .collect();
    for (place, look) in inputs.looks {
        let (Look::Seen(observed), Some(offer)) = (look, offers.get(place)) else {
            continue;
        };
        let planned: BTreeSet<Option<GuestId>> = nodes
            .iter()
            .filter(|node| node.place == *place)
            .filter_map(|node| Some(node.found.as_ref()?.guest.vmid))
            .collect();
        let others = observed.guests.iter().filter(|guest| {
            // The identity of a node that the plan leaves out is claimed too.
            let claims = guest
                .uuid
                .as_ref()
                .is_some_and(|uuid| claimed.contains(uuid));
            let ours = planned.contains(&Some(guest.vmid))
                || copies.contains(&(place.clone(), guest.vmid))
                || claims && guest.site.as_ref().is_none_or(|site| site == inputs.site);
            guest.host == offer.host && !ours
        });
        foreign.extend(others.map(|guest| Foreign {
            site: guest.site.clone().filter(|site| site != inputs.site),
            ..foreign_guest(place, guest)
        }));
    }
    foreign
}
