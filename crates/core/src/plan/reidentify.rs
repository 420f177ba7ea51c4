//! The plan of `reidentify`: guests that were created before sites had an id get an identity of
//! this site. Only the journal tells whose they are.

use std::collections::BTreeMap;

use super::apply::{empty, said};
use super::compare::found;
use super::place::{Offer, offer};
use super::record::NodeRecord;
use super::strays::foreign;
use super::types::{Action, NodePlan, Place, Plan, Refusal, Reidentified};
use super::{Inputs, Look, identity};
use crate::observed::ObservedGuest;

/// Makes the plan of `reidentify`.
pub(super) fn plan(inputs: &Inputs<'_>) -> Plan {
    let mut offers: BTreeMap<Place, Offer> = BTreeMap::new();
    let mut nodes = Vec::new();
    let mut refusals = Vec::new();
    for record in inputs.records.values() {
        offers
            .entry(record.place.clone())
            .or_insert_with(|| offer(inputs, &record.place));
        if record.site.is_some() {
            continue;
        }
        match seen(inputs, record) {
            Ok(guest) => nodes.extend(node(inputs, record, guest)),
            Err(why) => refusals.push(Refusal {
                node: Some(record.name.clone()),
                reason: said(&why),
                hint: "`homestak manifest forget` removes the record of a guest that is gone"
                    .to_owned(),
            }),
        }
    }
    nodes.sort_by_key(|node| node.depth);
    let records = inputs.records.values();
    let claimed = records.map(|record| record.guest.uuid.clone()).collect();
    let foreign = foreign(inputs, &offers, Vec::new(), &nodes, &claimed);
    empty(inputs, nodes, Vec::new(), foreign, refusals)
}

/// Finds the guest of a record: at its id, with the identity that is recorded or the new one,
/// which an interrupted run may have given to it.
fn seen<'a>(inputs: &Inputs<'a>, record: &NodeRecord) -> Result<&'a ObservedGuest, String> {
    let observed = match inputs.looks.get(&record.place) {
        Some(Look::Seen(observed)) => observed,
        Some(Look::Unseen(why)) => return Err(why.clone()),
        None => return Err(format!("{} cannot be seen", record.place)),
    };
    let new = new_identity(inputs, record);
    let guest = observed.guests.iter().find(|guest| {
        let recorded = guest.site.is_none() && guest.uuid.as_ref() == Some(&record.guest.uuid);
        let renewed = guest.site.as_ref() == Some(inputs.site) && guest.uuid.as_ref() == Some(&new);
        Some(guest.vmid) == record.guest.vmid && (recorded || renewed)
    });
    guest.ok_or_else(|| match record.guest.vmid {
        Some(vmid) if observed.guests.iter().any(|guest| guest.vmid == vmid) => format!(
            "guest {vmid} does not carry the recorded identity of `{}`",
            record.name
        ),
        Some(vmid) => format!("guest {vmid} of `{}` is not there", record.name),
        None => format!("nothing records which guest `{}` is", record.name),
    })
}

fn new_identity(inputs: &Inputs<'_>, record: &NodeRecord) -> crate::observed::GuestUuid {
    let manifest = &inputs.resolved.name;
    identity::uuid(inputs.site, manifest, &record.host, &record.name)
}

fn node(inputs: &Inputs<'_>, record: &NodeRecord, guest: &ObservedGuest) -> Option<NodePlan> {
    let found = found(guest, Some(record))?;
    let depth = inputs.resolved.node(&record.name);
    let depth = depth.map_or(
        usize::from(matches!(record.place, Place::Inside(_))),
        |node| node.depth,
    );
    Some(NodePlan {
        name: record.name.clone(),
        host: record.host.clone(),
        place: record.place.clone(),
        depth,
        action: Action::Reidentify,
        reasons: vec![said(&format!(
            "guest {} on {} was created before this site had an id",
            guest.vmid, guest.host
        ))],
        wanted: None,
        found: Some(found),
        config: None,
        reidentified: Some(Box::new(Reidentified {
            uuid: new_identity(inputs, record),
            record: record.clone(),
        })),
        recorded: None,
    })
}
