//! Calls that VMs and containers share: list, configuration, status, destroy.

use serde_json::{Value, json};

use super::cluster::{root_disk, sees_all_guests};
use super::{ApiError, Context, Outcome};
use crate::guest::drive::volumes;
use crate::guest::status::StatusContext;
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Guest, State};

/// Fails if the digest in a call is not that of the configuration.
pub(crate) fn verify_digest(guest: &Guest, digest: &str) -> Result<(), ApiError> {
    if guest.config.digest() == digest {
        Ok(())
    } else {
        Err("checksum mismatch (file change by other user?)".into())
    }
}

pub(crate) fn list(context: &Context, kind: Kind) -> Outcome {
    let full = context.flag("full");
    let now = context.world.now();
    let state = context.world.state();
    let all = sees_all_guests(context, &state);
    // Only containers report the disk of their host.
    let root = match kind {
        Kind::Qemu => (0, 0),
        Kind::Lxc => root_disk(&state, &context.node),
    };
    let mut list = Vec::new();
    for guest in state.guests.values() {
        if guest.kind != kind || guest.node != context.node {
            continue;
        }
        let path = format!("/vms/{}", guest.vmid);
        if !(all || state.allows(&context.identity, &path, "VM.Audit")) {
            continue;
        }
        let mut shown = guest.list_entry(&StatusContext { now, root });
        if full && kind == Kind::Qemu {
            let status = shown.get("status").cloned().unwrap_or_default();
            shown.insert("qmpstatus".into(), status);
        }
        list.push(Value::Object(shown));
    }
    Ok(json!(list).into())
}

pub(crate) fn config(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let state = context.world.state();
    let guest = state.guest(&context.node, kind, vmid)?;
    if let Some(name) = context.text("snapshot") {
        let snapshot = guest
            .snapshots
            .iter()
            .find(|snapshot| snapshot.name == name);
        let snapshot = snapshot
            .ok_or_else(|| ApiError::new(500, format!("snapshot '{name}' does not exist")))?;
        return Ok(Value::Object(snapshot.config.render(kind, true)).into());
    }
    let mut shown = guest.config.render(kind, context.flag("current"));
    if let Some(parent) = &guest.parent {
        shown.insert("parent".into(), json!(parent));
    }
    if shown.contains_key("cipassword") {
        shown.insert("cipassword".into(), json!("**********"));
    }
    Ok(Value::Object(shown).into())
}

pub(crate) fn pending(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let state = context.world.state();
    let guest = state.guest(&context.node, kind, vmid)?;
    Ok(guest.config.render_pending(kind).into())
}

pub(crate) fn current(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let now = context.world.now();
    let state = context.world.state();
    let guest = state.guest(&context.node, kind, vmid)?;
    let root = match kind {
        Kind::Qemu => (0, 0),
        Kind::Lxc => root_disk(&state, &context.node),
    };
    Ok(guest.current(&StatusContext { now, root }).into())
}

pub(crate) fn destroy(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    super::vm_config::check_skiplock(context)?;
    {
        let state = context.world.state();
        let guest = state.guest(&context.node, kind, vmid)?;
        let title = kind.title();
        if guest.config.is_true("protection") {
            return Err(format!("can't remove {title} {vmid} - protection mode enabled").into());
        }
        if kind == Kind::Lxc {
            guest.check_unlocked(&[])?;
        }
        if guest.running.is_some() {
            match kind {
                Kind::Qemu => return Err(format!("VM {vmid} is running - destroy failed").into()),
                Kind::Lxc if !context.flag("force") => {
                    return Err(
                        format!("unable to destroy CT {vmid} - container is running").into(),
                    );
                }
                Kind::Lxc => {}
            }
        }
    }
    let purge = context.flag("purge");
    let force = context.flag("force");
    let task = match kind {
        Kind::Qemu => "qmdestroy",
        Kind::Lxc => "vzdestroy",
    };
    context.task(task, &vmid.to_string(), move |job| async move {
        let _lock = job.lock_guest(kind, vmid).await?;
        stop_if_forced(&job, kind, vmid, force).await?;
        remove(&job, kind, vmid, purge).await
    })
}

async fn stop_if_forced(job: &Job, kind: Kind, vmid: u32, force: bool) -> Result<(), String> {
    let running = {
        let state = job.world.state();
        let guest = state.guest(&job.node, kind, vmid)?;
        guest.check_unlocked(&["suspended"])?;
        guest.running.is_some()
    };
    if !running {
        return Ok(());
    }
    match kind {
        Kind::Qemu => Err(format!("VM {vmid} is running - destroy failed")),
        Kind::Lxc if force => {
            job.log(format!("forced to stop CT {vmid} before destroying!"));
            let wait = job.world.state().timing.shutdown;
            job.sleep(wait).await?;
            let (now, last_update) = (job.world.now(), job.world.last_status_update());
            let mut state = job.world.state();
            let guest = state.guest_mut(&job.node, kind, vmid)?;
            guest.touch(now, last_update);
            guest.running = None;
            Ok(())
        }
        Kind::Lxc => Err(format!(
            "unable to destroy CT {vmid} - container is running"
        )),
    }
}

/// Frees the volumes of a guest and deletes it.
async fn remove(job: &Job, kind: Kind, vmid: u32, purge: bool) -> Result<(), String> {
    let owned: Vec<String> = {
        let state = job.world.state();
        let guest = state.guest(&job.node, kind, vmid)?;
        volumes(kind, &guest.config)
            .into_iter()
            .map(|(_, volume)| volume)
            .filter(|volume| {
                let name = volume.split_once(':').map_or("", |(_, name)| name);
                super::storage::owner_of(name) == Some(vmid)
            })
            .collect()
    };
    check_base_unused(job, &owned)?;
    for volume in owned {
        let storage = volume.split(':').next().unwrap_or("").to_owned();
        let lock = job.lock_storage(&storage).await?;
        let wait = job.world.state().timing.allocate;
        job.sleep(wait).await?;
        job.world.state().remove_volume(&job.node, &volume);
        drop(lock);
    }
    if purge {
        let title = kind.title();
        job.log(format!(
            "purging {title} {vmid} from related configurations.."
        ));
    }
    let now = job.world.now();
    job.world.state().remove_guest(vmid, now);
    Ok(())
}

/// Fails while a linked clone uses one of the volumes as its base.
fn check_base_unused(job: &Job, owned: &[String]) -> Result<(), String> {
    let state = job.world.state();
    match owned.iter().find(|volume| state.is_base_in_use(volume)) {
        None => Ok(()),
        Some(volume) => Err(format!(
            "base volume '{volume}' is still in use by linked cloned"
        )),
    }
}

impl State {
    /// Whether a volume is the base of a linked clone.
    pub(crate) fn is_base_in_use(&self, volume: &str) -> bool {
        let Some((storage, name)) = volume.split_once(':') else {
            return false;
        };
        let file = name.rsplit('/').next().unwrap_or(name);
        file.starts_with("base")
            && self.storages.get(storage).is_some_and(|known| {
                let mut parents = known
                    .volumes
                    .values()
                    .filter_map(|one| one.parent.as_deref());
                parents.any(|parent| parent.rsplit('/').next() == Some(file))
            })
    }
}
