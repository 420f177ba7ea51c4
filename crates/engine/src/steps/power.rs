//! Starts and stops guests. A guest is shut down before it is powered off.

use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::{Action, NodePlan};

use super::{StepOutcome, StepTask, inside, ready};
use crate::ports::{ErrorClass, ObservedGuest, PortError, PowerState, Sent, StopMode};

/// Returns the power state of the guest; `None` when it does not exist.
async fn power(task: &StepTask) -> Result<Option<PowerState>, PortError> {
    require_power(task.inspect(&task.guest()?).await?)
}

/// Returns the power state, or an error when it is unknown.
fn require_power(there: Option<ObservedGuest>) -> Result<Option<PowerState>, PortError> {
    let Some(there) = there else {
        return Ok(None);
    };
    match there.power {
        PowerState::Unknown => Err(PortError {
            class: ErrorClass::Unreachable { sent: Sent::No },
            ..PortError::refused(
                &format!("read the power state of guest {}", there.vmid),
                format!("{} does not report it", there.host),
                "check that its host answers",
            )
        }),
        known => Ok(Some(known)),
    }
}

pub(super) async fn is_running(task: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    let running = power(task).await? == Some(PowerState::Running);
    Ok(running.then(StepOutcome::default))
}

pub(super) async fn is_stopped(task: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    let stopped = matches!(power(task).await?, Some(PowerState::Stopped) | None);
    Ok(stopped.then(StepOutcome::default))
}

pub(super) async fn start(task: &StepTask) -> Result<StepOutcome, PortError> {
    if let Some(outcome) = is_running(task).await? {
        return Ok(outcome);
    }
    let provider = task.provider().await?;
    provider.start(&task.guest()?).await?;
    Ok(StepOutcome::changed())
}

pub(super) async fn stop(task: &StepTask) -> Result<StepOutcome, PortError> {
    let power = power(task).await?;
    let removed = matches!(task.node()?.action, Action::Destroy | Action::Replace);
    if let Some(power) = power.filter(|_| removed) {
        inside::require_empty(task, &task.guest()?, power).await?;
    }
    halt(task, power, Limit::Shutdown).await
}

async fn halt(
    task: &StepTask,
    power: Option<PowerState>,
    grace: Limit,
) -> Result<StepOutcome, PortError> {
    task.context.disconnect(&task.node()?.name);
    if power != Some(PowerState::Running) {
        return Ok(StepOutcome::default());
    }
    let provider = task.provider().await?;
    let grace = task.limits.timeouts.of(grace);
    provider
        .stop(&task.guest()?, StopMode::Graceful(grace))
        .await?;
    Ok(StepOutcome::changed())
}

/// Returns whether a run started the guest of a node, by the plan and by what the step changed.
pub(crate) fn was_started(node: &NodePlan, changed: Option<bool>) -> bool {
    match node.found.as_ref().map(|found| found.power) {
        Some(PowerState::Running) => node.action != Action::Start,
        Some(PowerState::Stopped) => true,
        Some(PowerState::Unknown) => changed == Some(true),
        // It did not exist when the plan was made: this run started it, unless it was found
        // running.
        None => changed != Some(false),
    }
}

/// Returns whether the guest of a node existed when the plan was made.
pub(crate) fn was_there(node: &NodePlan) -> bool {
    let found = node.found.as_ref().map(|found| &found.guest.uuid);
    let wanted = node.wanted.as_ref().map(|wanted| &wanted.uuid);
    found.is_some() && (wanted.is_none() || found == wanted)
}

/// Stops a guest that this run started. One that ran before keeps running, unless it was stopped to
/// be changed: then it is stopped to be changed back. If neither the plan nor the journal records
/// whether it ran, it keeps running.
pub(super) async fn undo_start(task: &StepTask) -> Result<StepOutcome, PortError> {
    let node = task.node()?;
    if !was_started(node, task.changed) {
        return Ok(StepOutcome::default());
    }
    let guest = task.guest()?;
    if was_there(node) {
        return halt(
            task,
            require_power(task.inspect(&guest).await?)?,
            Limit::UndoShutdown,
        )
        .await;
    }
    // A new guest is deleted next, on whichever host it is, if this run created it. That step
    // reports a guest without tags or of another site.
    let there = task.provider().await?.inspect(&guest).await?;
    let there = there.filter(|there| there.uuid.is_some() && task.is_created(there));
    if let Some(there) = &there {
        task.require_site(&guest, there)?;
        inside::require_empty(task, &guest, there.power).await?;
    }
    halt(task, require_power(there)?, Limit::UndoShutdown).await
}

/// Restarts a guest that ran before it was stopped, if it exists. If it hosts others, waits for it:
/// they are undone next.
pub(super) async fn undo_stop(task: &StepTask) -> Result<StepOutcome, PortError> {
    let ran = match task.found()?.power {
        PowerState::Running => true,
        PowerState::Stopped => false,
        PowerState::Unknown => task.changed == Some(true),
    };
    if !ran {
        return Ok(StepOutcome::default());
    }
    let stopped = match power(task).await? {
        None => return Ok(StepOutcome::default()),
        Some(power) => power == PowerState::Stopped,
    };
    if stopped {
        let provider = task.provider().await?;
        provider.start(&task.guest()?).await?;
    }
    let outcome = if task.context.hosts_others(&task.node()?.name) {
        ready::act(task).await?
    } else {
        StepOutcome::default()
    };
    Ok(StepOutcome {
        changed: stopped,
        ..outcome
    })
}
