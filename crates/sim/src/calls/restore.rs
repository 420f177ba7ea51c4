//! Restores backups, as a new guest or in place of an existing one.
//!
//! Without `unique` a restored guest has the SMBIOS uuid, hardware addresses, tags and notes of
//! the one in the archive, so two guests may have the same. Values in the call take precedence.

use std::time::Duration;

use super::disk::{NewDisk, allocate, create_cloudinit_drive, formatting_line};
use super::permission::{allows, require};
use super::storage::check_access;
use super::vm_config::{NOT_CONFIG, may_use_bridge, with_mac};
use super::vm_create::{clean_up, may_create, reserve_id};
use super::{ApiError, Context, Outcome, ct, template};
use crate::guest::config::{Config, normalize_tags};
use crate::guest::drive::{Drive, is_drive, is_mount, render_size, volumes};
use crate::guest::identity::is_network;
use crate::schema::check::Parameters;
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Backup, BackupDisk};

/// How long a restore waits for the id's lock.
const RESTORE_LOCK: Duration = Duration::from_secs(5);

/// The options of a restore.
struct RestorePlan {
    kind: Kind,
    vmid: u32,
    archive: String,
    backup: Backup,
    storage: Option<String>,
    values: Parameters,
    unique: bool,
    start: bool,
    limit: Option<u64>,
    /// Whether an existing guest is replaced.
    replace: bool,
}

impl RestorePlan {
    fn failed(&self, fault: &str) -> String {
        let title = self.kind.title();
        format!("unable to restore {title} {} - {fault}", self.vmid)
    }
}

pub(crate) async fn vm(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let pool = context.text("pool").map(ToOwned::to_owned);
    may_restore(context, Kind::Qemu, vmid, pool.as_deref())?;
    let mut values: Parameters = context.parameters.clone();
    values.retain(|key, _| !NOT_CONFIG.contains(&key.as_str()));
    if let Some(key) = values.keys().find(|key| is_drive(key)) {
        let message = format!("restoring with another '{key}' is not simulated");
        return Err(ApiError::new(501, message));
    }
    let keys = values.keys().map(String::as_str);
    super::vm_config::may_set(context, vmid, pool.as_deref(), keys, |_| false)?;
    for (key, value) in &mut values {
        if is_network(key) {
            *value = with_mac(context, value);
        }
    }
    let storage = context.text("storage").map(ToOwned::to_owned);
    let plan = plan(context, Kind::Qemu, "archive", storage, values)?;
    reserve_and_start(context, plan, pool, "qmrestore").await
}

pub(crate) async fn container(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let pool = context.text("pool").map(ToOwned::to_owned);
    if is_replacement(context, Kind::Lxc, vmid) {
        let state = context.world.state();
        let guest = state.guest(&context.node, Kind::Lxc, vmid)?;
        if guest.running.is_some() {
            return Err("can't overwrite running container".into());
        }
        if guest.config.is_true("protection") {
            return Err(format!("unable to restore CT {vmid} - protection mode enabled").into());
        }
    } else {
        context.world.state().check_free(vmid)?;
    }
    may_restore(context, Kind::Lxc, vmid, pool.as_deref())?;
    let mut values = ct::config_values(context);
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
            *value = ct::normalize_network(context, value);
        }
        if key == "tags" {
            *value = normalize_tags(value);
        }
    }
    plan.values = values;
    reserve_and_start(context, plan, pool, "vzrestore").await
}

/// Whether a restore replaces a guest: one of its kind exists and the call sets `force`.
fn is_replacement(context: &Context, kind: Kind, vmid: u32) -> bool {
    context.flag("force") && context.exists(kind, vmid).is_ok()
}

/// Fails unless the caller may replace the guest (`VM.Backup`) or create a new one.
fn may_restore(
    context: &Context,
    kind: Kind,
    vmid: u32,
    pool: Option<&str>,
) -> Result<(), ApiError> {
    let replace = is_replacement(context, kind, vmid);
    if replace && allows(context, &format!("/vms/{vmid}"), "VM.Backup") {
        return Ok(());
    }
    may_create(context, vmid, pool)
}

