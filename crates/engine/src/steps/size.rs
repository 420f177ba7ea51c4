//! Changes how big a guest is.
//!
//! In: a step with its node. Out: whether anything was changed.
//! Never: a smaller disk.

use super::{Came, Task};
use crate::ports::PortError;

pub(super) async fn is_shaped(task: &Task) -> Result<Option<Came>, PortError> {
    let wanted = task.wanted()?;
    let there = task.look(&task.guest()?).await?;
    let shaped = there.is_some_and(|there| {
        there.cores == Some(wanted.cores) && there.memory == Some(wanted.memory.into())
    });
    Ok(shaped.then(Came::default))
}

pub(super) async fn is_grown(task: &Task) -> Result<Option<Came>, PortError> {
    let wanted = task.wanted()?;
    let there = task.look(&task.guest()?).await?;
    let grown = there.and_then(|there| there.disk);
    Ok(grown
        .is_some_and(|disk| disk >= wanted.disk.into())
        .then(Came::default))
}

pub(super) async fn reshape(task: &Task) -> Result<Came, PortError> {
    let wanted = task.wanted()?;
    let guest = task.guest()?;
    task.look(&guest).await?;
    let provider = task.provider().await?;
    provider
        .reshape(&guest, wanted.cores, wanted.memory)
        .await?;
    Ok(Came::changed())
}

pub(super) async fn grow(task: &Task) -> Result<Came, PortError> {
    let guest = task.guest()?;
    task.look(&guest).await?;
    let provider = task.provider().await?;
    provider.grow_disk(&guest, task.wanted()?.disk).await?;
    Ok(Came::changed())
}

/// Gives the guest back what it had.
pub(super) async fn undo_reshape(task: &Task) -> Result<Came, PortError> {
    let found = task.found()?;
    let (Some(cores), Some(memory)) = (found.cores, found.memory) else {
        return Ok(Came::default());
    };
    let guest = task.guest()?;
    if task.look(&guest).await?.is_none() {
        return Ok(Came::default());
    }
    let provider = task.provider().await?;
    provider.reshape(&guest, cores, memory).await?;
    Ok(Came::changed())
}
