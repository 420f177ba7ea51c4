//! What VMs and containers share: lists, configuration as shown, status, destruction.
//!
//! In: calls on guests. Out: facts, and tasks that destroy.
//! Never: what is different between the two kinds, apart from words.

use serde_json::{Value, json};

use super::cluster::{root_disk, sees_all_guests};
use super::{Context, Fail, Outcome};
use crate::guest::drive::volumes;
use crate::guest::status::Surroundings;
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Guest, State};

/// Fails when a caller's digest is not the file's.
pub(crate) fn same_digest(guest: &Guest, digest: &str) -> Result<(), Fail> {
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
    // Only containers show the disk of their host.
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
        let mut shown = guest.list_entry(&Surroundings { now, root });
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
        let snapshot =
            snapshot.ok_or_else(|| Fail::new(500, format!("snapshot '{name}' does not exist")))?;
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
    Ok(guest.current(&Surroundings { now, root }).into())
}

pub(crate) fn destroy(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    super::vm_config::no_skiplock(context)?;
    {
        let state = context.world.state();
        let guest = state.guest(&context.node, kind, vmid)?;
        let title = kind.title();
        if guest.config.is_true("protection") {
            return Err(format!("can't remove {title} {vmid} - protection mode enabled").into());
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
        if let Some(lock) = guest.config.value("lock") {
            return Err(format!("{} is locked ({lock})", kind.title()));
        }
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
            let (now, sweep) = (job.world.now(), job.world.last_sweep());
            let mut state = job.world.state();
            let guest = state.guest_mut(&job.node, kind, vmid)?;
            guest.touch(now, sweep);
            guest.running = None;
            Ok(())
        }
        Kind::Lxc => Err(format!(
            "unable to destroy CT {vmid} - container is running"
        )),
    }
}

/// Frees the volumes of a guest and forgets it.
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
    base_is_free(job, &owned)?;
    for volume in owned {
        let storage = volume.split(':').next().unwrap_or("").to_owned();
        let hold = job.lock_storage(&storage).await?;
        let wait = job.world.state().timing.allocate;
        job.sleep(wait).await?;
        job.world.state().remove_volume(&job.node, &volume);
        drop(hold);
    }
    if purge {
        let title = kind.title();
        job.log(format!(
            "purging {title} {vmid} from related configurations.."
        ));
    }
    let now = job.world.now();
    job.world.state().forget(vmid, now);
    Ok(())
}

/// Fails while linked clones still stand on a template's disk.
fn base_is_free(job: &Job, owned: &[String]) -> Result<(), String> {
    let state = job.world.state();
    match owned.iter().find(|volume| state.is_base_and_used(volume)) {
        None => Ok(()),
        Some(volume) => Err(format!(
            "base volume '{volume}' is still in use by linked cloned"
        )),
    }
}

impl State {
    /// Whether a volume is a base on which a linked clone stands.
    pub(crate) fn is_base_and_used(&self, volume: &str) -> bool {
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
