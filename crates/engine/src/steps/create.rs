//! Makes a guest, stopped, and removes it again.
//!
//! In: a step with its node. Out: which guest it is.
//! Never: a second guest for one node.

use homestak_core::plan::Wanted;

use super::{Came, Task};
use crate::ports::{DiskSource, GuestKind, Halt, NewGuest, Nic, PortError, Power, Provider};

/// A guest that is there may still be half-made: only making it completes it.
pub(super) async fn probe(_: &Task) -> Result<Option<Came>, PortError> {
    Ok(None)
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    let provider = task.provider().await?;
    let wanted = addressed(&*provider, task.wanted()?).await?;
    let new = new_guest(task, &wanted)?;
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

/// Gives the guest its address, where the place gives out addresses itself.
async fn addressed(provider: &dyn Provider, wanted: &Wanted) -> Result<Wanted, PortError> {
    let asked = wanted.address.map(|(address, _)| address);
    let mut wanted = wanted.clone();
    if let Some(leased) = provider.lease(&wanted.uuid, asked).await? {
        wanted.address = Some((leased.address, leased.prefix));
        wanted.gateway = Some(leased.gateway);
        wanted.dns = leased.dns;
    }
    Ok(wanted)
}

fn new_guest(task: &Task, wanted: &Wanted) -> Result<NewGuest, PortError> {
    let node = task.node()?;
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
