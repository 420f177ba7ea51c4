//! Changes the CPUs, memory and disk of a guest. Disks never shrink.

use super::{StepOutcome, StepTask};
use crate::ports::PortError;

pub(super) async fn has_size(task: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    let wanted = task.wanted()?;
    let there = task.inspect(&task.guest()?).await?;
    let has_size = there.is_some_and(|there| {
        there.cores == Some(wanted.cores) && there.memory == Some(wanted.memory.into())
    });
    Ok(has_size.then(StepOutcome::default))
}

pub(super) async fn is_grown(task: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    let wanted = task.wanted()?;
    let there = task.inspect(&task.guest()?).await?;
    let grown = there.and_then(|there| there.disk);
    Ok(grown
        .is_some_and(|disk| disk >= wanted.disk.into())
        .then(StepOutcome::default))
}

pub(super) async fn reshape(task: &StepTask) -> Result<StepOutcome, PortError> {
    let wanted = task.wanted()?;
    let guest = task.guest()?;
    task.inspect(&guest).await?;
    let provider = task.provider().await?;
    provider
        .reshape(&guest, wanted.cores, wanted.memory)
        .await?;
    Ok(StepOutcome::changed())
}

pub(super) async fn grow(task: &StepTask) -> Result<StepOutcome, PortError> {
    let guest = task.guest()?;
    task.inspect(&guest).await?;
    let provider = task.provider().await?;
    provider.grow_disk(&guest, task.wanted()?.disk).await?;
    Ok(StepOutcome::changed())
}

/// Restores the earlier CPUs and memory.
pub(super) async fn undo_reshape(task: &StepTask) -> Result<StepOutcome, PortError> {
    let found = task.found()?;
    let (Some(cores), Some(memory)) = (found.cores, found.memory) else {
        return Ok(StepOutcome::default());
    };
    let guest = task.guest()?;
    if task.inspect(&guest).await?.is_none() {
        return Ok(StepOutcome::default());
    }
    let provider = task.provider().await?;
    provider.reshape(&guest, cores, memory).await?;
    Ok(StepOutcome::changed())
}
