//! Deletes a guest: only the one the plan found, and only of this site.

use super::{StepOutcome, StepTask, inside};
use crate::ports::{GuestRef, PortError, PowerState, StopMode};

/// No probe: only the deletion distinguishes a deleted guest from one that lost its identity or is
/// still being created.
pub(super) async fn probe(_: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    Ok(None)
}

pub(super) async fn act(task: &StepTask) -> Result<StepOutcome, PortError> {
    let provider = task.provider().await?;
    let guest = task.guest()?;
    let there = task.inspect(&guest).await?;
    if let Some(there) = there
        .as_ref()
        .filter(|there| there.power == PowerState::Running)
    {
        inside::require_empty(task, &guest, there.power).await?;
    }
    task.context.disconnect(&task.node()?.name);
    let Some(there) = there else {
        // What was stored for it may still exist.
        provider.destroy(&guest).await?;
        return Ok(StepOutcome::default());
    };
    // A guest whose creation was interrupted has no id in the plan; it is the only one of its
    // identity.
    let guest = GuestRef {
        vmid: Some(there.vmid),
        ..guest
    };
    if there.power == PowerState::Running {
        // It was started after it was stopped.
        provider.stop(&guest, StopMode::Now).await?;
    }
    provider.destroy(&guest).await?;
    Ok(StepOutcome::changed())
}
