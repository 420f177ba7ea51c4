//! Moving guests between hosts of a cluster, and what their disks can do.
//!
//! In: calls on a guest. Out: tasks that move a guest that is off; facts about its disks.
//! Never: a guest that runs while it moves; that is not simulated and says so.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Context, Fail, Outcome};
use crate::guest::drive::{Drive, is_drive, is_mount, volumes};
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Guest, State};

/// Whether every disk of a guest can do what is asked: `snapshot`, `clone` or `copy`.
pub(crate) fn feature(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let feature = context.need("feature")?;
    let state = context.world.state();
    let guest = state.guest(&context.node, kind, vmid)?;
    let able = disks(guest).iter().all(|volume| {
        let known = state.volume(&guest.node, volume);
        let format = known.map_or("", |known| known.format.as_str());
        match feature {
            "snapshot" => format == "qcow2",
            // Linked clones stand on the disk of a template.
            "clone" => volume.contains("/base-") || volume.contains("/basevol-"),
            _ => true,
        }
    });
    let mut shown = json!({ "hasFeature": u8::from(able) });
    if kind == Kind::Qemu {
        shown["nodes"] = json!(hosts_with(&state, guest));
    }
    Ok(shown.into())
}

/// Returns the volumes of disks and mount points, without CD-ROMs.
fn disks(guest: &Guest) -> Vec<String> {
    let values = guest.config.values().iter();
    values
        .filter(|(key, _)| match guest.kind {
            Kind::Qemu => is_drive(key),
            Kind::Lxc => is_mount(key),
        })
        .map(|(_, text)| Drive::parse(guest.kind, text))
        .filter(|drive| !drive.is_cdrom())
        .map(|drive| drive.volume().to_owned())
        .filter(|volume| volume.contains(':'))
        .collect()
}

/// Returns the hosts that have all storages of a guest: only its own when one is not shared.
fn hosts_with(state: &State, guest: &Guest) -> BTreeSet<String> {
    let mut hosts: BTreeSet<String> = state.hosts.keys().cloned().collect();
    for volume in disks(guest) {
        let storage = volume
            .split(':')
            .next()
            .and_then(|name| state.storages.get(name));
        hosts.retain(|host| match storage {
            Some(storage) if storage.shared => storage.is_on(host),
            Some(_) | None => *host == guest.node,
        });
    }
    hosts
}

pub(crate) fn migrate(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let target = context.need("target")?.to_owned();
    if target == context.node {
        return Err(Fail::parameter("target", "target is local node."));
    }
    {
        let state = context.world.state();
        if !state.hosts.contains_key(&target) {
            return Err(format!("no such cluster node '{target}'").into());
        }
        let guest = state.guest(&context.node, kind, vmid)?;
        if guest.running.is_some() {
            let asked = context.flag("online") || context.flag("restart");
            return Err(match kind {
                _ if asked => Fail::new(501, "moving a guest that runs is not simulated"),
                Kind::Qemu => "can't migrate running VM without --online".into(),
                Kind::Lxc => "can't migrate running container without --online or --restart".into(),
            });
        }
    }
    let task = match kind {
        Kind::Qemu => "qmigrate",
        Kind::Lxc => "vzmigrate",
    };
    context.task(task, &vmid.to_string(), move |job| async move {
        let _lock = job.lock_guest(kind, vmid).await?;
        shift(&job, kind, vmid, &target).await
    })
}

/// Copies what is not shared, then hands the guest over.
async fn shift(job: &Job, kind: Kind, vmid: u32, target: &str) -> Result<(), String> {
    let own: Vec<(String, u64)> = {
        let state = job.world.state();
        if state.hosts.get(target).is_none_or(|host| !host.online) {
            return Err("Can't connect to destination address using public key".to_owned());
        }
        let guest = state.guest(&job.node, kind, vmid)?;
        if let Some(lock) = guest.config.value("lock") {
            return Err(format!("{} is locked ({lock})", kind.title()));
        }
        let mut own = Vec::new();
        for (_, volume) in volumes(kind, &guest.config) {
            let storage = volume.split(':').next().unwrap_or("");
            let storage = state.storage_on(target, storage)?;
            if !storage.shared {
                let known = state.volume(&job.node, &volume);
                let known = known.ok_or_else(|| format!("volume '{volume}' does not exist"))?;
                own.push((volume, known.used));
            }
        }
        own
    };
    for (volume, bytes) in &own {
        job.log(format!("copying local disk image '{volume}'"));
        let storage = volume.split(':').next().unwrap_or("");
        job.copy(storage, *bytes, None).await?;
    }
    let (now, sweep) = (job.world.now(), job.world.last_sweep());
    let mut state = job.world.state();
    for (volume, _) in &own {
        let Some((storage, name)) = volume.split_once(':') else {
            continue;
        };
        let volumes = &mut state.storage_mut(storage)?.volumes;
        if let Some(moved) = volumes.remove(&(job.node.clone(), name.to_owned())) {
            volumes.insert((target.to_owned(), name.to_owned()), moved);
        }
    }
    let guest = state.guest_mut(&job.node, kind, vmid)?;
    guest.touch(now, sweep);
    target.clone_into(&mut guest.node);
    Ok(())
}
