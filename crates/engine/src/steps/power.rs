//! Starts guests and brings them to a halt.
//!
//! In: a step with its node. Out: whether anything was changed.
//! Never: a guest switched off that was not asked to end first.

use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::{Action, NodePlan};

use super::{Came, Task, inside, ready};
use crate::ports::{Class, Halt, ObservedGuest, PortError, PowerState, Sent};

/// Looks whether the guest runs, where the plan says it is; `None` when it is gone.
async fn power(task: &Task) -> Result<Option<PowerState>, PortError> {
    known(task.look(&task.guest()?).await?)
}

/// Returns whether a guest runs, if that is known.
fn known(there: Option<ObservedGuest>) -> Result<Option<PowerState>, PortError> {
    let Some(there) = there else {
        return Ok(None);
    };
    match there.power {
        PowerState::Unknown => Err(PortError {
            class: Class::Unreachable { sent: Sent::No },
            ..PortError::refused(
                &format!("look whether guest {} runs", there.vmid),
                format!("{} does not say", there.host),
                "does its host answer?",
            )
        }),
        known => Ok(Some(known)),
    }
}

pub(super) async fn is_running(task: &Task) -> Result<Option<Came>, PortError> {
    let running = power(task).await? == Some(PowerState::Running);
    Ok(running.then(Came::default))
}

pub(super) async fn is_stopped(task: &Task) -> Result<Option<Came>, PortError> {
    let stopped = matches!(power(task).await?, Some(PowerState::Stopped) | None);
    Ok(stopped.then(Came::default))
}

pub(super) async fn start(task: &Task) -> Result<Came, PortError> {
    if let Some(came) = is_running(task).await? {
        return Ok(came);
    }
    let provider = task.provider().await?;
    provider.start(&task.guest()?).await?;
    Ok(Came::changed())
}

pub(super) async fn stop(task: &Task) -> Result<Came, PortError> {
    let power = power(task).await?;
    let removed = matches!(task.node()?.action, Action::Destroy | Action::Replace);
    if let Some(power) = power.filter(|_| removed) {
        inside::require_empty(task, &task.guest()?, power).await?;
    }
    halt(task, power, Limit::Shutdown).await
}

async fn halt(task: &Task, power: Option<PowerState>, grace: Limit) -> Result<Came, PortError> {
    task.board.leave(&task.node()?.name);
    if power != Some(PowerState::Running) {
        return Ok(Came::default());
    }
    let provider = task.provider().await?;
    let grace = task.limits.timeouts.of(grace);
    provider.stop(&task.guest()?, Halt::Graceful(grace)).await?;
    Ok(Came::changed())
}

/// Tells whether a run started the guest of a node, by the plan and by what its start changed.
pub(crate) fn was_started(node: &NodePlan, changed: Option<bool>) -> bool {
    match node.found.as_ref().map(|found| found.power) {
        Some(PowerState::Running) => node.action != Action::Start,
        Some(PowerState::Stopped) => true,
        Some(PowerState::Unknown) => changed == Some(true),
        // Not there when the plan was made: this run started it, unless it found it running.
        None => changed != Some(false),
    }
}

/// Tells whether the guest of a node was there when the plan was made.
pub(crate) fn was_there(node: &NodePlan) -> bool {
    let found = node.found.as_ref().map(|found| &found.guest.uuid);
    let wanted = node.wanted.as_ref().map(|wanted| &wanted.uuid);
    found.is_some() && (wanted.is_none() || found == wanted)
}

/// Stops a guest that this run started. One that ran before stays, unless it was stopped to be
/// changed: then it is stopped again to be changed back. Where neither the plan nor the journal
/// says whether it ran, it is left running.
pub(super) async fn undo_start(task: &Task) -> Result<Came, PortError> {
    let node = task.node()?;
    if !was_started(node, task.changed) {
        return Ok(Came::default());
    }
    let guest = task.guest()?;
    if was_there(node) {
        return halt(task, known(task.look(&guest).await?)?, Limit::UndoShutdown).await;
    }
    // One that was not there before is removed next, wherever it went, if this run created it. When
    // its tags were removed, or it is of another site, that is what reports it.
    let there = task.provider().await?.inspect(&guest).await?;
    let there = there.filter(|there| there.uuid.is_some() && task.is_created(there));
    if let Some(there) = &there {
        task.require_site(&guest, there)?;
        inside::require_empty(task, &guest, there.power).await?;
    }
    halt(task, known(there)?, Limit::UndoShutdown).await
}

/// Starts a guest again that ran before it was stopped, if it is still there. One that others run
/// on is waited for: what is undone next is inside it.
pub(super) async fn undo_stop(task: &Task) -> Result<Came, PortError> {
    let ran = match task.found()?.power {
        PowerState::Running => true,
        PowerState::Stopped => false,
        PowerState::Unknown => task.changed == Some(true),
    };
    if !ran {
        return Ok(Came::default());
    }
    let stopped = match power(task).await? {
        None => return Ok(Came::default()),
        Some(power) => power == PowerState::Stopped,
    };
    if stopped {
        let provider = task.provider().await?;
        provider.start(&task.guest()?).await?;
    }
    let came = if task.board.hosts_others(&task.node()?.name) {
        ready::act(task).await?
    } else {
        Came::default()
    };
    Ok(Came {
        changed: stopped,
        ..came
    })
}
