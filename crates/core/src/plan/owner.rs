//! Which guest is a node's: by its identity, and by the journal where several guests carry it.
//!
//! Never by name, and never by the provider's id alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::doc::scalar::{NodeName, SiteId, Vmid};
use crate::observed::{GuestId, GuestUuid, ObservedGuest};
use crate::resolve::Resolved;

use super::record::{NodeRecord, NodeStatus, Records};
use super::types::Place;
use super::{Look, identity};

/// How many replacements of a node are looked for when the journal does not know its guest.
const REPLACEMENTS: usize = 32;

/// Guests by what they carry.
pub(super) struct Owners<'a> {
    site: &'a SiteId,
    manifest: &'a str,
    /// Guests of this site, and those that were created before sites had an id.
    by_uuid: BTreeMap<(&'a Place, &'a GuestUuid), Vec<&'a ObservedGuest>>,
    by_vmid: BTreeMap<(&'a Place, GuestId), &'a ObservedGuest>,
    /// Places with guests of this site.
    populated: BTreeSet<&'a Place>,
}

/// What carries a node's identity.
pub(super) enum Match<'a> {
    /// Nothing.
    Absent,
    /// The node's guest, and guests that carry its identity without being it.
    Guest(&'a ObservedGuest, Vec<&'a ObservedGuest>),
    /// Only guests that are not the node's.
    Copies(Vec<&'a ObservedGuest>),
    /// Several, and nothing tells which one is the node's.
    Ambiguous(Vec<&'a ObservedGuest>),
    /// The recorded guest, whose marks someone changed since.
    Edited(&'a ObservedGuest),
}

impl Match<'_> {
    /// Returns the identities of all guests in it: none of them is a stray.
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

impl<'a> Owners<'a> {
    pub(super) fn new(
        site: &'a SiteId,
        manifest: &'a str,
        looks: &'a BTreeMap<Place, Look>,
    ) -> Self {
        let mut owners = Self {
            site,
            manifest,
            by_uuid: BTreeMap::new(),
            by_vmid: BTreeMap::new(),
            populated: BTreeSet::new(),
        };
        for (place, look) in looks {
            let Look::Seen(observed) = look else {
                continue;
            };
            for guest in &observed.guests {
                owners.by_vmid.insert((place, guest.vmid), guest);
                let foreign = guest.site.as_ref().is_some_and(|other| other != site);
                let Some(uuid) = guest.uuid.as_ref().filter(|_| !foreign) else {
                    continue;
                };
                owners.by_uuid.entry((place, uuid)).or_default().push(guest);
                if guest.site.is_some() {
                    owners.populated.insert(place);
                }
            }
        }
        owners
    }

    /// Returns the guest with an id.
    pub(super) fn with_vmid(&self, place: &Place, vmid: GuestId) -> Option<&'a ObservedGuest> {
        self.by_vmid.get(&(place, vmid)).copied()
    }

    /// Returns the recorded guest of a node when it carries no identity any more: whoever removes
    /// its tags makes it a guest of its own.
    pub(super) fn given_up(
        &self,
        place: &Place,
        record: Option<&NodeRecord>,
    ) -> Option<&'a ObservedGuest> {
        let record = record.filter(|record| record.status != NodeStatus::Creating)?;
        let guest = self.with_vmid(place, record.guest.vmid?)?;
        let untagged = guest.uuid.is_none() && !guest.is_stranger;
        (untagged && guest.kind == record.guest.kind).then_some(guest)
    }

    /// Returns what carries the identity of a node.
    pub(super) fn of_node(
        &self,
        place: &Place,
        (host, node): (&str, &str),
        record: Option<&NodeRecord>,
    ) -> Match<'a> {
        let first = identity::uuid(self.site, self.manifest, host, node);
        let Some(record) = record else {
            return self.unrecorded(place, first);
        };
        let mut carrying = self.carrying(place, &record.guest.uuid);
        match record.site {
            Some(_) => carrying.retain(|guest| guest.site.is_some()),
            None => {
                // The journal alone tells whose a guest without a site is, so its id must agree.
                let id = record.guest.vmid;
                carrying.retain(|guest| guest.site.is_some() || Some(guest.vmid) == id);
                // Its new identity may have been given to it, and that not been recorded.
                carrying.extend(self.of_site(place, &first));
            }
        }
        if carrying.is_empty() {
            // Another driver of the site may have replaced it, or created it again.
            let known = &record.guest.uuid;
            carrying = self.replacements(place, identity::successor(known));
            if *known != first {
                carrying.extend(self.replacements(place, first));
            }
        }
        let Some(vmid) = record.guest.vmid else {
            return lone(carrying);
        };
        let edited = self.with_vmid(place, vmid).filter(|guest| {
            let recorded = guest.uuid.as_ref() == Some(&record.guest.uuid);
            let unmarked = guest.uuid.is_none() && guest.contested.is_some();
            // A guest of the first form carries no site.
            unmarked || recorded && guest.site != record.site
        });
        let found = decide(carrying, |guest| guest.vmid == vmid);
        match edited {
            Some(guest) if matches!(found, Match::Absent) => Match::Edited(guest),
            _ => found,
        }
    }

    /// Returns what carries an identity that the journal may know.
    pub(super) fn of_stray(
        &self,
        place: &Place,
        uuid: &GuestUuid,
        record: Option<&NodeRecord>,
    ) -> Match<'a> {
        match record.and_then(|record| record.guest.vmid) {
            Some(vmid) => decide(self.carrying(place, uuid), |guest| guest.vmid == vmid),
            None => lone(self.of_site(place, uuid)),
        }
    }

    /// A node that the journal does not know may have been replaced, which gave it another
    /// identity each time.
    fn unrecorded(&self, place: &Place, first: GuestUuid) -> Match<'a> {
        lone(self.replacements(place, first))
    }

    /// Returns guests of an identity and of those that replace it one after the other.
    fn replacements(&self, place: &Place, first: GuestUuid) -> Vec<&'a ObservedGuest> {
        if !self.populated.contains(place) {
            return Vec::new();
        }
        let carrying = line(first).flat_map(|uuid| self.of_site(place, &uuid));
        carrying.collect()
    }

    fn carrying(&self, place: &Place, uuid: &GuestUuid) -> Vec<&'a ObservedGuest> {
        let guests = self.by_uuid.get(&(place, uuid));
        guests.cloned().unwrap_or_default()
    }

    fn of_site(&self, place: &Place, uuid: &GuestUuid) -> Vec<&'a ObservedGuest> {
        let mut guests = self.carrying(place, uuid);
        guests.retain(|guest| guest.site.is_some());
        guests
    }
}

