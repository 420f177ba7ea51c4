//! Guests that are not the guest of a node: orphans, which the manifest no longer lists, copies, and
//! guests that belong to others.

use std::collections::{BTreeMap, BTreeSet};

use crate::doc::scalar::SiteId;
use crate::observed::{GuestId, GuestKind, GuestUuid, IdentityConflict, Inventory, ObservedGuest};

use super::apply::location as location_of;
use super::compare::existing;
use super::guest::{ExistingGuest, ForeignGuest};
use super::guest_index::{GuestIndex, GuestMatch, guest_list, is_identity_of};
use super::host_profile::{HostProfile, profile};
use super::record::NodeRecord;
use super::types::{Action, NodeLocation, NodePlan, Reason, ReasonKind, Refusal};
use super::{Observation, PlanInputs};

/// A guest tagged with this manifest, which does not list it.
pub(super) struct Orphan {
    /// Its entry in the plan.
    pub(super) node: NodePlan,
    /// The observed guest.
    pub(super) found: ExistingGuest,
    /// Why it is not deleted: its tags alone do not prove that it belongs to the manifest.
    pub(super) unproven: Option<String>,
    /// Why it is an orphan.
    pub(super) why: String,
    /// A note on the current name of the guest, if that is not the recorded one.
    renamed: Option<String>,
}

impl Orphan {
    /// Returns its entry in the plan.
    pub(super) fn node(self, inputs: &PlanInputs<'_>, action: Action, why: &str) -> NodePlan {
        let mut node = self.node;
        node.action = action;
        node.reasons = vec![Reason::new(why)];
        node.reasons.extend(self.renamed.map(Reason::new));
        if action == Action::Destroy {
            let of = (node.host.as_str(), node.record_name());
            let inside = unknown_guests(inputs, of, &self.found, false);
            node.reasons.extend(inside);
        }
        node.found = Some(self.found);
        node
    }
}

/// The orphans of a manifest.
#[derive(Default)]
pub(super) struct Orphans {
    /// The orphans, parents before their children.
    pub(super) nodes: Vec<Orphan>,
    /// Recorded guests whose tags were removed.
    pub(super) untagged: Vec<NodePlan>,
    /// Copies of them.
    pub(super) copies: Vec<ForeignGuest>,
    /// Why some of them cannot be deleted.
    pub(super) refusals: Vec<Refusal>,
}

