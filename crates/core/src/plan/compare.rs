//! Which guest is whose, and in what it differs from what it should be.
//!
//! In: what was seen and remembered. Out: the guest of a node, and the differences.
//! Never: a guest taken for ours by its name or id alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::{GuestRef, GuestUuid, ObservedGuest, Power};
use crate::resolve::{Origin, ResolvedNode};

use super::record::{NodeRecord, NodeStatus};
use super::types::{Action, Found, Place, Reason, Wanted};
use super::{Inputs, Look};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// Finds guests by identity, and by tag and name where the identity is not known.
pub(super) struct Finder<'a> {
    by_uuid: BTreeMap<(&'a Place, &'a GuestUuid), Vec<&'a ObservedGuest>>,
    by_name: BTreeMap<(&'a Place, &'a str), Vec<&'a ObservedGuest>>,
    by_vmid: BTreeMap<(&'a Place, u32), &'a ObservedGuest>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(inputs: &Inputs<'a>) -> Self {
        let mut finder = Self {
            by_uuid: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_vmid: BTreeMap::new(),
        };
        for (place, look) in inputs.looks {
            let Look::Seen(observed) = look else {
                continue;
            };
            for guest in &observed.guests {
                finder.by_vmid.insert((place, guest.vmid), guest);
                let Some(uuid) = &guest.uuid else {
                    continue;
                };
                finder.by_uuid.entry((place, uuid)).or_default().push(guest);
                if guest.manifest.as_deref() == Some(inputs.resolved.name.as_str()) {
                    let named = finder.by_name.entry((place, guest.name.as_str()));
                    named.or_default().push(guest);
                }
            }
        }
        finder
    }

    /// Returns the guests that carry an identity: one, unless someone made a copy.
    pub(super) fn carrying(&self, place: &Place, uuid: &GuestUuid) -> Vec<&'a ObservedGuest> {
        self.by_uuid
            .get(&(place, uuid))
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the guest of this manifest with a name, on a machine, that no other node has.
    pub(super) fn named(
        &self,
        place: &Place,
        name: &str,
        machine: &str,
        claimed: &BTreeSet<GuestUuid>,
    ) -> Option<&'a ObservedGuest> {
        let mut free = self.by_name.get(&(place, name))?.iter().filter(|guest| {
            guest.host == machine
                && guest
                    .uuid
                    .as_ref()
                    .is_some_and(|uuid| !claimed.contains(uuid))
        });
        free.next().copied()
    }

    /// Returns the guest with an id.
    pub(super) fn with_vmid(&self, place: &Place, vmid: u32) -> Option<&'a ObservedGuest> {
        self.by_vmid.get(&(place, vmid)).copied()
    }
}

/// Turns what was seen of a guest of ours into what the plan says of it.
pub(super) fn found(guest: &ObservedGuest, record: Option<&NodeRecord>) -> Option<Found> {
    let uuid = guest.uuid.clone()?;
    let status = record.map(|record| record.status);
    let own = record.filter(|record| record.guest.uuid == uuid);
    Some(Found {
        guest: GuestRef {
            uuid,
            kind: guest.kind,
            vmid: guest.vmid,
            host: guest.host.clone(),
        },
        running: guest.power == Power::Running,
        // Without memory, what runs was made; what does not may be half-made.
        made: match status {
            Some(NodeStatus::Creating) => false,
            Some(_) => true,
            None => guest.power == Power::Running && guest.lock.is_none(),
        },
        ready: match status {
            Some(status) => status == NodeStatus::Ready,
            None => guest.power == Power::Running,
        },
        cores: guest.cores,
        memory: guest.memory.map(|bytes| bytes / MIB),
        disk: guest.disk.map(|bytes| bytes / GIB),
        address: own.and_then(|record| record.address),
        configured: own.and_then(|record| record.configured.clone()),
    })
}

