//! Makes a guest, stopped, and removes it again.
//!
//! In: a step with its node. Out: which guest it is.
//! Never: a second guest for one node.

use super::{Came, Task};
use crate::ports::{DiskSource, GuestKind, Halt, NewGuest, Nic, PortError, Power};

/// A guest that is there may still be half-made: only making it completes it.
pub(super) async fn probe(_: &Task) -> Result<Option<Came>, PortError> {
    Ok(None)
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    let new = new_guest(task)?;
    let provider = task.provider().await?;
    let guest = provider.create(&new).await?;
    Ok(Came {
        changed: true,
        guest: Some(guest),
        address: None,
    })
}

/// Removes the guest, if it came to be.
pub(super) async fn undo(task: &Task) -> Result<Came, PortError> {
    let guest = task.guest()?;
    let provider = task.provider().await?;
    let Some(there) = provider.inspect(&guest).await? else {
        // What belongs to it may have come before it.
        provider.destroy(&guest).await?;
        return Ok(Came::default());
    };
    if there.power != Power::Stopped {
        provider.stop(&guest, Halt::Now).await?;
    }
    provider.destroy(&guest).await?;
    Ok(Came::changed())
}

fn new_guest(task: &Task) -> Result<NewGuest, PortError> {
    let node = task.node()?;
    let wanted = task.wanted()?;
    let image = wanted.image.and_then(|at| task.plan.images.get(at));
    let file = image.map_or_else(|| wanted.source.clone(), |image| image.file.clone());
    let source = match wanted.kind {
        GuestKind::Vm => DiskSource::Image(file),
        GuestKind::Ct => DiskSource::Template(file),
    };
    let seed = task.seeds.seed(&node.name, wanted)?;
    Ok(NewGuest {
        uuid: wanted.uuid.clone(),
        kind: wanted.kind,
        name: node.name.clone(),
        manifest: task.plan.manifest.clone(),
        host: wanted.host.clone(),
        vmid: wanted.vmid,
        cores: wanted.cores,
        memory: wanted.memory,
        disk: wanted.disk,
        storage: wanted.storage.clone(),
        image_storage: wanted.image_storage.clone(),
        source,
        nic: Nic {
            mac: wanted.mac.clone(),
            bridge: wanted.bridge.clone(),
            vlan: wanted.vlan,
            address: wanted.address,
            gateway: wanted.gateway,
        },
        unprivileged: wanted.unprivileged,
        ssh_keys: seed.identity.keys.clone(),
        seed: Some(seed),
        hosts_guests: wanted.hosts_guests,
    })
}
