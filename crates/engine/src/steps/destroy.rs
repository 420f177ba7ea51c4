//! Removes a guest.
//!
//! In: a step with its node. Out: whether anything was there.
//! Never: a guest other than the one the plan found.

use super::{Came, Task};
use crate::ports::{Halt, PortError, Power};

pub(super) async fn probe(task: &Task) -> Result<Option<Came>, PortError> {
    let there = task.provider().await?.inspect(&task.guest()?).await?;
    Ok(there.is_none().then(Came::default))
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    let provider = task.provider().await?;
    let guest = task.guest()?;
    task.board.leave(&task.node()?.name);
    let there = provider.inspect(&guest).await?;
    if there.is_some_and(|there| there.power == Power::Running) {
        // Someone started it since it was stopped.
        provider.stop(&guest, Halt::Now).await?;
    }
    provider.destroy(&guest).await?;
    Ok(Came::changed())
}