/// Returns the orphans on the machines of a plan.
pub(super) fn orphans(
    inputs: &PlanInputs<'_>,
    guest_index: &GuestIndex<'_>,
    claimed: &BTreeSet<GuestUuid>,
    roots: &BTreeMap<&str, &str>,
    profiles: &mut BTreeMap<NodeLocation, HostProfile>,
) -> Orphans {
    let mut orphans = Orphans::default();
    // Guests without a site can only be matched by the journal.
    let recorded: BTreeMap<&GuestUuid, &NodeRecord> = inputs
        .records
        .values()
        .map(|record| (&record.guest.uuid, record))
        .collect();
    for (location, observation) in inputs.observations {
        let Observation::Available(observed) = observation else {
            continue;
        };
        let (host, depth) = match location {
            NodeLocation::Host(host) => (host.as_str(), 0),
            NodeLocation::Inside(node) => match roots.get(node.as_str()) {
                Some(host) => {
                    let depth = inputs.resolved.node(node).map_or(1, |node| node.depth + 1);
                    (*host, depth)
                }
                // The node it runs in is an orphan too.
                None => match inputs.records.values().find(|one| one.name == *node) {
                    Some(parent) => (parent.host.as_str(), parent.depth(inputs.records) + 1),
                    None => continue,
                },
            },
        };
        let machine = profiles
            .entry(location.clone())
            .or_insert_with(|| profile(inputs, location))
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
            // Other machines of the cluster may have guests of this manifest for another host of the
            // site. A migrated guest is matched by its record.
            let migrated = record.is_some_and(|record| record.guest.vmid == Some(guest.vmid));
            let here = match record {
                Some(record) if record.host != host => false,
                Some(_) | None => guest.host == machine || migrated,
            };
            if !ours || !here || is_elsewhere(inputs, host, guest, uuid) || !seen.insert(uuid) {
                continue;
            }
            let guest = match guest_index.of_orphan(location, uuid, record) {
                GuestMatch::Absent | GuestMatch::Edited(_) => continue,
                GuestMatch::Guest(guest, copies) => {
                    orphans
                        .copies
                        .extend(copies_of(location, &guest.name, &copies));
                    guest
                }
                GuestMatch::Copies(copies) => {
                    orphans
                        .copies
                        .extend(copies_of(location, &guest.name, &copies));
                    continue;
                }
                GuestMatch::Ambiguous(guests) => {
                    let why = ambiguous(&guest.name, &guests);
                    orphans.refusals.push(Refusal::of(None, why));
                    continue;
                }
            };
            let why = unusable(&guest.name, guest);
            orphans
                .refusals
                .extend(why.map(|why| Refusal::of(None, why)));
            let Some(found) = existing(guest, record) else {
                continue;
            };
            let name = record.map_or(&guest.name, |record| &record.name);
            let why = match roots.get(name.as_str()) {
                None => "it is no longer in the manifest".to_owned(),
                Some(now) if *now != host => {
                    format!("the manifest now has `{name}` on `{now}`, not on `{host}`")
                }
                Some(_) => format!("it is no longer the guest of `{name}`"),
            };
            let renamed = (*name != guest.name)
                .then(|| format!("guest {} is now named `{}`", guest.vmid, guest.name));
            let orphan = NodePlan {
                recorded: record.map(|record| record.name.clone()),
                ..NodePlan::new(name, (host, location), depth, Action::Keep, Vec::new())
            };
            orphans.nodes.push(Orphan {
                node: orphan,
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
    orphans.nodes.sort_by_key(|orphan| orphan.node.depth);
    assign_names(&mut orphans.nodes, roots);
    orphans.untagged = untagged_nodes(inputs, guest_index, roots);
    orphans
}

/// Returns recorded nodes that the manifest does not list at their location, and whose guests lost
/// their tags.
fn untagged_nodes(
    inputs: &PlanInputs<'_>,
    guest_index: &GuestIndex<'_>,
    roots: &BTreeMap<&str, &str>,
) -> Vec<NodePlan> {
    let is_here = |record: &NodeRecord| match roots.get(record.name.as_str()) {
        Some(host) if **host == record.host => {
            let node = inputs.resolved.node(&record.name).and_then(location_of);
            node.is_some_and(|location| location == record.location)
        }
        Some(_) | None => false,
    };
    let mut nodes = Vec::new();
    for record in inputs.records.values().filter(|record| !is_here(record)) {
        let Some(guest) = guest_index.untagged(&record.location, Some(record)) else {
            continue;
        };
        let name = &record.name;
        let is_named = roots.contains_key(name.as_str());
        let name = match is_named {
            true => format!("{name}#{}", guest.vmid),
            false => name.clone(),
        };
        let reason = Reason {
            kind: ReasonKind::Untagged,
            ..Reason::new(untagged(guest))
        };
        nodes.push(NodePlan::new(
            &name,
            (record.host.as_str(), &record.location),
            record.depth(inputs.records),
            Action::Keep,
            vec![reason],
        ));
    }
    nodes
}

/// Gives each orphan a unique name. Recorded names take precedence over those of guests.
fn assign_names(orphans: &mut [Orphan], roots: &BTreeMap<&str, &str>) {
    let mut taken: BTreeSet<String> = roots.keys().map(|name| (*name).to_owned()).collect();
    let (recorded, others): (Vec<&mut Orphan>, Vec<&mut Orphan>) = orphans
        .iter_mut()
        .partition(|orphan| orphan.node.recorded.is_some());
    for orphan in recorded.into_iter().chain(others) {
        let node = &mut orphan.node;
        if node.name.is_empty() || !taken.insert(node.name.clone()) {
            let id = orphan.found.guest.vmid;
            let id = id.map_or_else(String::new, |id| id.to_string());
            node.name = format!("{}#{id}", node.name);
            taken.insert(node.name.clone());
        }
        node.recorded = node.recorded.take().filter(|known| *known != node.name);
    }
}

/// Returns whether a guest belongs to another manifest or host of the site, whatever its tags.
fn is_elsewhere(
    inputs: &PlanInputs<'_>,
    host: &str,
    guest: &ObservedGuest,
    uuid: &GuestUuid,
) -> bool {
    let manifest = (inputs.site, inputs.resolved.name.as_str());
    let mut hosts = inputs.catalog.guest_hosts().filter(|other| *other != host);
    inputs.other_records.has(uuid, guest.vmid)
        || hosts.any(|other| is_identity_of(manifest, other, &guest.name, uuid))
}

/// Returns why the tags of a guest without a record do not prove that it belongs to the manifest.
fn unproven(
    inputs: &PlanInputs<'_>,
    host: &str,
    guest: &ObservedGuest,
    uuid: &GuestUuid,
) -> Option<String> {
    let name = &guest.name;
    let manifest = (inputs.site, inputs.resolved.name.as_str());
    let why = || {
        format!(
            "its tags name this manifest, but it has no record, and its identity is not that of a \
             node `{name}`"
        )
    };
    (!is_identity_of(manifest, host, name, uuid)).then(why)
}

/// What identifies a guest uniquely: its id, its identity and its machine.
pub(super) type GuestKey = (GuestId, GuestUuid, String);

/// Refuses to delete nodes with guests inside that the plan does not delete. Guests in `recreated`
/// are destroyed with their parent and recreated.
pub(super) fn refuse_lost_guests(
    inputs: &PlanInputs<'_>,
    profiles: &BTreeMap<NodeLocation, HostProfile>,
    nodes: &[NodePlan],
    recreated: &BTreeSet<GuestKey>,
) -> Vec<Refusal> {
    let by_name: BTreeMap<&str, &NodePlan> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node))
        .collect();
    // The innermost deleted node around a location. Its children may not be in the plan.
    let deleted_parent = |location: &NodeLocation| {
        let mut location = location.clone();
        while let NodeLocation::Inside(parent) = &location {
            location = match by_name.get(parent.as_str()) {
                Some(node) if is_deleted(node) => return Some(node.name.as_str()),
                Some(node) => node.location.clone(),
                None => inputs.resolved.node(parent).and_then(location_of)?,
            };
        }
        None
    };
    let mut refusals: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (location, observation) in inputs.observations {
        let (Observation::Available(observed), Some(node)) =
            (observation, deleted_parent(location))
        else {
            continue;
        };
        let machine = profiles.get(location).map(|profile| profile.host.as_str());
        let left = remaining_guests(observed, machine, |guest| {
            let exact = |uuid: &GuestUuid| (guest.vmid, uuid.clone(), guest.host.clone());
            removes_guest(nodes, location, guest)
                || guest
                    .uuid
                    .as_ref()
                    .is_some_and(|uuid| recreated.contains(&exact(uuid)))
        });
        if !left.is_empty() {
            refusals.entry(node).or_default().extend(left);
        }
    }
    let refusal = |(node, guests): (&str, Vec<String>)| {
        let hint = match inputs.options.depth {
            Some(_) => "move or delete them first; without --depth, nodes among them are recreated",
            None => "move or delete them first",
        };
        Refusal::of(
            Some(node),
            (lost_guests_message("plan", &guests), hint.to_owned()),
        )
    };
    refusals.into_iter().map(refusal).collect()
}

fn is_deleted(node: &NodePlan) -> bool {
    matches!(node.action, Action::Destroy | Action::Replace)
}

/// Returns whether the nodes that a plan deletes include a guest at a location.
pub fn removes_guest(nodes: &[NodePlan], location: &NodeLocation, guest: &ObservedGuest) -> bool {
    nodes.iter().filter(|node| is_deleted(node)).any(|node| {
        let Some(found) = node.found.as_ref().map(|found| &found.guest) else {
            return false;
        };
        let same = found.vmid == Some(guest.vmid);
        match &guest.uuid {
            Some(uuid) => same && found.uuid == *uuid && found.host == guest.host,
            // It is being created and carries no identity yet.
            None => same && guest.name.is_empty() && node.location == *location,
        }
    })
}

/// Returns the guests on a machine that would be lost with it. Guests on other machines of its cluster
/// are not affected.
pub fn remaining_guests(
    observed: &Inventory,
    machine: Option<&str>,
    is_deleted: impl Fn(&ObservedGuest) -> bool,
) -> Vec<String> {
    let machine = machine.filter(|name| observed.hosts.iter().any(|host| host.name == *name));
    let here = |guest: &&ObservedGuest| machine.is_none_or(|machine| machine == guest.host);
    let guests = observed.guests.iter().filter(here);
    guests
        .filter(|guest| !is_deleted(guest))
        .map(|guest| format!("{} ({})", guest.vmid, guest.name))
        .collect()
}

/// Returns the message that guests would be lost with their node. `of` is what does not delete them.
pub fn lost_guests_message(of: &str, guests: &[String]) -> String {
    format!(
        "guests in it that this {of} does not delete would be destroyed with it: {}",
        guests.join(", ")
    )
}

/// The reason for a node whose guests could not be listed before it is deleted.
pub const UNKNOWN_GUESTS: &str = "guests in it could not be listed and are destroyed with it";

/// Returns a warning if guests inside a node are deleted with it and could not be listed. `node` is its
/// recorded name, `named` whether the manifest lists it.
pub(super) fn unknown_guests(
    inputs: &PlanInputs<'_>,
    (host, node): (&str, &str),
    found: &ExistingGuest,
    named: bool,
) -> Option<Reason> {
    let inside = NodeLocation::Inside(node.to_owned());
    let written = inputs.resolved.node(node);
    // Observations have only the node's name, and belong to the node of the manifest.
    let seen = (named || written.is_none())
        && matches!(
            inputs.observations.get(&inside),
            Some(Observation::Available(_))
        );
    if seen || found.guest.kind == GuestKind::Ct {
        return None;
    }
    let recorded: Vec<&str> = inputs
        .records
        .values()
        .filter(|record| record.location == inside && record.host == host)
        .map(|record| record.name.as_str())
        .collect();
    let hosts = found.hosts_guests == Some(true)
        || named && written.is_some_and(|node| node.can_host)
        || !recorded.is_empty();
    if !hosts {
        let unknown = !named && found.hosts_guests.is_none();
        return unknown.then(|| Reason::new("it may contain guests, which are destroyed with it"));
    }
    let mut text = UNKNOWN_GUESTS.to_owned();
    if !recorded.is_empty() {
        text += &format!("; recorded there: `{}`", recorded.join("`, `"));
    }
    Some(Reason {
        kind: ReasonKind::UnknownGuests,
        ..Reason::new(text)
    })
}

/// Returns why a guest cannot be changed or deleted.
pub(super) fn unusable(node: &str, guest: &ObservedGuest) -> Option<(String, String)> {
    if let Some(IdentityConflict { detail, hint }) = &guest.contested {
        let detail = format!("{detail} (guest {} of `{node}`)", guest.vmid);
        return Some((detail, hint.clone()));
    }
    guest.template.then(|| {
        let detail = format!(
            "guest {} of `{node}` was converted to a template",
            guest.vmid
        );
        let hint = "remove its tags `homestak*` to keep it; the node is then recreated";
        (detail, hint.to_owned())
    })
}

/// Reports that the tags of the recorded guest of a node were changed.
pub(super) fn edited(node: &str, site: &SiteId, guest: &ObservedGuest) -> (String, String) {
    if let Some(contested) = unusable(node, guest) {
        return contested;
    }
    let tags = match &guest.site {
        Some(other) => format!("its tags name another site, `{other}`"),
        None => "its tags name no site, or several".to_owned(),
    };
    let detail = format!("guest {} is recorded as `{node}`, but {tags}", guest.vmid);
    let hint = format!(
        "set its tag `homestak-s-{site}` and remove other tags `homestak-s-*`; or, if the guest now \
         belongs to another site, homestak manifest forget {node}"
    );
    (detail, hint)
}

/// Reports that the tags of the recorded guest of a node were removed.
pub(super) fn untagged(guest: &ObservedGuest) -> String {
    format!(
        "the tags of its recorded guest {} on {} were removed: the guest is kept",
        guest.vmid, guest.host
    )
}

/// Reports that several guests carry one identity.
pub(super) fn ambiguous(node: &str, guests: &[&ObservedGuest]) -> (String, String) {
    let detail = format!(
        "{} carry the identity of `{node}`, and no record determines which one is its guest",
        guest_list(guests)
    );
    let hint =
        "remove the tags `homestak*` from each copy; the guest that keeps them is the node's";
    (detail, hint.to_owned())
}

/// Reports that only copies of a node's guest exist.
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
    let detail = format!(
        "{} {verb} the identity of `{node}`{was}",
        guest_list(copies)
    );
    let mut hint =
        "remove its tags `homestak*` to detach it from the node; the node is then recreated"
            .to_owned();
    // Created under its own id: by another driver of the site, unless its tags were forged.
    if recorded.is_some() && copies.len() == 1 && !copies.iter().any(|copy| copy.is_copy()) {
        hint += &format!(
            "; if another driver of this site created it, homestak manifest forget {node} assigns it to the node"
        );
    }
    (detail, hint)
}