/// Turns what is remembered of a guest that cannot be seen into what the plan says of it.
pub(super) fn remembered(record: &NodeRecord) -> Found {
    Found {
        guest: record.guest.clone(),
        running: false,
        // It may be gone with what it ran on; making it is harmless when it is not.
        made: false,
        ready: false,
        cores: None,
        memory: None,
        disk: None,
        address: record.address,
        configured: record.configured.clone(),
    }
}

/// Decides what is done to a guest that is there.
pub(super) fn judge(
    inputs: &Inputs<'_>,
    node: &ResolvedNode,
    wanted: &Wanted,
    found: &Found,
    record: Option<&NodeRecord>,
) -> (Action, Vec<Reason>) {
    let says = |text: String, origin: Option<&Origin>| reason(inputs, text, origin);
    let mut replace = Vec::new();
    if found.guest.kind != wanted.kind {
        let text = "it is of another kind than the guest that is there".to_owned();
        replace.push(says(text, Some(&node.kind.origin)));
    }
    if let Some(vmid) = wanted.vmid.filter(|vmid| *vmid != found.guest.vmid) {
        let origin = node.vmid.as_ref().map(|vmid| &vmid.origin);
        let text = format!("its vmid is {} and should be {vmid}", found.guest.vmid);
        replace.push(says(text, origin));
    }
    let source = record.and_then(|record| record.source.as_deref());
    if let Some(source) = source.filter(|source| *source != wanted.source) {
        let origin = node.image.as_ref().or(node.template.as_ref());
        let text = format!(
            "it was made from {source} and should be from {}",
            wanted.source
        );
        replace.push(says(text, origin.map(|named| &named.origin)));
    }
    if !replace.is_empty() {
        return (Action::Replace, replace);
    }
    let size = node.size.as_ref();
    let mut change = Vec::new();
    if let Some(cores) = found.cores.filter(|cores| *cores != wanted.cores) {
        let text = format!("CPUs {cores} -> {}", wanted.cores);
        change.push(says(text, size.map(|size| &size.cores.origin)));
    }
    if let Some(memory) = found.memory.filter(|memory| *memory != wanted.memory) {
        let text = format!("memory {memory} -> {} MiB", wanted.memory);
        change.push(says(text, size.map(|size| &size.memory.origin)));
    }
    let origin = size.map(|size| &size.disk.origin);
    let mut notes = Vec::new();
    match found.disk {
        Some(disk) if disk < wanted.disk => {
            let text = format!("disk {disk} -> {} GiB", wanted.disk);
            change.push(says(text, origin));
        }
        Some(disk) if disk > wanted.disk => {
            let text = format!(
                "the disk has {disk} GiB, more than the {} written; disks are never made smaller",
                wanted.disk
            );
            notes.push(says(text, origin));
        }
        Some(_) | None => {}
    }
    if found.guest.host != wanted.host {
        let text = format!("it was moved from {} to {}", wanted.host, found.guest.host);
        notes.push(says(text, None));
    }
    if !change.is_empty() && found.made {
        change.extend(notes);
        return (Action::Change, change);
    }
    let start = if !found.made {
        Some("it was not made completely")
    } else if !found.running {
        Some("it does not run")
    } else if !found.ready {
        Some("it runs and was not reached yet")
    } else {
        None
    };
    match start {
        Some(why) => {
            notes.insert(0, says(why.to_owned(), None));
            (Action::Start, notes)
        }
        None => (Action::Nothing, notes),
    }
}

/// Makes a reason, with the line behind it when a document says so.
pub(super) fn reason(inputs: &Inputs<'_>, text: String, origin: Option<&Origin>) -> Reason {
    let span = match origin {
        Some(Origin::Written(span) | Origin::Derived(_, Some(span))) => Some(*span),
        Some(
            Origin::BuiltIn | Origin::CommandLine(_) | Origin::Derived(_, None) | Origin::Recorded,
        )
        | None => None,
    };
    Reason {
        text,
        source: span.map(|span| inputs.catalog.sources.locate(span).to_string()),
    }
}
