//! Gives a guest an identity of this site; everything else about it stays.

use homestak_core::plan::Reidentification;

use super::{Came, Task};
use crate::ports::{GuestRef, NewIdentity, PortError};

/// What its new identity is, and under which reference it is found then.
fn target(task: &Task) -> Result<(&Reidentification, GuestRef), PortError> {
    let node = task.node()?;
    let new = node.reidentified.as_ref();
    let new = new.ok_or_else(|| PortError::bug("read the plan", &"the node keeps its identity"))?;
    let guest = GuestRef {
        uuid: new.uuid.clone(),
        ..task.found()?.guest.clone()
    };
    Ok((new, guest))
}

fn done(guest: GuestRef, changed: bool) -> Came {
    Came {
        changed,
        guest: Some(guest),
        ..Came::default()
    }
}

pub(super) async fn probe(task: &Task) -> Result<Option<Came>, PortError> {
    let (new, guest) = target(task)?;
    let there = task.provider().await?.inspect(&guest).await?;
    if there.is_none_or(|there| there.site != task.plan.site) {
        return Ok(None);
    }
    let old_uuid = &new.record.guest.uuid;
    task.seeds.rename(old_uuid, &new.uuid).await?;
    Ok(Some(done(guest, false)))
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    if let Some(came) = probe(task).await? {
        return Ok(came);
    }
    let (new, guest) = target(task)?;
    let site = task.plan.site.clone();
    let site = site.ok_or_else(|| PortError::bug("read the plan", &"it names no site"))?;
    let provider = task.provider().await?;
    let old = &task.found()?.guest;
    task.look(old).await?;
    // Before the guest itself: whoever finds it under its new identity must find its host key.
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
