//! Restores backups, to a new id or over a guest that is there.
//!
//! Without `unique` a restored guest has the SMBIOS uuid, hardware addresses, tags and notes of
//! the one in the archive: both may be there at the same time. Values in the call win.
//! In: an archive and an id. Out: a guest.
//! Never: changing the archive.

use std::time::Duration;

use super::disk::{NewDisk, allocate, formatting, make_cloudinit};
use super::permission::{allows, require};
use super::storage::check_access;
use super::vm_config::{NOT_CONFIG, may_use_bridge, with_address};
use super::vm_create::{abandon, may_create, reserve};
use super::{Context, Fail, Outcome, ct, template};
use crate::guest::config::{Config, normal_tags};
use crate::guest::drive::{Drive, is_drive, is_mount, render_size, volumes};
use crate::guest::identity::is_network;
use crate::schema::check::Parameters;
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Backup, BackupDisk};

/// How long a restore waits for the id's lock.
const RESTORE_LOCK: Duration = Duration::from_secs(5);

/// What is restored, and over what.
struct Plan {
    kind: Kind,
    vmid: u32,
    archive: String,
    backup: Backup,
    storage: Option<String>,
    values: Parameters,
    unique: bool,
    start: bool,
    limit: Option<u64>,
    /// Whether a guest is there that is replaced.
    over: bool,
}

impl Plan {
    fn failed(&self, fault: &str) -> String {
        let title = self.kind.title();
        format!("unable to restore {title} {} - {fault}", self.vmid)
    }
}

pub(crate) async fn vm(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let pool = context.text("pool").map(ToOwned::to_owned);
    may_restore(context, Kind::Qemu, vmid, pool.as_deref())?;
    let mut values: Parameters = context.given.clone();
    values.retain(|key, _| !NOT_CONFIG.contains(&key.as_str()));
    if let Some(key) = values.keys().find(|key| is_drive(key)) {
        let words = format!("restoring with another '{key}' is not simulated");
        return Err(Fail::new(501, words));
    }
    let keys = values.keys().map(String::as_str);
    super::vm_config::may_set(context, vmid, pool.as_deref(), keys, |_| false)?;
    for (key, value) in &mut values {
        if is_network(key) {
            *value = with_address(context, value);
        }
    }
    let storage = context.text("storage").map(ToOwned::to_owned);
    let plan = plan(context, Kind::Qemu, "archive", storage, values)?;
    take_and_run(context, plan, pool, "qmrestore").await
}

pub(crate) async fn container(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let pool = context.text("pool").map(ToOwned::to_owned);
    if is_replaced(context, Kind::Lxc, vmid) {
        let state = context.world.state();
        let guest = state.guest(&context.node, Kind::Lxc, vmid)?;
        if guest.running.is_some() {
            return Err("can't overwrite running container".into());
        }
        if guest.config.is_true("protection") {
            return Err(format!("unable to restore CT {vmid} - protection mode enabled").into());
        }
    } else {
        context.world.state().is_free(vmid)?;
    }
    may_restore(context, Kind::Lxc, vmid, pool.as_deref())?;
    let mut values = ct::values_of(context);
    let storage = context.text("storage").unwrap_or("local").to_owned();
    let mut plan = plan(
        context,
        Kind::Lxc,
        "ostemplate",
        Some(storage),
        values.clone(),
    )?;
    let unprivileged = values.get("unprivileged").map(String::as_str);
    let unprivileged = unprivileged.or(plan.backup.config.value("unprivileged"));
    let privileged = unprivileged != Some("1");
    ct::may_set(context, vmid, pool.as_deref(), &values, privileged, true)?;
    if privileged {
        require(context, "/", "Sys.Modify")?;
    }
    for (key, value) in &mut values {
        if is_network(key) {
            *value = ct::normal_network(context, value);
        }
        if key == "tags" {
            *value = normal_tags(value);
        }
    }
    plan.values = values;
    take_and_run(context, plan, pool, "vzrestore").await
}

/// Whether a restore replaces a guest: one of its kind is there and the call says so.
fn is_replaced(context: &Context, kind: Kind, vmid: u32) -> bool {
    context.flag("force") && context.exists(kind, vmid).is_ok()
}

/// Whoever may back a guest up may restore over it; a new guest needs what a create needs.
fn may_restore(context: &Context, kind: Kind, vmid: u32, pool: Option<&str>) -> Result<(), Fail> {
    let over = is_replaced(context, kind, vmid);
    if over && allows(context, &format!("/vms/{vmid}"), "VM.Backup") {
        return Ok(());
    }
    may_create(context, vmid, pool)
}

