//! Makes a guest, stopped, and removes it again.
//!
//! In: a step with its node. Out: which guest it is.
//! Never: a second guest for one node.

use std::time::Duration;

use homestak_core::plan::DesiredGuest;

use super::{Came, Task, inside};
use crate::ports::{
    DiskSource, GuestKind, GuestPlan, GuestRef, Halt, NewGuest, ObservedGuest, PortError,
    PowerState, Provider,
};

/// How long a request may take to arrive that was on its way when the program ended.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// A guest that is there may still be half-made: only making it completes it.
pub(super) async fn probe(_: &Task) -> Result<Option<Came>, PortError> {
    Ok(None)
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    let provider = task.provider().await?;
    let wanted = addressed(&*provider, task.wanted()?).await?;
    let new = new_guest(task, &wanted).await?;
    let guest = provider.create(&new).await?;
    Ok(Came {
        changed: true,
        guest: Some(guest),
        ..Came::default()
    })
}

/// What undoing a create does to the guest.
pub(crate) enum Removal {
    /// Nothing: it is not there.
    Gone,
    /// Nothing: it does not carry the mark of this run, so that it was there before, or another
    /// driver created it meanwhile.
    Kept(ObservedGuest),
    /// It is removed, and so is what was not seen in it.
    Created {
        /// The guest.
        there: ObservedGuest,
        /// Whether what runs in it was not seen.
        unseen: bool,
    },
}

/// Looks what undoing does to the guest: only its mark proves that this run created it.
pub(crate) async fn removal(task: &Task) -> Result<Removal, PortError> {
    let guest = task.guest()?;
    let Some(there) = task.provider().await?.inspect(&guest).await? else {
        return Ok(Removal::Gone);
    };
    task.require_tags(&there)?;
    if !task.is_created(&there) {
        return Ok(Removal::Kept(there));
    }
    task.require_site(&guest, &there)?;
    Ok(Removal::Created {
        there,
        unseen: false,
    })
}

/// Looks until a request of which no answer is recorded has arrived, or cannot any more.
async fn settled_removal(task: &Task) -> Result<Removal, PortError> {
    let mut left = match task.is_unanswered() {
        true => ARRIVES_WITHIN,
        false => Duration::ZERO,
    };
    loop {
        let seen = removal(task).await?;
        if left.is_zero() || !matches!(seen, Removal::Gone) {
            return Ok(seen);
        }
        if left == ARRIVES_WITHIN {
            task.waits_for("a request that may still arrive");
        }
        let pause = left.min(Duration::from_secs(1));
        task.clock.sleep(pause).await;
        left -= pause;
    }
}

/// Removes the guest if this run created it.
pub(super) async fn undo(task: &Task) -> Result<Came, PortError> {
    let guest = task.guest()?;
    let provider = task.provider().await?;
    let there = match settled_removal(task).await? {
        Removal::Gone => {
            // What belongs to it may have come before it.
            let never = GuestRef {
                vmid: None,
                ..guest
            };
            provider.destroy(&never).await?;
            return Ok(Came::default());
        }
        Removal::Kept(_) => {
            return Ok(Came {
                kept: true,
                ..Came::default()
            });
        }
        Removal::Created { there, .. } => there,
    };
    let guest = GuestRef {
        vmid: Some(there.vmid),
        host: there.host,
        ..guest
    };
    if there.power != PowerState::Stopped {
        inside::require_empty(task, &guest, there.power).await?;
        provider.stop(&guest, Halt::Now).await?;
    }
    provider.destroy(&guest).await?;
    Ok(Came::changed())
}

/// Gives the guest its address, where the place gives out addresses itself.
async fn addressed(
    provider: &dyn Provider,
    wanted: &DesiredGuest,
) -> Result<DesiredGuest, PortError> {
    let asked = wanted.nic.address.map(|(address, _)| address);
    let mut wanted = wanted.clone();
    if let Some(leased) = provider.lease(&wanted.uuid, asked).await? {
        wanted.guest.nic.address = Some((leased.address, leased.prefix));
        wanted.guest.nic.gateway = Some(leased.gateway);
        wanted.dns = leased.dns;
    }
    Ok(wanted)
}

async fn new_guest(task: &Task, wanted: &DesiredGuest) -> Result<NewGuest, PortError> {
    let node = task.node()?;
    let image = wanted.image.and_then(|at| task.plan.images.get(at));
    let file = image.map_or_else(|| wanted.source.clone(), |image| image.file.clone());
    let source = match wanted.kind {
        GuestKind::Vm => DiskSource::Image(file),
        GuestKind::Ct => DiskSource::Template(file),
    };
    let seed = task.seeds.seed(&node.name, wanted).await?;
    let site = task.plan.site.clone();
    let site = site.ok_or_else(|| PortError::bug("read the plan", &"it names no site"))?;
    // Where the journal or the plan knows the guest, that one is completed and no other.
    let known = task.guest()?;
    let known = known.vmid.filter(|_| known.uuid == wanted.uuid);
    Ok(NewGuest {
        guest: GuestPlan {
            vmid: known.or(wanted.vmid),
            ..wanted.guest.clone()
        },
        name: node.name.clone(),
        site,
        manifest: task.plan.manifest.clone(),
        run: task.mark.clone(),
        source,
        ssh_keys: seed.identity.keys.clone(),
        seed: Some(seed),
        first_form: task.is_first_form(&wanted.uuid)?,
    })
}
