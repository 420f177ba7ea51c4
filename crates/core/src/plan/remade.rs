//! Nodes that are created again because the node they run in is: what they lose.

use crate::observed::GuestRef;
use crate::resolve::{Origin, ResolvedNode};

use super::apply::said;
use super::compare::{found, reason};
use super::owner::{Match, Owners};
use super::record::NodeRecord;
use super::strays::{Exact, copies_of, unseen_inside, unusable};
use super::types::{Foreign, Place, Reason};
use super::{Inputs, Look};

/// A node whose parent is created.
pub(super) struct Remade {
    /// Why it is created, and what it loses.
    pub(super) reasons: Vec<Reason>,
    /// The guest that goes with the old parent.
    pub(super) guest: Option<Exact>,
    /// Guests there that carry its identity without being its guest.
    pub(super) copies: Vec<Foreign>,
}

/// Says why a node is created whose parent is, and which guest of it goes with the old parent, if
/// that is `replaced`.
pub(super) fn remade(
    inputs: &Inputs<'_>,
    owners: &Owners<'_>,
    node: &ResolvedNode,
    (place, host): (&Place, &str),
    (record, replaced): (Option<&NodeRecord>, bool),
) -> Remade {
    let name = node.name.as_str();
    let text = "the manifest names it, and the node it runs on is made".to_owned();
    let here = Origin::Written(node.span);
    let mut remade = Remade {
        reasons: vec![reason(inputs, text, Some(&here))],
        guest: None,
        copies: Vec::new(),
    };
    let Some(Look::Seen(_)) = inputs.looks.get(place) else {
        let recorded = record.filter(|record| replaced && record.place == *place);
        remade.reasons.extend(recorded.and_then(|record| {
            let vmid = record.guest.vmid?;
            Some(said(&format!(
                "guest {vmid}, which is recorded in {place}, is destroyed with it if it is there"
            )))
        }));
        return remade;
    };
    let (guest, copies) = match owners.of_node(place, (host, name), record) {
        Match::Guest(guest, copies) => (Some(guest), copies),
        Match::Copies(copies) => (None, copies),
        Match::Absent | Match::Ambiguous(_) | Match::Edited(_) => (None, Vec::new()),
    };
    remade.copies = copies_of(place, name, &copies);
    let guest = guest.filter(|guest| unusable(name, guest).is_none());
    if let Some(found) = guest.and_then(|guest| found(guest, record))
        && let Some(vmid) = found.guest.vmid
    {
        let text = format!("guest {vmid}, with its disk, is destroyed with {place}");
        remade.reasons.push(said(&text));
        let inside = unseen_inside(inputs, (host, name), &found, true);
        remade.reasons.extend(inside);
        let GuestRef { uuid, host, .. } = found.guest;
        remade.guest = Some((vmid, uuid, host));
    }
    remade
}