/// Reads the archive and checks that the caller may use it and what it needs.
fn plan(
    context: &Context,
    kind: Kind,
    parameter: &str,
    storage: Option<String>,
    values: Parameters,
) -> Result<Plan, Fail> {
    let vmid = context.vmid()?;
    let archive = context.need(parameter)?.to_owned();
    let Some((from, name)) = archive.split_once(':') else {
        return Err("Only root can pass arbitrary filesystem paths.".into());
    };
    check_access(context, from, name, Some(vmid))?;
    let backup = {
        let state = context.world.state();
        let backup = super::backup::find(&state, &context.node, from, name)?;
        if backup.kind != kind {
            let words = format!(
                "unable to restore {archive}: it is no backup of a {}",
                kind.title()
            );
            return Err(words.into());
        }
        backup.clone()
    };
    let targets = backup.disks.values().map(|disk| disk.storage.clone());
    for target in storage.clone().into_iter().chain(targets) {
        let target = storage.as_ref().unwrap_or(&target);
        context.world.state().storage_on(&context.node, target)?;
        require(
            context,
            &format!("/storage/{target}"),
            "Datastore.AllocateSpace",
        )?;
    }
    for (key, text) in backup.config.networks() {
        may_use_bridge(context, values.get(&key).unwrap_or(&text))?;
    }
    Ok(Plan {
        kind,
        vmid,
        archive,
        backup,
        storage,
        values,
        unique: context.flag("unique"),
        start: context.flag("start"),
        limit: context.number("bwlimit"),
        over: is_replaced(context, kind, vmid),
    })
}

/// Takes the id, or locks the guest that has it, and starts the task.
async fn take_and_run(context: &Context, plan: Plan, pool: Option<String>, task: &str) -> Outcome {
    let (kind, vmid) = (plan.kind, plan.vmid);
    let failed = |fault: String| Fail::new(500, plan.failed(&fault));
    {
        let hold = context
            .world
            .lock_config(kind, vmid, Some(RESTORE_LOCK))
            .await
            .map_err(failed)?;
        if plan.over {
            let mut state = context.world.state();
            let guest = state.guest_mut(&context.node, kind, vmid)?;
            if let Some(lock) = guest.config.value("lock") {
                return Err(failed(format!("{} is locked ({lock})", kind.title())));
            }
            guest.config.set("lock", "create");
        } else {
            reserve(context, vmid, kind, "create").map_err(failed)?;
        }
        drop(hold);
    }
    if let Some(pool) = pool {
        context.world.state().pool_of.insert(vmid, pool);
    }
    context.task(task, &vmid.to_string(), move |job| async move {
        if let Err(fault) = restore(&job, &plan).await {
            if plan.over {
                job.log(format!(
                    "error before or during data restore, some or all disks were not completely \
                     restored. {} {vmid} state is NOT cleaned up.",
                    kind.title()
                ));
                if let Ok(guest) = job.world.state().guest_mut(&job.node, kind, vmid) {
                    guest.config.remove("lock");
                }
            } else {
                abandon(&job, vmid);
            }
            return Err(plan.failed(&fault));
        }
        if plan.start {
            super::power::start_now(&job, kind, vmid).await?;
        }
        Ok(())
    })
}

async fn restore(job: &Job, plan: &Plan) -> Result<(), String> {
    let (kind, vmid) = (plan.kind, plan.vmid);
    let _lock = job.lock_guest(kind, vmid).await?;
    let mut old: Vec<(String, String)> = {
        let state = job.world.state();
        let guest = state.guest(&job.node, kind, vmid)?;
        if guest.config.is_true("protection") {
            return Err("- protection mode enabled".to_owned());
        }
        if guest.running.is_some() {
            return Err(match kind {
                Kind::Qemu => "vm is running".to_owned(),
                Kind::Lxc => "can't overwrite running container".to_owned(),
            });
        }
        let named = volumes(kind, &guest.config).into_iter();
        named
            .filter(|(_, volume)| {
                let name = volume.split_once(':').map_or("", |(_, name)| name);
                super::storage::owner_of(name) == Some(vmid)
            })
            .collect()
    };
    // The disks of a VM go before theirs is restored, those of a container after.
    if kind == Kind::Qemu {
        old.retain(|(key, volume)| {
            let restored = plan.backup.disks.contains_key(key) || volume.contains("-cloudinit");
            if restored {
                job.world.state().remove_volume(&job.node, volume);
            }
            !restored
        });
    }
    job.log(match kind {
        Kind::Qemu => format!("restore vma archive: {}", plan.archive),
        Kind::Lxc => format!("recovering backed-up configuration from '{}'", plan.archive),
    });
    let mut config = fill(job, plan).await?;
    if kind == Kind::Lxc {
        job.log("merging backed-up and given configuration..");
        for (_, volume) in old.drain(..) {
            job.world.state().remove_volume(&job.node, &volume);
        }
    }
    // What the archive does not have stays, unused.
    for (number, (_, volume)) in old.into_iter().enumerate() {
        config.set(&format!("unused{number}"), volume);
    }
    let was_template = config.is_true("template");
    let (now, sweep) = (job.world.now(), job.world.last_sweep());
    {
        let mut state = job.world.state();
        let guest = state.guest_mut(&job.node, kind, vmid)?;
        if plan.over {
            guest.touch(now, sweep);
        }
        guest.config = config;
        guest.boots = plan.backup.boots.clone();
        guest.snapshots.clear();
        guest.parent = None;
        guest.inner = None;
    }
    if was_template {
        template::become_base(&job.world, &job.node, kind, vmid)?;
    }
    Ok(())
}

