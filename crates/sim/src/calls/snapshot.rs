//! Snapshots of guests: create, list, roll back, delete. A simulated snapshot saves the
//! configuration, not the content of disks.

use serde_json::{Value, json};

use super::power::task_name;
use super::{ApiError, Context, Outcome};
use crate::guest::drive::{Drive, is_drive};
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::Snapshot;

pub(crate) fn list(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let state = context.world.state();
    let guest = state.guest(&context.node, kind, vmid)?;
    let mut list: Vec<Value> = guest
        .snapshots
        .iter()
        .map(|snapshot| {
            let mut shown = json!({
                "name": snapshot.name,
                "snaptime": snapshot.time,
                "description": snapshot.description,
            });
            if kind == Kind::Qemu {
                shown["vmstate"] = json!(u8::from(snapshot.vmstate));
            }
            if let Some(parent) = &snapshot.parent {
                shown["parent"] = json!(parent);
            }
            shown
        })
        .collect();
    let mut current = json!({
        "name": "current",
        "description": "You are here!",
        "digest": guest.config.digest(),
        "running": u8::from(guest.running.is_some()),
    });
    if let Some(parent) = &guest.parent {
        current["parent"] = json!(parent);
    }
    list.push(current);
    Ok(json!(list).into())
}

pub(crate) fn create(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let name = context.required("snapname")?.to_owned();
    context.exists(kind, vmid)?;
    if name == "current" {
        return Err("unable to use snapshot name 'current' (reserved name)".into());
    }
    let description = context.text("description").unwrap_or("").to_owned();
    let vmstate = context.flag("vmstate");
    context.task(
        &task_name(kind, "snapshot"),
        &vmid.to_string(),
        move |job| async move {
            let _lock = job.lock_guest(kind, vmid).await?;
            take(
                &job,
                kind,
                vmid,
                Snapshot {
                    name,
                    time: job.world.epoch(),
                    description,
                    parent: None,
                    vmstate,
                    config: Default::default(),
                },
            )
            .await
        },
    )
}

async fn take(job: &Job, kind: Kind, vmid: u32, mut snapshot: Snapshot) -> Result<(), String> {
    let disks: Vec<(String, String)> = {
        let state = job.world.state();
        let guest = state.guest(&job.node, kind, vmid)?;
        if let Some(lock) = guest.config.value("lock") {
            return Err(format!("{} is locked ({lock})", kind.title()));
        }
        if guest
            .snapshots
            .iter()
            .any(|known| known.name == snapshot.name)
        {
            return Err(format!("snapshot name '{}' already used", snapshot.name));
        }
        snapshot.parent.clone_from(&guest.parent);
        snapshot.config = guest.config.clone();
        guest
            .config
            .values()
            .iter()
            .filter(|(key, _)| is_drive(key))
            .map(|(key, text)| (key.clone(), Drive::parse(kind, text)))
            .filter(|(_, drive)| !drive.is_cdrom())
            .map(|(key, drive)| (key, drive.volume().to_owned()))
            .collect()
    };
    for (key, volume) in disks {
        job.log(format!("snapshotting 'drive-{key}' ({volume})"));
        let wait = job.world.state().timing.allocate;
        job.sleep(wait).await?;
    }
    let mut state = job.world.state();
    let guest = state.guest_mut(&job.node, kind, vmid)?;
    guest.parent = Some(snapshot.name.clone());
    guest.snapshots.push(snapshot);
    Ok(())
}

pub(crate) fn delete(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let name = context.required("snapname")?.to_owned();
    context.exists(kind, vmid)?;
    context.task(
        &task_name(kind, "delsnapshot"),
        &vmid.to_string(),
        move |job| async move {
            let _lock = job.lock_guest(kind, vmid).await?;
            let wait = job.world.state().timing.allocate;
            job.sleep(wait).await?;
            let mut state = job.world.state();
            let guest = state.guest_mut(&job.node, kind, vmid)?;
            let at = guest
                .snapshots
                .iter()
                .position(|snapshot| snapshot.name == name)
                .ok_or_else(|| format!("snapshot '{name}' does not exist"))?;
            let removed = guest.snapshots.remove(at);
            for snapshot in &mut guest.snapshots {
                if snapshot.parent.as_deref() == Some(name.as_str()) {
                    snapshot.parent.clone_from(&removed.parent);
                }
            }
            if guest.parent.as_deref() == Some(name.as_str()) {
                guest.parent = removed.parent;
            }
            Ok(())
        },
    )
}

pub(crate) fn rollback(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let name = context.required("snapname")?.to_owned();
    context.exists(kind, vmid)?;
    context.task(
        &task_name(kind, "rollback"),
        &vmid.to_string(),
        move |job| async move {
            let _lock = job.lock_guest(kind, vmid).await?;
            let wait = job.world.state().timing.allocate;
            job.sleep(wait).await?;
            let (now, last_update) = (job.world.now(), job.world.last_status_update());
            let mut state = job.world.state();
            let guest = state.guest_mut(&job.node, kind, vmid)?;
            let snapshot = guest
                .snapshots
                .iter()
                .find(|snapshot| snapshot.name == name)
                .cloned()
                .ok_or_else(|| format!("snapshot '{name}' does not exist"))?;
            guest.touch(now, last_update);
            guest.running = None;
            guest.config = snapshot.config;
            guest.parent = Some(name);
            Ok(())
        },
    )
}

pub(crate) fn config(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let name = context.required("snapname")?;
    let state = context.world.state();
    let guest = state.guest(&context.node, kind, vmid)?;
    let snapshot = guest
        .snapshots
        .iter()
        .find(|snapshot| snapshot.name == name);
    let snapshot =
        snapshot.ok_or_else(|| ApiError::new(500, format!("snapshot '{name}' does not exist")))?;
    let mut shown = snapshot.config.render(kind, true);
    shown.remove("digest");
    shown.insert("snaptime".into(), json!(snapshot.time));
    if !snapshot.description.is_empty() {
        shown.insert("description".into(), json!(snapshot.description));
    }
    Ok(Value::Object(shown).into())
}
