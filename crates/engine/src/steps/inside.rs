//! Checks that nothing runs in a guest that is to be deleted, except guests that are deleted too.

use std::sync::Arc;

use homestak_core::plan::{
    Action, NodeLocation, NodePlan, ReasonKind, UNKNOWN_GUESTS, Verb, lost_guests_message,
    remaining_guests, removes_guest,
};

use super::{StepKind, StepTask, planned};
use crate::events::EventKind;
use crate::ports::{
    ErrorClass, GuestKind, GuestRef, ObservedGuest, PortError, PowerState, Provider, Sent,
};

/// Which guests inside a node are expected to be deleted.
#[derive(Clone, Copy)]
pub(crate) enum ExpectedRemovals<'a> {
    /// Those that the plan destroys.
    Planned,
    /// None: guests created by this run were deleted before.
    Removed,
    /// Those that will be deleted before.
    Later(&'a (dyn Fn(&ObservedGuest) -> bool + Sync)),
}

/// Whether the inside of a guest was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsideCheck {
    /// It was, or it hosts no guests.
    Seen,
    /// It was not, which is no reason to keep it.
    Unseen,
}

/// Fails when a guest to be deleted contains guests that are not, or should answer and does not.
/// Warns about a guest that could not be checked, unless the plan did.
pub(super) async fn require_empty(
    task: &StepTask,
    guest: &GuestRef,
    power: PowerState,
) -> Result<(), PortError> {
    let expected = match is_forward(task) {
        true => ExpectedRemovals::Planned,
        false => ExpectedRemovals::Removed,
    };
    let node = task.node()?;
    if check_inside(task, guest, power, expected).await? == InsideCheck::Unseen
        && !is_reported(node)
        && (is_forward(task) || task.context.was_reached(&node.name))
    {
        task.hub.emit(EventKind::Warning {
            subject: task.subject(),
            text: UNKNOWN_GUESTS.to_owned(),
        });
    }
    Ok(())
}

/// Checks the inside of a guest to be deleted. A stopped guest cannot be checked, which the plan
/// or the preview reports. A running one that does not answer is kept, unless the plan reported it
/// as not checked, or this run never reached it.
pub(crate) async fn check_inside(
    task: &StepTask,
    guest: &GuestRef,
    power: PowerState,
    expected: ExpectedRemovals<'_>,
) -> Result<InsideCheck, PortError> {
    let node = task.node()?;
    let hosts = hosts_guests(task, node, guest);
    if hosts == Some(false) {
        return Ok(InsideCheck::Seen);
    }
    let unseen = match hosts {
        Some(_) => InsideCheck::Unseen,
        // Nothing suggests that it hosts guests.
        None => InsideCheck::Seen,
    };
    if power == PowerState::Stopped {
        return Ok(unseen);
    }
    let context = &task.context;
    let opened = match is_forward(task) {
        true => hosts.is_some() && !is_reported(node),
        false => context.hosts_others(&node.name) && context.was_reached(&node.name),
    };
    let doing = format!("{} {guest}", task.step.kind.name());
    match left(task, task.provider().await?, (node, guest), expected).await {
        Ok(guests) if guests.is_empty() => {
            context.set_empty(&node.name);
            Ok(InsideCheck::Seen)
        }
        Ok(guests) => Err(PortError::refused(
            &doing,
            lost_guests_message("run", &guests),
            "move or remove them first, then homestak manifest resume",
        )),
        // It was checked before it began to stop.
        Err(_) if context.was_empty(&node.name) => Ok(InsideCheck::Seen),
        Err(error) if opened => Err(PortError {
            detail: format!(
                "guests in it would be destroyed with it, and they cannot be listed ({error})"
            )
            .into(),
            doing,
            hint: "check that it answers, then homestak manifest resume; a stopped guest is not \
                   checked"
                .to_owned(),
            ..error
        }),
        Err(_) => Ok(unseen),
    }
}