/// Makes the disks and returns the configuration: that of the archive, with what must be new and
/// what the call gives.
async fn fill(job: &Job, plan: &Plan) -> Result<Config, String> {
    let (kind, vmid) = (plan.kind, plan.vmid);
    let mut config = plan.backup.config.clone();
    for (key, text) in plan.backup.config.values() {
        let disk = match kind {
            Kind::Qemu => is_drive(key),
            Kind::Lxc => is_mount(key),
        };
        let mut drive = Drive::parse(kind, text);
        if key == "lock" || key.starts_with("unused") {
            config.remove(key);
        } else if disk && drive.is_cloudinit() {
            let own = drive.volume().split(':').next().unwrap_or("");
            let storage = plan.storage.as_deref().unwrap_or(own);
            config.set(key, make_cloudinit(job, vmid, storage).await?);
        } else if let Some(stored) = plan.backup.disks.get(key) {
            let given = plan.values.get(key).map(|text| Drive::parse(kind, text));
            let (made, size) = make_disk(job, plan, stored, given.as_ref()).await?;
            drive.set_volume(made);
            drive.set("size", render_size(size));
            config.set(key, drive.render());
        } else if disk && !drive.is_cdrom() && drive.volume().contains(':') {
            config.remove(key);
        }
    }
    {
        let mut state = job.world.state();
        if plan.unique {
            config.renew_addresses(&mut state.random);
        }
        if kind == Kind::Qemu {
            if plan.unique {
                config.renew_uuid(&mut state.random);
            }
            config.renew_generation(&mut state.random);
        }
    }
    for (key, value) in &plan.values {
        if !is_mount(key) {
            config.set(key, value.clone());
        }
    }
    Ok(config)
}

/// Makes a disk and fills it from the archive. Returns its volume and its size.
async fn make_disk(
    job: &Job,
    plan: &Plan,
    stored: &BackupDisk,
    given: Option<&Drive>,
) -> Result<(String, u64), String> {
    let (stem, content) = match plan.kind {
        Kind::Qemu => ("vm", "images"),
        Kind::Lxc if stored.format == "subvol" => ("subvol", "rootdir"),
        Kind::Lxc => ("vm", "rootdir"),
    };
    let given = given.and_then(Drive::allocation);
    let own = plan.storage.as_deref().unwrap_or(&stored.storage);
    let (storage, size) = given.map_or((own, stored.size), |(storage, gib)| {
        (storage, (gib * 1_073_741_824.0) as u64)
    });
    let made = allocate(
        job,
        NewDisk {
            vmid: plan.vmid,
            storage,
            stem,
            format: &stored.format,
            size,
            used: stored.used,
            content,
            boots: plan.backup.boots.clone(),
        },
    )
    .await?;
    if plan.kind == Kind::Lxc {
        let path = {
            let state = job.world.state();
            let name = made.split_once(':').map_or("", |(_, name)| name);
            state.storage(storage)?.path_of(name)
        };
        job.log(formatting(&path, &stored.format, size));
        job.log(format!("restoring '{}' now..", plan.archive));
    }
    job.log(format!("new volume ID is '{made}'"));
    if let Err(fault) = job.copy(storage, stored.used, plan.limit).await {
        job.world.state().remove_volume(&job.node, &made);
        return Err(fault);
    }
    Ok((made, size))
}
