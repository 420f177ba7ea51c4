//! The plan of `manifest reidentify`: guests that were created before sites had ids get an identity
//! of this site. Only guests in the journal are considered.

use std::collections::BTreeMap;

use super::apply::new_plan;
use super::compare::existing;
use super::host_profile::{HostProfile, profile};
use super::orphans::foreign;
use super::record::NodeRecord;
use super::types::{Action, NodeLocation, NodePlan, Plan, Reason, Refusal, Reidentification};
use super::{Observation, PlanInputs, identity};
use crate::observed::ObservedGuest;

/// Makes the plan of `reidentify`.
pub(super) fn plan(inputs: &PlanInputs<'_>) -> Plan {
    let mut profiles: BTreeMap<NodeLocation, HostProfile> = BTreeMap::new();
    let mut nodes = Vec::new();
    let mut refusals = Vec::new();
    for record in inputs.records.values() {
        profiles
            .entry(record.location.clone())
            .or_insert_with(|| profile(inputs, &record.location));
        if record.site.is_some() {
            continue;
        }
        match guest_of(inputs, record) {
            Ok(guest) => nodes.extend(node(inputs, record, guest)),
            Err(why) => refusals.push(Refusal {
                node: Some(record.name.clone()),
                reason: Reason::new(why),
                hint:
                    "`homestak manifest forget` removes the record of a guest that no longer exists"
                        .to_owned(),
            }),
        }
    }
    nodes.sort_by_key(|node| node.depth);
    let records = inputs.records.values();
    let claimed = records.map(|record| record.guest.uuid.clone()).collect();
    let foreign = foreign(inputs, &profiles, Vec::new(), &nodes, &claimed);
    new_plan(inputs, nodes, Vec::new(), foreign, refusals)
}

/// Finds the guest of a record: it has the recorded id, and either the recorded identity or the new
/// one, which an interrupted run may have set.
fn guest_of<'a>(inputs: &PlanInputs<'a>, record: &NodeRecord) -> Result<&'a ObservedGuest, String> {
    let observed = match inputs.observations.get(&record.location) {
        Some(Observation::Available(observed)) => observed,
        Some(Observation::Unavailable(why)) => return Err(why.clone()),
        None => return Err(format!("{} could not be observed", record.location)),
    };
    let new_uuid = new_identity(inputs, record);
    let guest = observed.guests.iter().find(|guest| {
        let recorded = guest.site.is_none() && guest.uuid.as_ref() == Some(&record.guest.uuid);
        let reidentified =
            guest.site.as_ref() == Some(inputs.site) && guest.uuid.as_ref() == Some(&new_uuid);
        Some(guest.vmid) == record.guest.vmid && (recorded || reidentified)
    });
    guest.ok_or_else(|| match record.guest.vmid {
        Some(vmid) if observed.guests.iter().any(|guest| guest.vmid == vmid) => format!(
            "guest {vmid} does not carry the recorded identity of `{}`",
            record.name
        ),
        Some(vmid) => format!("guest {vmid} of `{}` does not exist", record.name),
        None => format!("the guest of `{}` is not recorded", record.name),
    })
}

fn new_identity(inputs: &PlanInputs<'_>, record: &NodeRecord) -> crate::observed::GuestUuid {
    let manifest = &inputs.resolved.name;
    identity::uuid(inputs.site, manifest, &record.host, &record.name)
}

fn node(inputs: &PlanInputs<'_>, record: &NodeRecord, guest: &ObservedGuest) -> Option<NodePlan> {
    let found = existing(guest, Some(record))?;
    let depth = inputs.resolved.node(&record.name);
    let depth = depth.map_or(
        usize::from(matches!(record.location, NodeLocation::Inside(_))),
        |node| node.depth,
    );
    let reason = format!(
        "guest {} on {} was created before this site had an id",
        guest.vmid, guest.host
    );
    let at = (record.host.as_str(), &record.location);
    let reasons = vec![Reason::new(reason)];
    Some(NodePlan {
        found: Some(found),
        reidentified: Some(Box::new(Reidentification {
            uuid: new_identity(inputs, record),
            record: record.clone(),
        })),
        ..NodePlan::new(&record.name, at, depth, Action::Reidentify, reasons)
    })
}
