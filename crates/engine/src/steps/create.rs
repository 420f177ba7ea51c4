//! Creates a guest, stopped, and deletes it again. A node never gets a second guest.

use std::time::Duration;

use homestak_core::plan::DesiredGuest;

use super::{StepOutcome, StepTask, inside};
use crate::ports::{
    DiskSource, GuestKind, GuestPlan, GuestRef, NewGuest, ObservedGuest, PortError, PowerState,
    Provider, SeedRequest, StopMode,
};

/// How long a request that was in flight when the program ended may take to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// No probe: an existing guest may be incomplete, and only creating completes it.
pub(super) async fn probe(_: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    Ok(None)
}

pub(super) async fn act(task: &StepTask) -> Result<StepOutcome, PortError> {
    let provider = task.provider().await?;
    let wanted = addressed(&*provider, task.wanted()?).await?;
    let new = new_guest(task, &wanted).await?;
    let guest = provider.create(&new).await?;
    Ok(StepOutcome {
        changed: true,
        guest: Some(guest),
        ..StepOutcome::default()
    })
}

/// What undoing a create does to the guest.
pub(crate) enum Removal {
    /// Nothing: it does not exist.
    Missing,
    /// Nothing: it does not have the mark of this run, because it existed before or another driver
    /// created it.
    Kept(ObservedGuest),
    /// It is deleted, with whatever is inside.
    Created {
        /// The guest.
        there: ObservedGuest,
        /// Whether what runs in it is unknown.
        unseen: bool,
    },
}

/// Inspects the guest to find out what undoing does.
pub(crate) async fn removal(task: &StepTask) -> Result<Removal, PortError> {
    let guest = task.guest()?;
    let Some(there) = task.provider().await?.inspect(&guest).await? else {
        return Ok(Removal::Missing);
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

/// Inspects the guest until a request without a recorded answer has arrived, or no longer can.
async fn settled_removal(task: &StepTask) -> Result<Removal, PortError> {
    let mut left = match task.is_unanswered() {
        true => ARRIVES_WITHIN,
        false => Duration::ZERO,
    };
    loop {
        let seen = removal(task).await?;
        if left.is_zero() || !matches!(seen, Removal::Missing) {
            return Ok(seen);
        }
        if left == ARRIVES_WITHIN {
            task.report_waiting("a request that may still arrive");
        }
        let pause = left.min(Duration::from_secs(1));
        task.clock.sleep(pause).await;
        left -= pause;
    }
}

/// Deletes the guest if this run created it.
pub(super) async fn undo(task: &StepTask) -> Result<StepOutcome, PortError> {
    let guest = task.guest()?;
    let provider = task.provider().await?;
    let there = match settled_removal(task).await? {
        Removal::Missing => {
            // Its first-boot data or address may exist without it.
            let never = GuestRef {
                vmid: None,
                ..guest
            };
            provider.destroy(&never).await?;
            return Ok(StepOutcome::default());
        }
        Removal::Kept(_) => {
            return Ok(StepOutcome {
                kept: true,
                ..StepOutcome::default()
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
        provider.stop(&guest, StopMode::Now).await?;
    }
    provider.destroy(&guest).await?;
    Ok(StepOutcome::changed())
}

/// Assigns an address, where the host does so.
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

async fn new_guest(task: &StepTask, wanted: &DesiredGuest) -> Result<NewGuest, PortError> {
    let node = task.node()?;
    let image = wanted.image.and_then(|at| task.plan.images.get(at));
    let file = image.map_or_else(|| wanted.source.clone(), |image| image.file.clone());
    let source = match wanted.kind {
        GuestKind::Vm => DiskSource::Image(file),
        GuestKind::Ct => DiskSource::Template(file),
    };
    let request = SeedRequest {
        manifest: &task.plan.manifest,
        node,
        wanted,
    };
    let seed = task.seeds.seed(&request).await?;
    let site = task.plan.site.clone();
    let site = site.ok_or_else(|| PortError::bug("read the plan", &"it names no site"))?;
    // A known guest is completed, and no other.
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