/// Reads the archive and checks that the caller may use it and the storages it needs.
fn plan(
    context: &Context,
    kind: Kind,
    parameter: &str,
    storage: Option<String>,
    values: Parameters,
) -> Result<RestorePlan, ApiError> {
    let vmid = context.vmid()?;
    let archive = context.required(parameter)?.to_owned();
    let Some((from, name)) = archive.split_once(':') else {
        return Err("Only root can pass arbitrary filesystem paths.".into());
    };
    check_access(context, from, name, Some(vmid))?;
    let backup = {
        let state = context.world.state();
        let backup = super::backup::find(&state, &context.node, from, name)?;
        if backup.kind != kind {
            let message = format!(
                "unable to restore {archive}: it is no backup of a {}",
                kind.title()
            );
            return Err(message.into());
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
    Ok(RestorePlan {
        kind,
        vmid,
        archive,
        backup,
        storage,
        values,
        unique: context.flag("unique"),
        start: context.flag("start"),
        limit: context.number("bwlimit"),
        replace: is_replacement(context, kind, vmid),
    })
}

/// Reserves the id, or locks the guest to be replaced, and starts the task.
async fn reserve_and_start(
    context: &Context,
    plan: RestorePlan,
    pool: Option<String>,
    task: &str,
) -> Outcome {
    let (kind, vmid) = (plan.kind, plan.vmid);
    let failed = |fault: String| ApiError::new(500, plan.failed(&fault));
    {
        let lock = context
            .world
            .lock_config(kind, vmid, Some(RESTORE_LOCK))
            .await
            .map_err(failed)?;
        if plan.replace {
            let mut state = context.world.state();
            let guest = state.guest_mut(&context.node, kind, vmid)?;
            if let Some(lock) = guest.config.value("lock") {
                return Err(failed(format!("{} is locked ({lock})", kind.title())));
            }
            guest.config.set("lock", "create");
        } else {
            reserve_id(context, vmid, kind, "create").map_err(failed)?;
        }
        drop(lock);
    }
    if let Some(pool) = pool {
        context.world.state().pool_of.insert(vmid, pool);
    }
    context.task(task, &vmid.to_string(), move |job| async move {
        if let Err(fault) = restore(&job, &plan).await {
            if plan.replace {
                job.log(format!(
                    "error before or during data restore, some or all disks were not completely \
                     restored. {} {vmid} state is NOT cleaned up.",
                    kind.title()
                ));
                if let Ok(guest) = job.world.state().guest_mut(&job.node, kind, vmid) {
                    guest.config.remove("lock");
                }
            } else {
                clean_up(&job, vmid);
            }
            return Err(plan.failed(&fault));
        }
        if plan.start {
            super::power::start_guest(&job, kind, vmid).await?;
        }
        Ok(())
    })
}

async fn restore(job: &Job, plan: &RestorePlan) -> Result<(), String> {
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
    // Old disks of a VM are deleted before the restore, those of a container after it.
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
    let mut config = build_config(job, plan).await?;
    if kind == Kind::Lxc {
        job.log("merging backed-up and given configuration..");
        for (_, volume) in old.drain(..) {
            job.world.state().remove_volume(&job.node, &volume);
        }
    }
    // Old disks that are not in the archive become unused disks.
    for (number, (_, volume)) in old.into_iter().enumerate() {
        config.set(&format!("unused{number}"), volume);
    }
    let was_template = config.is_true("template");
    let (now, last_update) = (job.world.now(), job.world.last_status_update());
    {
        let mut state = job.world.state();
        let guest = state.guest_mut(&job.node, kind, vmid)?;
        if plan.replace {
            guest.touch(now, last_update);
        }
        guest.config = config;
        guest.boots = plan.backup.boots.clone();
        guest.snapshots.clear();
        guest.parent = None;
        guest.inner = None;
    }
    if was_template {
        template::convert_to_template(&job.world, &job.node, kind, vmid)?;
    }
    Ok(())
}

/// Creates the disks and returns the configuration: that of the archive, with new disks and ids,
/// and with the values in the call.
async fn build_config(job: &Job, plan: &RestorePlan) -> Result<Config, String> {
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
            config.set(key, create_cloudinit_drive(job, vmid, storage).await?);
        } else if let Some(stored) = plan.backup.disks.get(key) {
            let given = plan.values.get(key).map(|text| Drive::parse(kind, text));
            let (created, size) = create_disk(job, plan, stored, given.as_ref()).await?;
            drive.set_volume(created);
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

/// Creates a disk and restores its content. Returns its volume and its size.
async fn create_disk(
    job: &Job,
    plan: &RestorePlan,
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
    let created = allocate(
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
            let name = created.split_once(':').map_or("", |(_, name)| name);
            state.storage(storage)?.path_of(name)
        };
        job.log(formatting_line(&path, &stored.format, size));
        job.log(format!("restoring '{}' now..", plan.archive));
    }
    job.log(format!("new volume ID is '{created}'"));
    if let Err(fault) = job.copy(storage, stored.used, plan.limit).await {
        job.world.state().remove_volume(&job.node, &created);
        return Err(fault);
    }
    Ok((created, size))
}
