//! What runs in a guest that is to be removed: it would be destroyed with it.
//!
//! In: a step with its node, before the guest is stopped or removed. Out: whether it was asked.
//! Never: a hypervisor removed with a guest in it that the run does not remove.

use std::sync::Arc;

use homestak_core::plan::{
    Action, NodeLocation, NodePlan, ReasonKind, UNKNOWN_GUESTS, Verb, lost_guests_message,
    remaining_guests, removes_guest,
};

use super::{StepKind, Task, planned};
use crate::events::What;
use crate::ports::{
    Class, GuestKind, GuestRef, ObservedGuest, PortError, PowerState, Provider, Sent,
};

/// Which guests in a node go on purpose.
#[derive(Clone, Copy)]
pub(crate) enum Going<'a> {
    /// Those that the plan removes.
    Planned,
    /// None: what was created in it was removed before.
    Removed,
    /// Those that will be removed before.
    Later(&'a (dyn Fn(&ObservedGuest) -> bool + Sync)),
}

/// Whether a guest was asked what runs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// It was, or there is nothing to ask.
    Seen,
    /// It was not, and that is no reason to keep it.
    Unseen,
}

/// Refuses to go on when guests are in a guest that goes which do not go on purpose, or when it
/// should answer and does not. The person is told of what was not seen, unless the plan said so.
pub(super) async fn require_empty(
    task: &Task,
    guest: &GuestRef,
    power: PowerState,
) -> Result<(), PortError> {
    let going = match is_forward(task) {
        true => Going::Planned,
        false => Going::Removed,
    };
    let node = task.node()?;
    if look(task, guest, power, going).await? == Inside::Unseen
        && !is_said(node)
        && (is_forward(task) || task.board.was_reached(&node.name))
    {
        task.hub.tell(What::Warning {
            subject: task.subject(),
            text: UNKNOWN_GUESTS.to_owned(),
        });
    }
    Ok(())
}

/// Looks into a guest that goes. One that does not run cannot be asked, which the plan or the
/// preview says. One that runs and does not answer is kept, unless the plan said that it was not
/// seen, or this run never reached anything in it.
pub(crate) async fn look(
    task: &Task,
    guest: &GuestRef,
    power: PowerState,
    going: Going<'_>,
) -> Result<Inside, PortError> {
    let node = task.node()?;
    let hosts = hosts_guests(task, node, guest);
    if hosts == Some(false) {
        return Ok(Inside::Seen);
    }
    let unseen = match hosts {
        Some(_) => Inside::Unseen,
        // Nothing suggests that it hosts guests.
        None => Inside::Seen,
    };
    if power == PowerState::Stopped {
        return Ok(unseen);
    }
    let board = &task.board;
    let opened = match is_forward(task) {
        true => hosts.is_some() && !is_said(node),
        false => board.hosts_others(&node.name) && board.was_reached(&node.name),
    };
    let doing = format!("{} {guest}", task.step.kind.word());
    match left(task, task.provider().await?, (node, guest), going).await {
        Ok(guests) if guests.is_empty() => {
            board.found_empty(&node.name);
            Ok(Inside::Seen)
        }
        Ok(guests) => Err(PortError::refused(
            &doing,
            lost_guests_message("run", &guests),
            "move or remove them first, then homestak manifest resume",
        )),
        // It was asked before it began to stop.
        Err(_) if board.was_empty(&node.name) => Ok(Inside::Seen),
        Err(error) if opened => Err(PortError {
            detail: format!(
                "what runs in it would be destroyed with it, and is not known ({error})"
            )
            .into(),
            doing,
            hint: "does it answer? homestak manifest resume asks it again; one that is stopped is \
                   not asked"
                .to_owned(),
            ..error
        }),
        Err(_) => Ok(unseen),
    }
}