/// Returns the guests inside a guest that are not expected to be deleted.
async fn left(
    task: &StepTask,
    provider: Arc<dyn Provider>,
    (node, guest): (&NodePlan, &GuestRef),
    expected: ExpectedRemovals<'_>,
) -> Result<Vec<String>, PortError> {
    let found = node
        .found
        .as_ref()
        .filter(|found| found.guest.uuid == guest.uuid);
    let recorded = task
        .context
        .address(&node.name)
        .or_else(|| found.and_then(|found| found.address));
    let address = match (provider.address(guest).await, recorded) {
        (Ok(reach), recorded) => reach.address().or(recorded),
        (Err(_), Some(recorded)) => Some(recorded),
        (Err(error), None) => return Err(error),
    };
    let address = address.ok_or_else(|| PortError {
        class: ErrorClass::Unreachable { sent: Sent::No },
        ..PortError::refused(&format!("open `{}`", node.name), "it has no address", "")
    })?;
    let name = node.record_name();
    let inside = task.context.connector().inside(&node.host, name, address);
    let inside = inside.await?;
    let observed = inside.observe().await?;
    let location = NodeLocation::Inside(name.to_owned());
    let children: Vec<&NodePlan> = task
        .plan
        .nodes
        .iter()
        .filter(|child| child.location == location && child.host == node.host)
        .collect();
    let machine = (observed.hosts.len() > 1).then_some(name);
    let mut deleted = Vec::new();
    if let ExpectedRemovals::Removed = expected {
        for there in &observed.guests {
            // The list may be out of date.
            let mut own = children.iter().filter_map(|child| {
                let known = task.context.guest(&child.name).or_else(|| planned(child))?;
                (Some(&known.uuid) == there.uuid.as_ref()).then_some(known)
            });
            let exact = own.next().map(|known| GuestRef {
                vmid: Some(there.vmid),
                ..known
            });
            if let Some(exact) = exact
                && inside.inspect(&exact).await?.is_none()
            {
                deleted.push(there.vmid);
            }
        }
    }
    let mut left = remaining_guests(&observed, machine, |there| match expected {
        ExpectedRemovals::Planned => {
            removes_guest(&task.plan.nodes, &location, there)
                || children
                    .iter()
                    .any(|child| removed_with(task, node, child, there))
        }
        ExpectedRemovals::Removed => deleted.contains(&there.vmid),
        ExpectedRemovals::Later(removed) => removed(there),
    });
    // A node that is deleted with this one has no step that would check it.
    for child in children {
        let mut guests = observed.guests.iter();
        let with = guests.find(|there| removed_with(task, node, child, there));
        let Some((there, uuid)) = with.and_then(|there| Some((there, there.uuid.clone()?))) else {
            continue;
        };
        let guest = GuestRef {
            uuid,
            kind: there.kind,
            vmid: Some(there.vmid),
            host: there.host.clone(),
        };
        let asked =
            there.power != PowerState::Stopped && hosts_guests(task, child, &guest) == Some(true);
        if matches!(expected, ExpectedRemovals::Planned) && asked {
            let of = Box::pin(left_in_child(task, inside.clone(), (child, &guest)));
            left.extend(of.await?);
        }
    }
    Ok(left)
}

async fn left_in_child(
    task: &StepTask,
    inside: Arc<dyn Provider>,
    (child, guest): (&NodePlan, &GuestRef),
) -> Result<Vec<String>, PortError> {
    match left(task, inside, (child, guest), ExpectedRemovals::Planned).await {
        Err(_) if is_reported(child) => Ok(Vec::new()),
        result => result,
    }
}

/// Returns whether a guest belongs to a node that is deleted with its parent: it is recreated, or
/// was not visible when the plan was made.
fn removed_with(
    task: &StepTask,
    parent: &NodePlan,
    child: &NodePlan,
    there: &ObservedGuest,
) -> bool {
    let again = parent.action == Action::Replace && child.action == Action::Create;
    let hidden = task.plan.verb == Verb::Destroy && child.action == Action::Nothing;
    let of = |uuid| there.uuid.as_ref() == Some(uuid) && !there.is_copy();
    let wanted = child.wanted.as_ref().filter(|_| again);
    let found = child.found.as_ref().filter(|_| hidden);
    wanted.is_some_and(|wanted| of(&wanted.uuid))
        || found.is_some_and(|found| {
            of(&found.guest.uuid) && found.guest.vmid.is_none_or(|id| id == there.vmid)
        })
}

/// Returns whether a guest may host guests; `None` when that is not known.
fn hosts_guests(task: &StepTask, node: &NodePlan, guest: &GuestRef) -> Option<bool> {
    let found = node
        .found
        .as_ref()
        .filter(|found| found.guest.uuid == guest.uuid);
    let wanted = node
        .wanted
        .as_ref()
        .filter(|wanted| wanted.uuid == guest.uuid);
    let of = [
        found.and_then(|found| found.hosts_guests),
        wanted.map(|wanted| wanted.hosts_guests),
        Some(true).filter(|_| task.context.hosts_others(node.record_name())),
    ];
    // A container that hosts others was created for it.
    let unknown = (guest.kind == GuestKind::Ct).then_some(false);
    of.into_iter().flatten().max().or(unknown)
}

/// Returns whether the plan reports that the inside of a node was not checked.
fn is_reported(node: &NodePlan) -> bool {
    let mut reasons = node.reasons.iter();
    reasons.any(|reason| reason.kind == ReasonKind::UnknownGuests)
}

/// Returns whether a step deletes as planned, instead of undoing.
fn is_forward(task: &StepTask) -> bool {
    matches!(task.step.kind, StepKind::Stop | StepKind::Destroy)
}
