//! Gives a guest an identity of this site; everything else about it stays.

use homestak_core::plan::Reidentification;

use super::{StepOutcome, StepTask};
use crate::ports::{GuestRef, NewIdentity, PortError};

/// Returns the new identity, and the reference to the guest with it.
fn target(task: &StepTask) -> Result<(&Reidentification, GuestRef), PortError> {
    let node = task.node()?;
    let new = node.reidentified.as_ref();
    let new = new.ok_or_else(|| PortError::bug("read the plan", &"the node keeps its identity"))?;
    let guest = GuestRef {
        uuid: new.uuid.clone(),
        ..task.found()?.guest.clone()
    };
    Ok((new, guest))
}

fn done(guest: GuestRef, changed: bool) -> StepOutcome {
    StepOutcome {
        changed,
        guest: Some(guest),
        ..StepOutcome::default()
    }
}

pub(super) async fn probe(task: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    let (new, guest) = target(task)?;
    let there = task.provider().await?.inspect(&guest).await?;
    if there.is_none_or(|there| there.site != task.plan.site) {
        return Ok(None);
    }
    let old_uuid = &new.record.guest.uuid;
    task.seeds.rename(old_uuid, &new.uuid).await?;
    Ok(Some(done(guest, false)))
}

pub(super) async fn act(task: &StepTask) -> Result<StepOutcome, PortError> {
    if let Some(outcome) = probe(task).await? {
        return Ok(outcome);
    }
    let (new, guest) = target(task)?;
    let site = task.plan.site.clone();
    let site = site.ok_or_else(|| PortError::bug("read the plan", &"it names no site"))?;
    let provider = task.provider().await?;
    let old = &task.found()?.guest;
    task.inspect(old).await?;
    // Before the guest itself: a driver that finds the guest under its new identity needs its
    // host key.
    let old_uuid = &new.record.guest.uuid;
    task.seeds.rename(old_uuid, &new.uuid).await?;
    let identity = NewIdentity {
        uuid: new.uuid.clone(),
        site,
        manifest: task.plan.manifest.clone(),
    };
    provider.reidentify(old, &identity).await?;
    Ok(done(guest, true))
}