/// Tells whether an identity is that of a node, or of a guest that replaced its first one.
pub(super) fn is_identity_of(
    (site, manifest): (&SiteId, &str),
    host: &str,
    node: &str,
    uuid: &GuestUuid,
) -> bool {
    line(identity::uuid(site, manifest, host, node)).any(|one| one == *uuid)
}

/// Returns an identity and those that replace it one after the other.
fn line(first: GuestUuid) -> impl Iterator<Item = GuestUuid> {
    std::iter::successors(Some(first), |uuid| Some(identity::successor(uuid))).take(REPLACEMENTS)
}

fn decide<'a>(
    carrying: Vec<&'a ObservedGuest>,
    is_guest: impl Fn(&ObservedGuest) -> bool,
) -> Match<'a> {
    let (mut guest, copies): (Vec<_>, Vec<_>) =
        carrying.into_iter().partition(|guest| is_guest(guest));
    match (guest.pop(), copies.is_empty()) {
        (Some(guest), _) => Match::Guest(guest, copies),
        (None, true) => Match::Absent,
        (None, false) => Match::Copies(copies),
    }
}

/// Without the journal, a guest is the node's only when it is the only one.
fn lone(carrying: Vec<&ObservedGuest>) -> Match<'_> {
    match carrying.as_slice() {
        [] => Match::Absent,
        [one] if one.is_copy() => Match::Copies(carrying),
        [one] => Match::Guest(one, Vec::new()),
        _ => Match::Ambiguous(carrying),
    }
}

/// Returns the numbers that nodes have already, where guests have numbers.
pub fn ids(
    site: &SiteId,
    resolved: &Resolved,
    looks: &BTreeMap<Place, Look>,
    records: &Records,
) -> BTreeMap<NodeName, Vmid> {
    let owners = Owners::new(site, &resolved.name, looks);
    let hosts = super::apply::site_hosts(resolved);
    let mut ids = BTreeMap::new();
    for node in &resolved.nodes {
        let name = node.name.as_str();
        let (Some(place), Some(host)) = (super::apply::place(node), hosts.get(name)) else {
            continue;
        };
        let record = records.of(name, host);
        let vmid = match looks.get(&place) {
            Some(Look::Seen(_)) => match owners.of_node(&place, (host, name), record) {
                Match::Guest(guest, _) => Some(guest.vmid),
                Match::Absent | Match::Copies(_) | Match::Ambiguous(_) | Match::Edited(_) => None,
            },
            // What cannot be seen is where it was.
            Some(Look::Unseen(_)) | None => record.and_then(|record| record.guest.vmid),
        };
        let number = vmid.and_then(|id| id.number()).map(i64::from);
        ids.extend(number.map(|number| (node.name.clone(), Vmid::from_number(number))));
    }
    ids
}

/// Names guests for a person.
pub(super) fn named(guests: &[&ObservedGuest]) -> String {
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
