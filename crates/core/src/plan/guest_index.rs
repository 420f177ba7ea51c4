//! Finds the guest of a node: by its identity, and by the journal where several guests carry it. Never
//! by name, and never by the provider's id alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::doc::scalar::{NodeName, SiteId, Vmid};
use crate::observed::{GuestId, GuestUuid, ObservedGuest};
use crate::resolve::ResolvedManifest;

use super::record::{NodeRecord, NodeStatus, Records};
use super::types::NodeLocation;
use super::{Observation, identity};

/// How many successive replacements of a guest are searched for when the journal has no record.
const REPLACEMENTS: usize = 32;

/// The observed guests by identity and by id.
pub(super) struct GuestIndex<'a> {
    site: &'a SiteId,
    manifest: &'a str,
    /// Guests of this site, and guests with a legacy identity.
    by_uuid: BTreeMap<(&'a NodeLocation, &'a GuestUuid), Vec<&'a ObservedGuest>>,
    by_vmid: BTreeMap<(&'a NodeLocation, GuestId), &'a ObservedGuest>,
    /// Locations with guests of this site.
    populated: BTreeSet<&'a NodeLocation>,
}

/// The guests that carry the identity of a node.
pub(super) enum GuestMatch<'a> {
    /// None.
    Absent,
    /// The node's guest, and copies of it.
    Guest(&'a ObservedGuest, Vec<&'a ObservedGuest>),
    /// Only copies.
    Copies(Vec<&'a ObservedGuest>),
    /// Several, and nothing determines which one is the node's.
    Ambiguous(Vec<&'a ObservedGuest>),
    /// The recorded guest, whose tags were changed.
    Edited(&'a ObservedGuest),
}

impl GuestMatch<'_> {
    /// Returns the identities of all guests in it: none of them is an orphan.
    pub(super) fn identities(&self) -> Vec<GuestUuid> {
        let (guest, others) = match self {
            Self::Absent => (None, [].as_slice()),
            Self::Guest(guest, copies) => (Some(*guest), copies.as_slice()),
            Self::Edited(guest) => (Some(*guest), [].as_slice()),
            Self::Copies(guests) | Self::Ambiguous(guests) => (None, guests.as_slice()),
        };
        let guests = others.iter().copied().chain(guest);
        guests.filter_map(|guest| guest.uuid.clone()).collect()
    }
}

impl<'a> GuestIndex<'a> {
    pub(super) fn new(
        site: &'a SiteId,
        manifest: &'a str,
        observations: &'a BTreeMap<NodeLocation, Observation>,
    ) -> Self {
        let mut guest_index = Self {
            site,
            manifest,
            by_uuid: BTreeMap::new(),
            by_vmid: BTreeMap::new(),
            populated: BTreeSet::new(),
        };
        for (location, observation) in observations {
            let Observation::Available(observed) = observation else {
                continue;
            };
            for guest in &observed.guests {
                guest_index.by_vmid.insert((location, guest.vmid), guest);
                let foreign = guest.site.as_ref().is_some_and(|other| other != site);
                let Some(uuid) = guest.uuid.as_ref().filter(|_| !foreign) else {
                    continue;
                };
                guest_index
                    .by_uuid
                    .entry((location, uuid))
                    .or_default()
                    .push(guest);
                if guest.site.is_some() {
                    guest_index.populated.insert(location);
                }
            }
        }
        guest_index
    }

    /// Returns the guest with an id.
    pub(super) fn with_vmid(
        &self,
        location: &NodeLocation,
        vmid: GuestId,
    ) -> Option<&'a ObservedGuest> {
        self.by_vmid.get(&(location, vmid)).copied()
    }

    /// Returns the recorded guest of a node if its tags were removed. It then no longer belongs to the
    /// node.
    pub(super) fn untagged(
        &self,
        location: &NodeLocation,
        record: Option<&NodeRecord>,
    ) -> Option<&'a ObservedGuest> {
        let record = record.filter(|record| record.status != NodeStatus::Creating)?;
        let guest = self.with_vmid(location, record.guest.vmid?)?;
        let untagged = guest.uuid.is_none() && !guest.is_unrelated;
        (untagged && guest.kind == record.guest.kind).then_some(guest)
    }

    /// Returns the guests that carry the identity of a node.
    pub(super) fn of_node(
        &self,
        location: &NodeLocation,
        (host, node): (&str, &str),
        record: Option<&NodeRecord>,
    ) -> GuestMatch<'a> {
        let first = identity::uuid(self.site, self.manifest, host, node);
        let Some(record) = record else {
            return self.unrecorded(location, first);
        };
        let mut matched = self.carrying(location, &record.guest.uuid);
        match record.site {
            Some(_) => matched.retain(|guest| guest.site.is_some()),
            None => {
                // A guest without a site is matched by the journal alone, so its id must agree.
                let id = record.guest.vmid;
                matched.retain(|guest| guest.site.is_some() || Some(guest.vmid) == id);
                // It may have its new identity already, without that being recorded.
                matched.extend(self.of_site(location, &first));
            }
        }
        if matched.is_empty() {
            // Another driver of the site may have replaced or recreated it.
            let known = &record.guest.uuid;
            matched = self.replacements(location, identity::successor(known));
            if *known != first {
                matched.extend(self.replacements(location, first));
            }
        }
        let Some(vmid) = record.guest.vmid else {
            return only_one(matched);
        };
        let edited = self.with_vmid(location, vmid).filter(|guest| {
            let recorded = guest.uuid.as_ref() == Some(&record.guest.uuid);
            let untagged = guest.uuid.is_none() && guest.contested.is_some();
            // A guest with a legacy identity carries no site.
            untagged || recorded && guest.site != record.site
        });
        let found = decide(matched, |guest| guest.vmid == vmid);
        match edited {
            Some(guest) if matches!(found, GuestMatch::Absent) => GuestMatch::Edited(guest),
            _ => found,
        }
    }

    /// Returns the guests that carry an identity, which may be recorded.
    pub(super) fn of_orphan(
        &self,
        location: &NodeLocation,
        uuid: &GuestUuid,
        record: Option<&NodeRecord>,
    ) -> GuestMatch<'a> {
        match record.and_then(|record| record.guest.vmid) {
            Some(vmid) => decide(self.carrying(location, uuid), |guest| guest.vmid == vmid),
            None => only_one(self.of_site(location, uuid)),
        }
    }

    /// Returns the guests of a node without a record. Each replacement gave it another identity.
    fn unrecorded(&self, location: &NodeLocation, first: GuestUuid) -> GuestMatch<'a> {
        only_one(self.replacements(location, first))
    }

    /// Returns the guests of an identity and of its successors.
    fn replacements(&self, location: &NodeLocation, first: GuestUuid) -> Vec<&'a ObservedGuest> {
        if !self.populated.contains(location) {
            return Vec::new();
        }
        let matched = replacement_chain(first).flat_map(|uuid| self.of_site(location, &uuid));
        matched.collect()
    }

    fn carrying(&self, location: &NodeLocation, uuid: &GuestUuid) -> Vec<&'a ObservedGuest> {
        let guests = self.by_uuid.get(&(location, uuid));
        guests.cloned().unwrap_or_default()
    }

    fn of_site(&self, location: &NodeLocation, uuid: &GuestUuid) -> Vec<&'a ObservedGuest> {
        let mut guests = self.carrying(location, uuid);
        guests.retain(|guest| guest.site.is_some());
        guests
    }
}