/// Lists guests that carry the identity of a node without being its guest.
pub(super) fn copies_of(
    location: &NodeLocation,
    node: &str,
    guests: &[&ObservedGuest],
) -> Vec<ForeignGuest> {
    let copy = |guest: &&ObservedGuest| ForeignGuest {
        copy_of: Some(node.to_owned()),
        ..foreign_guest(location, guest)
    };
    guests.iter().map(copy).collect()
}

fn foreign_guest(location: &NodeLocation, guest: &ObservedGuest) -> ForeignGuest {
    ForeignGuest {
        location: location.clone(),
        vmid: guest.vmid,
        name: guest.name.clone(),
        host: guest.host.clone(),
        manifest: guest.manifest.clone(),
        site: guest.site.clone(),
        copy_of: None,
    }
}

/// Lists guests on the machines of this plan that do not belong to the manifest, after the copies.
pub(super) fn foreign(
    inputs: &PlanInputs<'_>,
    profiles: &BTreeMap<NodeLocation, HostProfile>,
    copies: Vec<ForeignGuest>,
    nodes: &[NodePlan],
    claimed: &BTreeSet<GuestUuid>,
) -> Vec<ForeignGuest> {
    let mut foreign = copies;
    let copies: BTreeSet<(NodeLocation, GuestId)> = foreign
        .iter()
        .map(|guest| (guest.location.clone(), guest.vmid))
        .collect();
    for (location, observation) in inputs.observations {
        let (Observation::Available(observed), Some(profile)) =
            (observation, profiles.get(location))
        else {
            continue;
        };
        let planned: BTreeSet<Option<GuestId>> = nodes
            .iter()
            .filter(|node| node.location == *location)
            .filter_map(|node| Some(node.found.as_ref()?.guest.vmid))
            .collect();
        let others = observed.guests.iter().filter(|guest| {
            // Identities of nodes that the plan leaves out are claimed too.
            let claims = guest
                .uuid
                .as_ref()
                .is_some_and(|uuid| claimed.contains(uuid));
            let ours = planned.contains(&Some(guest.vmid))
                || copies.contains(&(location.clone(), guest.vmid))
                || claims && guest.site.as_ref().is_none_or(|site| site == inputs.site);
            guest.host == profile.host && !ours
        });
        foreign.extend(others.map(|guest| ForeignGuest {
            site: guest.site.clone().filter(|site| site != inputs.site),
            ..foreign_guest(location, guest)
        }));
    }
    foreign
}
