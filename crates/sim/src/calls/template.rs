//! Converts guests to templates, whose disks are the bases of linked clones.

use super::{Context, Outcome};
use crate::guest::drive::{Drive, is_drive, is_mount};
use crate::world::{Kind, World};

/// Converts a stopped guest to a template.
pub(crate) fn create(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    {
        let state = context.world.state();
        let guest = state.guest(&context.node, kind, vmid)?;
        if guest.is_template() {
            let message = match kind {
                Kind::Qemu => "you can't convert a template to a template",
                Kind::Lxc => "you can't convert a CT to template if it is already a template",
            };
            return Err(message.into());
        }
        if guest.running.is_some() {
            let message = match kind {
                Kind::Qemu => "you can't convert a VM to template if VM is running",
                Kind::Lxc => "you can't convert a CT to template if the CT is running",
            };
            return Err(message.into());
        }
        if let Some(lock) = guest.config.value("lock") {
            return Err(format!("{} is locked ({lock})", kind.title()).into());
        }
        if !guest.snapshots.is_empty() {
            let title = kind.title();
            return Err(
                format!("unable to create template, because {title} contains snapshots").into(),
            );
        }
    }
    let task = match kind {
        Kind::Qemu => "qmtemplate",
        Kind::Lxc => "vztemplate",
    };
    let started = context.task(task, &vmid.to_string(), move |job| async move {
        let _lock = job.lock_guest(kind, vmid).await?;
        let wait = job.world.state().timing.allocate;
        job.sleep(wait).await?;
        convert_to_template(&job.world, &job.node, kind, vmid)
    })?;
    // For a container PVE does not return the task, although it still runs.
    Ok(match kind {
        Kind::Qemu => started,
        Kind::Lxc => serde_json::Value::Null.into(),
    })
}

/// Marks a guest as a template and renames its disks to bases.
pub(crate) fn convert_to_template(
    world: &World,
    node: &str,
    kind: Kind,
    vmid: u32,
) -> Result<(), String> {
    let (now, last_update) = (world.now(), world.last_status_update());
    let mut state = world.state();
    let drives: Vec<(String, String)> = {
        let guest = state.guest_mut(node, kind, vmid)?;
        guest.touch(now, last_update);
        guest.config.set("template", "1");
        guest
            .config
            .values()
            .iter()
            .filter(|(key, _)| is_drive(key) || is_mount(key))
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect()
    };
    for (key, text) in drives {
        let mut drive = Drive::parse(kind, &text);
        if drive.is_cdrom() {
            continue;
        }
        let volume = drive.volume().to_owned();
        let Some((storage, name)) = volume.split_once(':') else {
            continue;
        };
        let renamed = name
            .replacen(&format!("vm-{vmid}-disk"), &format!("base-{vmid}-disk"), 1)
            .replacen(
                &format!("subvol-{vmid}-disk"),
                &format!("basevol-{vmid}-disk"),
                1,
            );
        if let Some(known) = state.storages.get_mut(storage) {
            let volume_host = known.volume_host(node);
            if let Some(old) = known
                .volumes
                .remove(&(volume_host.clone(), name.to_owned()))
            {
                known.volumes.insert((volume_host, renamed.clone()), old);
            }
        }
        drive.set_volume(format!("{storage}:{renamed}"));
        state
            .guest_mut(node, kind, vmid)?
            .config
            .set(&key, drive.render());
    }
    Ok(())
}
