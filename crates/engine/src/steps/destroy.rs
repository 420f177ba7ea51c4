//! Removes a guest.
//!
//! In: a step with its node. Out: whether anything was there.
//! Never: a guest other than the one the plan found, or one of another site.

use super::{Came, Task, inside};
use crate::ports::{GuestRef, Halt, PortError, PowerState};

/// None: removing what is gone is no error, and only it tells a guest that is gone from one that
/// lost its identity or is still being created.
pub(super) async fn probe(_: &Task) -> Result<Option<Came>, PortError> {
    Ok(None)
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    let provider = task.provider().await?;
    let guest = task.guest()?;
    let there = task.look(&guest).await?;
    if let Some(there) = there
        .as_ref()
        .filter(|there| there.power == PowerState::Running)
    {
        inside::require_empty(task, &guest, there.power).await?;
    }
    task.board.leave(&task.node()?.name);
    let Some(there) = there else {
        // What was stored for it may be left.
        provider.destroy(&guest).await?;
        return Ok(Came::default());
    };
    // A guest whose creation was interrupted has no id in the plan; it is the only one.
    let guest = GuestRef {
        vmid: Some(there.vmid),
        ..guest
    };
    if there.power == PowerState::Running {
        // Someone started it since it was stopped.
        provider.stop(&guest, Halt::Now).await?;
    }
    provider.destroy(&guest).await?;
    Ok(Came::changed())
}