/// Returns the guests in a guest that do not go on purpose.
async fn left(
    task: &Task,
    provider: Arc<dyn Provider>,
    (node, guest): (&NodePlan, &GuestRef),
    going: Going<'_>,
) -> Result<Vec<String>, PortError> {
    let found = node
        .found
        .as_ref()
        .filter(|found| found.guest.uuid == guest.uuid);
    let recorded = task
        .board
        .address(&node.name)
        .or_else(|| found.and_then(|found| found.address));
    let address = match (provider.address(guest).await, recorded) {
        (Ok(reach), recorded) => reach.address().or(recorded),
        (Err(_), Some(recorded)) => Some(recorded),
        (Err(error), None) => return Err(error),
    };
    let address = address.ok_or_else(|| PortError {
        class: Class::Unreachable { sent: Sent::No },
        ..PortError::refused(&format!("open `{}`", node.name), "it has no address", "")
    })?;
    let name = node.record_name();
    let inside = task.board.places().inside(&node.host, name, address);
    let inside = inside.await?;
    let observed = inside.observe().await?;
    let place = NodeLocation::Inside(name.to_owned());
    let children: Vec<&NodePlan> = task
        .plan
        .nodes
        .iter()
        .filter(|child| child.location == place && child.host == node.host)
        .collect();
    let machine = (observed.hosts.len() > 1).then_some(name);
    let mut gone = Vec::new();
    if let Going::Removed = going {
        for there in &observed.guests {
            // The list may be late.
            let mut own = children.iter().filter_map(|child| {
                let known = task.board.guest(&child.name).or_else(|| planned(child))?;
                (Some(&known.uuid) == there.uuid.as_ref()).then_some(known)
            });
            let exact = own.next().map(|known| GuestRef {
                vmid: Some(there.vmid),
                ..known
            });
            if let Some(exact) = exact
                && inside.inspect(&exact).await?.is_none()
            {
                gone.push(there.vmid);
            }
        }
    }
    let mut left = remaining_guests(&observed, machine, |there| match going {
        Going::Planned => {
            removes_guest(&task.plan.nodes, &place, there)
                || children
                    .iter()
                    .any(|child| goes_with(task, node, child, there))
        }
        Going::Removed => gone.contains(&there.vmid),
        Going::Later(removed) => removed(there),
    });
    // A node that goes with this one has no step of its own that would look into it.
    for child in children {
        let mut guests = observed.guests.iter();
        let with = guests.find(|there| goes_with(task, node, child, there));
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
        if matches!(going, Going::Planned) && asked {
            let of = Box::pin(left_in_child(task, inside.clone(), (child, &guest)));
            left.extend(of.await?);
        }
    }
    Ok(left)
}

async fn left_in_child(
    task: &Task,
    inside: Arc<dyn Provider>,
    (child, guest): (&NodePlan, &GuestRef),
) -> Result<Vec<String>, PortError> {
    match left(task, inside, (child, guest), Going::Planned).await {
        Err(_) if is_said(child) => Ok(Vec::new()),
        result => result,
    }
}

/// Tells whether a guest is that of a node which the plan says goes with the node it runs in: it is
/// created again, or could not be seen when the plan was made.
fn goes_with(task: &Task, parent: &NodePlan, child: &NodePlan, there: &ObservedGuest) -> bool {
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

/// Tells whether guests may run in a guest of a node; `None` when nothing is known about that.
fn hosts_guests(task: &Task, node: &NodePlan, guest: &GuestRef) -> Option<bool> {
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
        Some(true).filter(|_| task.board.hosts_others(node.record_name())),
    ];
    // A container that hosts others was created for that.
    let unknown = (guest.kind == GuestKind::Ct).then_some(false);
    of.into_iter().flatten().max().or(unknown)
}

/// Tells whether the plan says that nobody saw what runs in a node.
fn is_said(node: &NodePlan) -> bool {
    let mut reasons = node.reasons.iter();
    reasons.any(|reason| reason.kind == ReasonKind::UnknownGuests)
}

/// Tells whether a step removes what the plan says, and does not undo what it did.
fn is_forward(task: &Task) -> bool {
    matches!(task.step.kind, StepKind::Stop | StepKind::Destroy)
}
