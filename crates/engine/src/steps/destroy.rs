//! Removes a guest.
//!
//! In: a step with its node. Out: whether anything was there.
//! Never: a guest other than the one the plan found.

use super::{Came, Task, on_planned_host};
use crate::ports::{Halt, PortError, Power};

pub(super) async fn probe(task: &Task) -> Result<Option<Came>, PortError> {
    let there = task.provider().await?.inspect(&task.guest()?).await?;
    Ok(there.is_none().then(Came::default))
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    let provider = task.provider().await?;
    let guest = task.guest()?;
    task.board.leave(&task.node()?.name);
    let Some(there) = provider.inspect(&guest).await? else {
        // What was stored for it may be left.
        provider.destroy(&guest).await?;
        return Ok(Came::default());
    };
    on_planned_host(&guest, &there)?;
    if there.power == Power::Running {
        // Someone started it since it was stopped.
        provider.stop(&guest, Halt::Now).await?;
    }
    provider.destroy(&guest).await?;
    Ok(Came::changed())
}
