//! Compares the existing guest of a node with the desired one.

use crate::catalog::Catalog;
use crate::observed::{GuestRef, ObservedGuest, PowerState};
use crate::resolve::{Origin, ResolvedNode};

use super::PlanInputs;
use super::guest::{DesiredGuest, ExistingGuest};
use super::record::{NodeRecord, NodeStatus};
use super::types::{Action, Reason};
use crate::units::Bytes;

/// Describes an observed guest of a node.
pub(super) fn existing(
    guest: &ObservedGuest,
    record: Option<&NodeRecord>,
) -> Option<ExistingGuest> {
    let uuid = guest.uuid.clone()?;
    let status = record.map(|record| record.status);
    // A running guest was created completely; a stopped one may not be.
    let runs = guest.power == PowerState::Running && guest.lock.is_none();
    Some(ExistingGuest {
        guest: GuestRef {
            uuid,
            kind: guest.kind,
            vmid: Some(guest.vmid),
            host: guest.host.clone(),
        },
        legacy_identity: guest.site.is_none(),
        power: guest.power,
        created: match status {
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

/// Describes a guest that cannot be observed by its record.
pub(super) fn from_record(record: &NodeRecord) -> ExistingGuest {
    ExistingGuest {
        guest: record.guest.clone(),
        legacy_identity: record.site.is_none(),
        power: PowerState::Unknown,
        created: None,
        ready: None,
        cores: None,
        memory: None,
        disk: None,
        address: record.address,
        configured: record.configured.clone(),
        hosts_guests: record.hosts_guests,
    }
}

/// Decides the action for an existing guest.
pub(super) fn compare(
    inputs: &PlanInputs<'_>,
    node: &ResolvedNode,
    wanted: &DesiredGuest,
    found: &ExistingGuest,
    record: Option<&NodeRecord>,
) -> (Action, Vec<Reason>) {
    let because = |text: String, origin: Option<&Origin>| reason(inputs, text, origin);
    let mut replace = Vec::new();
    if found.guest.kind != wanted.kind {
        let text = "the existing guest is of another kind".to_owned();
        replace.push(because(text, Some(&node.kind.origin)));
    }
    if let (Some(there), Some(vmid)) = (found.guest.vmid, wanted.vmid)
        && there != vmid
    {
        let origin = node.vmid.as_ref().map(|vmid| &vmid.origin);
        let text = format!("its vmid is {there} and should be {vmid}");
        replace.push(because(text, origin));
    }
    let source = record.and_then(|record| record.source.as_deref());
    if let Some(source) = source.filter(|source| *source != wanted.source) {
        let origin = node.image.as_ref().or(node.template.as_ref());
        let text = format!(
            "it was created from {source} and should be from {}",
            wanted.source
        );
        replace.push(because(text, origin.map(|named| &named.origin)));
    }
    if !replace.is_empty() {
        return (Action::Replace, replace);
    }
    let size = node.size.as_ref();
    let mut change = Vec::new();
    if let Some(cores) = found.cores.filter(|cores| *cores != wanted.cores) {
        let text = format!("CPUs {cores} -> {}", wanted.cores);
        change.push(because(text, size.map(|size| &size.cores.origin)));
    }
    if let Some(memory) = found.memory.filter(|memory| *memory != wanted.memory) {
        let text = format!("memory {} -> {}", memory.0, wanted.memory);
        change.push(because(text, size.map(|size| &size.memory.origin)));
    }
    let origin = size.map(|size| &size.disk.origin);
    let mut notes = Vec::new();
    match found.disk {
        Some(disk) if disk < wanted.disk => {
            let text = format!("disk {} -> {}", disk.0, wanted.disk);
            change.push(because(text, origin));
        }
        Some(disk) if disk > wanted.disk => {
            let text = format!(
                "the disk has {disk}, more than the {} in the manifest; disks are never shrunk",
                wanted.disk.0
            );
            notes.push(because(text, origin));
        }
        Some(_) | None => {}
    }
    if found.guest.host != wanted.host {
        let text = format!("it was moved from {} to {}", wanted.host, found.guest.host);
        notes.push(because(text, None));
    }
    if !change.is_empty() && found.created == Some(true) {
        change.extend(notes);
        return (Action::Change, change);
    }
    // A recorded node that is not ready is waited for, whether or not it was reached before.
    let ready = record.map(|record| record.status == NodeStatus::Ready);
    let start = match (found.created, found.power, ready) {
        (Some(false), _, _) => Some("it was not created completely"),
        (None, PowerState::Unknown, _) => {
            Some("it is not recorded whether it was created completely")
        }
        (None, _, _) => {
            Some("it is stopped, and it is not recorded whether it was created completely")
        }
        (Some(true), PowerState::Stopped, _) => Some("it is stopped"),
        (Some(true), PowerState::Running, Some(false)) => {
            Some("it is running and was not reached yet")
        }
        // Without a record, a running guest is accepted as it is. The caller refuses an unknown state.
        (Some(true), PowerState::Running | PowerState::Unknown, _) => None,
    };
    match start {
        Some(why) => {
            notes.insert(0, because(why.to_owned(), None));
            (Action::Start, notes)
        }
        None => (Action::Nothing, notes),
    }
}

/// Makes a reason, with the place in the document behind it.
pub(super) fn reason(inputs: &PlanInputs<'_>, text: String, origin: Option<&Origin>) -> Reason {
    located(inputs.catalog, text, origin)
}

/// Makes the same reason from the documents alone.
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