/// Returns whether an identity is the first one of a node or one of its successors.
pub(super) fn is_identity_of(
    (site, manifest): (&SiteId, &str),
    host: &str,
    node: &str,
    uuid: &GuestUuid,
) -> bool {
    replacement_chain(identity::uuid(site, manifest, host, node)).any(|one| one == *uuid)
}

/// Returns an identity and its successors.
fn replacement_chain(first: GuestUuid) -> impl Iterator<Item = GuestUuid> {
    std::iter::successors(Some(first), |uuid| Some(identity::successor(uuid))).take(REPLACEMENTS)
}

fn decide<'a>(
    matched: Vec<&'a ObservedGuest>,
    is_guest: impl Fn(&ObservedGuest) -> bool,
) -> GuestMatch<'a> {
    let (mut guest, copies): (Vec<_>, Vec<_>) =
        matched.into_iter().partition(|guest| is_guest(guest));
    match (guest.pop(), copies.is_empty()) {
        (Some(guest), _) => GuestMatch::Guest(guest, copies),
        (None, true) => GuestMatch::Absent,
        (None, false) => GuestMatch::Copies(copies),
    }
}

/// Without a record, a guest is the node's only if it is the only one.
fn only_one(matched: Vec<&ObservedGuest>) -> GuestMatch<'_> {
    match matched.as_slice() {
        [] => GuestMatch::Absent,
        [one] if one.is_copy() => GuestMatch::Copies(matched),
        [one] => GuestMatch::Guest(one, Vec::new()),
        _ => GuestMatch::Ambiguous(matched),
    }
}

/// Returns the vmids of existing nodes, where guests have numbers.
pub fn known_vmids(
    site: &SiteId,
    resolved: &ResolvedManifest,
    observations: &BTreeMap<NodeLocation, Observation>,
    records: &Records,
) -> BTreeMap<NodeName, Vmid> {
    let guest_index = GuestIndex::new(site, &resolved.name, observations);
    let hosts = super::apply::site_hosts(resolved);
    let mut ids = BTreeMap::new();
    for node in &resolved.nodes {
        let name = node.name.as_str();
        let (Some(location), Some(host)) = (super::apply::location(node), hosts.get(name)) else {
            continue;
        };
        let record = records.of(name, host);
        let vmid = match observations.get(&location) {
            Some(Observation::Available(_)) => {
                match guest_index.of_node(&location, (host, name), record) {
                    GuestMatch::Guest(guest, _) => Some(guest.vmid),
                    GuestMatch::Absent
                    | GuestMatch::Copies(_)
                    | GuestMatch::Ambiguous(_)
                    | GuestMatch::Edited(_) => None,
                }
            }
            // A node that cannot be observed keeps its recorded id.
            Some(Observation::Unavailable(_)) | None => record.and_then(|record| record.guest.vmid),
        };
        let number = vmid.and_then(|id| id.number()).map(i64::from);
        ids.extend(number.map(|number| (node.name.clone(), Vmid::from_number(number))));
    }
    ids
}

/// Lists guests for a message.
pub(super) fn guest_list(guests: &[&ObservedGuest]) -> String {
    let mut names: Vec<String> = guests
        .iter()
        .map(|guest| format!("{} on {}", guest.vmid, guest.host))
        .collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() {
        return format!("guest {last}");
    }
    format!("guests {} and {last}", names.join(", "))
}
