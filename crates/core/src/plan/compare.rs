//! How a node's guest differs from what it should be.

use crate::catalog::Catalog;
use crate::observed::{GuestRef, ObservedGuest, Power};
use crate::resolve::{Origin, ResolvedNode};

use super::Inputs;
use super::record::{NodeRecord, NodeStatus};
use super::types::{Action, Found, Reason, Wanted};
use crate::units::Bytes;

/// Turns what was seen of a guest of ours into what the plan says of it.
pub(super) fn found(guest: &ObservedGuest, record: Option<&NodeRecord>) -> Option<Found> {
    let uuid = guest.uuid.clone()?;
    let status = record.map(|record| record.status);
    // What runs was created completely; what does not may be half-made.
    let runs = guest.power == Power::Running && guest.lock.is_none();
    Some(Found {
        guest: GuestRef {
            uuid,
            kind: guest.kind,
            vmid: Some(guest.vmid),
            host: guest.host.clone(),
        },
        first_form: guest.site.is_none(),
        power: guest.power,
        made: match status {
            Some(status) => Some(status != NodeStatus::Creating),
            None => runs.then_some(true),
        },
        ready: record.and_then(NodeRecord::was_reached),
        cores: guest.cores,
        memory: guest.memory.map(Bytes::whole_mib),
        disk: guest.disk.map(Bytes::whole_gib),
        address: record.and_then(|record| record.address),
        configured: record.and_then(|record| record.configured.clone()),
        hosts_guests: record.and_then(|record| record.hosts_guests),
    })
}

/// Turns what is recorded of a guest that cannot be seen into what the plan says of it.
pub(super) fn remembered(record: &NodeRecord) -> Found {
    Found {
        guest: record.guest.clone(),
        first_form: record.site.is_none(),
        power: Power::Unknown,
        made: None,
        ready: None,
        cores: None,
        memory: None,
        disk: None,
        address: record.address,
        configured: record.configured.clone(),
        hosts_guests: record.hosts_guests,
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
    if let (Some(there), Some(vmid)) = (found.guest.vmid, wanted.vmid)
        && there != vmid
    {
        let origin = node.vmid.as_ref().map(|vmid| &vmid.origin);
        let text = format!("its vmid is {there} and should be {vmid}");
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
        let text = format!("memory {} -> {}", memory.0, wanted.memory);
        change.push(says(text, size.map(|size| &size.memory.origin)));
    }
    let origin = size.map(|size| &size.disk.origin);
    let mut notes = Vec::new();
    match found.disk {
        Some(disk) if disk < wanted.disk => {
            let text = format!("disk {} -> {}", disk.0, wanted.disk);
            change.push(says(text, origin));
        }
        Some(disk) if disk > wanted.disk => {
            let text = format!(
                "the disk has {disk}, more than the {} written; disks are never made smaller",
                wanted.disk.0
            );
            notes.push(says(text, origin));
        }
        Some(_) | None => {}
    }
    if found.guest.host != wanted.host {
        let text = format!("it was moved from {} to {}", wanted.host, found.guest.host);
        notes.push(says(text, None));
    }
    if !change.is_empty() && found.made == Some(true) {
        change.extend(notes);
        return (Action::Change, change);
    }
    // What is recorded and not ready is waited for, whether it was reached before or not.
    let ready = record.map(|record| record.status == NodeStatus::Ready);
    let start = match (found.made, found.power, ready) {
        (Some(false), _, _) => Some("it was not created completely"),
        (None, Power::Unknown, _) => Some("nothing records whether it was created completely"),
        (None, _, _) => {
            Some("it does not run, and nothing records whether it was created completely")
        }
        (Some(true), Power::Stopped, _) => Some("it does not run"),
        (Some(true), Power::Running, Some(false)) => Some("it runs and was not reached yet"),
        // Without a record, what runs is taken as it is. Unknown is for the caller to refuse.
        (Some(true), Power::Running | Power::Unknown, _) => None,
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
    located(inputs.catalog, text, origin)
}

/// The same, for whoever has the documents only.
pub(super) fn located(catalog: &Catalog, text: String, origin: Option<&Origin>) -> Reason {
    let span = match origin {
        Some(Origin::Written(span) | Origin::Derived(_, Some(span))) => Some(*span),
        Some(
            Origin::BuiltIn | Origin::CommandLine(_) | Origin::Derived(_, None) | Origin::Recorded,
        )
        | None => None,
    };
    Reason {
        text,
        source: span.map(|span| catalog.sources.locate(span).to_string()),
        ..Reason::default()
    }
}
