//! Nodes that are recreated because their parent is, and what is lost with it.

use crate::observed::GuestRef;
use crate::resolve::{Origin, ResolvedNode};

use super::compare::{existing, reason};
use super::guest::ForeignGuest;
use super::guest_index::{GuestIndex, GuestMatch};
use super::orphans::{GuestKey, copies_of, unknown_guests, unusable};
use super::record::NodeRecord;
use super::types::{NodeLocation, Reason};
use super::{Observation, PlanInputs};

/// A node whose parent is created or replaced.
pub(super) struct RecreatedChild {
    /// Why it is created, and what is lost.
    pub(super) reasons: Vec<Reason>,
    /// Its guest, which is destroyed with the old parent.
    pub(super) guest: Option<GuestKey>,
    /// Copies of its guest.
    pub(super) copies: Vec<ForeignGuest>,
}

/// Describes a node whose parent is created. `replaced`: the parent existed, and its guests are
/// destroyed with it.
pub(super) fn recreated(
    inputs: &PlanInputs<'_>,
    guest_index: &GuestIndex<'_>,
    node: &ResolvedNode,
    (location, host): (&NodeLocation, &str),
    (record, replaced): (Option<&NodeRecord>, bool),
) -> RecreatedChild {
    let name = node.name.as_str();
    let text = "it is in the manifest, and its parent node is created".to_owned();
    let here = Origin::Written(node.span);
    let mut recreated = RecreatedChild {
        reasons: vec![reason(inputs, text, Some(&here))],
        guest: None,
        copies: Vec::new(),
    };
    let Some(Observation::Available(_)) = inputs.observations.get(location) else {
        let recorded = record.filter(|record| replaced && record.location == *location);
        recreated.reasons.extend(recorded.and_then(|record| {
            let vmid = record.guest.vmid?;
            Some(Reason::new(format!(
                "recorded guest {vmid} in {location}, if it exists, is destroyed with it"
            )))
        }));
        return recreated;
    };
    let (guest, copies) = match guest_index.of_node(location, (host, name), record) {
        GuestMatch::Guest(guest, copies) => (Some(guest), copies),
        GuestMatch::Copies(copies) => (None, copies),
        GuestMatch::Absent | GuestMatch::Ambiguous(_) | GuestMatch::Edited(_) => (None, Vec::new()),
    };
    recreated.copies = copies_of(location, name, &copies);
    let guest = guest.filter(|guest| unusable(name, guest).is_none());
    if let Some(found) = guest.and_then(|guest| existing(guest, record))
        && let Some(vmid) = found.guest.vmid
    {
        let text = format!("guest {vmid}, with its disk, is destroyed with {location}");
        recreated.reasons.push(Reason::new(text));
        let inside = unknown_guests(inputs, (host, name), &found, true);
        recreated.reasons.extend(inside);
        let GuestRef { uuid, host, .. } = found.guest;
        recreated.guest = Some((vmid, uuid, host));
    }
    recreated
}
