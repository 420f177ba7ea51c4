//! Clones.
//!
//! A clone has everything its source has, tags and notes included, except for its SMBIOS uuid,
//! generation id, hardware addresses and, for a VM, its name.

use std::time::Duration;

use super::disk::{
    NewDisk, allocate, create_cloudinit_drive, formatting_line, is_file_based, log_progress,
};
use super::permission::{require, require_guest};
use super::vm_config::may_use_bridge;
use super::vm_create::{clean_up, empty_guest, may_create};
use super::{ApiError, Context, Outcome};
use crate::guest::config::Config;
use crate::guest::drive::{Drive, is_drive, is_mount};
use crate::world::Kind;
use crate::world::lock::Mode;
use crate::world::run::Job;
use crate::world::state::{Boots, Guest, Volume};

/// How long a clone waits for the locks of its source and target.
const CLONE_LOCK: Duration = Duration::from_secs(1);

/// The options of a clone.
struct ClonePlan {
    kind: Kind,
    source: u32,
    target: u32,
    full: bool,
    name: Option<String>,
    description: Option<String>,
    storage: Option<String>,
    format: Option<String>,
    limit: Option<u64>,
    pool: Option<String>,
    snapshot: Option<String>,
    target_node: String,
}

fn already_exists(kind: Kind, target: u32) -> String {
    format!(
        "unable to create {} {target}: config file already exists",
        kind.title()
    )
}

/// Returns the configuration a clone starts from. A snapshot has notes of its own.
fn source_config(guest: &Guest, snapshot: Option<&str>) -> Result<Config, String> {
    let Some(name) = snapshot else {
        return Ok(Config::from_pairs(guest.config.values().clone()));
    };
    let mut known = guest.snapshots.iter();
    let snapshot = known
        .find(|snapshot| snapshot.name == name)
        .ok_or_else(|| format!("snapshot '{name}' does not exist"))?;
    let mut config = Config::from_pairs(snapshot.config.values().clone());
    config.remove("description");
    if !snapshot.description.is_empty() {
        config.set("description", snapshot.description.clone());
    }
    Ok(config)
}

pub(crate) fn clone(context: &Context, kind: Kind) -> Outcome {
    let source = context.vmid()?;
    let target = context
        .number("newid")
        .and_then(|id| u32::try_from(id).ok())
        .unwrap_or(0);
    let text = |name: &str| context.text(name).map(ToOwned::to_owned);
    let pool = text("pool");
    require_guest(context, source, None, "VM.Clone")?;
    may_create(context, target, pool.as_deref())?;
    let target_node = context.text("target").unwrap_or(&context.node).to_owned();
    let snapshot = text("snapname");
    let (config, template, running) = {
        let state = context.world.state();
        let guest = state.guest(&context.node, kind, source)?;
        if let Some(lock) = guest.config.value("lock") {
            return Err(format!("{} is locked ({lock})", kind.title()).into());
        }
        if !state.hosts.contains_key(&target_node) {
            return Err(ApiError::parameter(
                "target",
                format!("no such cluster node '{target_node}'"),
            ));
        }
        let config = source_config(guest, snapshot.as_deref())?;
        (config, guest.is_template(), guest.running.is_some())
    };
    let full = context.text("full").map_or(!template, |text| text == "1");
    for name in ["storage", "format"] {
        if context.text(name).is_some() && !full {
            return Err(format!("parameter '{name}' not allowed for linked clones").into());
        }
    }
    if context.world.state().guests.contains_key(&target) {
        return Err(already_exists(kind, target).into());
    }
    if kind == Kind::Lxc && full && running && snapshot.is_none() {
        return Err("Cannot do full clones on a running container without snapshots".into());
    }
    for (key, text) in disks_of(kind, &config) {
        may_copy(context, kind, &target_node, full, &key, &text)?;
    }
    for (_, text) in config.networks() {
        may_use_bridge(context, &text)?;
    }
    let name_key = match kind {
        Kind::Qemu => "name",
        Kind::Lxc => "hostname",
    };
    let plan = ClonePlan {
        kind,
        source,
        target,
        full,
        name: text(name_key),
        description: text("description").filter(|notes| !notes.is_empty()),
        storage: text("storage"),
        format: text("format"),
        limit: context.number("bwlimit"),
        pool,
        snapshot,
        target_node,
    };
    let task = match kind {
        Kind::Qemu => "qmclone",
        Kind::Lxc => "vzclone",
    };
    context.task(task, &source.to_string(), move |job| async move {
        run(&job, plan).await
    })
}

/// Returns the drives or mount points of a configuration.
fn disks_of(kind: Kind, config: &Config) -> Vec<(String, String)> {
    let values = config.values().iter();
    values
        .filter(|(key, _)| match kind {
            Kind::Qemu => is_drive(key),
            Kind::Lxc => is_mount(key),
        })
        .map(|(key, text)| (key.clone(), text.clone()))
        .collect()
}

/// Fails unless the caller may copy a disk to its target and the storage supports the kind of copy.
fn may_copy(
    context: &Context,
    kind: Kind,
    target_node: &str,
    full: bool,
    key: &str,
    text: &str,
) -> Result<(), ApiError> {
    let drive = Drive::parse(kind, text);
    let volume = drive.volume();
    let Some((own, name)) = volume.split_once(':') else {
        return Ok(());
    };
    if drive.is_cdrom() && !drive.is_cloudinit() {
        return Ok(());
    }
    let storage = context.text("storage").unwrap_or(own);
    {
        let state = context.world.state();
        let known = state.storage(own)?;
        let file = name.rsplit('/').next().unwrap_or(name);
        let base = file.starts_with("base-") || file.starts_with("basevol-");
        // On file-based storages only qcow2 images have a base, and containers do not use qcow2.
        let linkable = base && (kind == Kind::Qemu || !is_file_based(&known.kind));
        if !full && !linkable && !drive.is_cloudinit() {
            return Err(match kind {
                Kind::Qemu => {
                    format!("Linked clone feature is not supported for '{volume}' ({key})")
                }
                Kind::Lxc => format!("Linked clone feature for '{volume}' is not available"),
            }
            .into());
        }
        if *target_node != context.node && !known.shared {
            let title = kind.title();
            return Err(format!(
                "can't clone {title} to node '{target_node}' ({title} uses local storage)"
            )
            .into());
        }
        state.storage_on(target_node, storage)?;
    }
    require(
        context,
        &format!("/storage/{storage}"),
        "Datastore.AllocateSpace",
    )
}

async fn run(job: &Job, plan: ClonePlan) -> Result<(), String> {
    let kind = plan.kind;
    // A running source is locked exclusively, a stopped one shared.
    let running = {
        let state = job.world.state();
        state.guest(&job.node, kind, plan.source)?.running.is_some()
    };
    let mode = if running {
        Mode::Exclusive
    } else {
        Mode::Shared
    };
    let _source = job
        .lock(&kind.lock_file(plan.source), mode, CLONE_LOCK)
        .await
        .map_err(|fault| format!("clone failed: {fault}"))?;
    let _target = job
        .lock(&kind.lock_file(plan.target), Mode::Exclusive, CLONE_LOCK)
        .await
        .map_err(|fault| format!("clone failed: {fault}"))?;
    {
        let (now, last_update) = (job.world.now(), job.world.last_status_update());
        let mut state = job.world.state();
        if state.guests.contains_key(&plan.target) {
            return Err(already_exists(kind, plan.target));
        }
        let mut guest = empty_guest(plan.target, kind, &plan.target_node, now, "clone");
        guest.config.set(
            "description",
            format!(
                " {}clone temporary file",
                if kind == Kind::Qemu { "qm" } else { "vz" }
            ),
        );
        state.add_guest(guest, last_update);
    }
    if let Err(fault) = copy(job, &plan).await {
        clean_up(job, plan.target);
        return Err(format!("clone failed: {fault}"));
    }
    Ok(())
}

async fn copy(job: &Job, plan: &ClonePlan) -> Result<(), String> {
    let kind = plan.kind;
    let what = match kind {
        Kind::Qemu => "VM",
        Kind::Lxc => "container",
    };
    job.log(format!(
        "creating a clone of {what} {} with ID {}",
        plan.source, plan.target
    ));
    let (mut config, boots) = {
        let state = job.world.state();
        let guest = state.guest(&job.node, kind, plan.source)?;
        (
            source_config(guest, plan.snapshot.as_deref())?,
            guest.boots.clone(),
        )
    };
    let keys: Vec<String> = config.values().keys().cloned().collect();
    for key in keys {
        if key == "template" || key == "lock" || key.starts_with("unused") {
            config.remove(&key);
        }
    }
    for (key, text) in disks_of(kind, &config) {
        let copied = copy_drive(job, plan, &key, &text).await?;
        config.set(&key, copied);
    }
    finish(job, plan, config, boots)
}

/// Gives the clone its own identity and stores its configuration.
fn finish(job: &Job, plan: &ClonePlan, mut config: Config, boots: Boots) -> Result<(), String> {
    let now = job.world.now();
    let mut state = job.world.state();
    config.renew_addresses(&mut state.random);
    match (plan.kind, &plan.name) {
        (Kind::Qemu, name) => {
            config.renew_uuid(&mut state.random);
            config.renew_generation(&mut state.random);
            let name = name.clone().unwrap_or_else(|| {
                let source = plan.source.to_string();
                format!("Copy-of-VM-{}", config.value("name").unwrap_or(&source))
            });
            config.set("name", name);
        }
        (Kind::Lxc, Some(name)) => config.set("hostname", name.clone()),
        (Kind::Lxc, None) => {}
    }
    if let Some(text) = &plan.description {
        config.set("description", text.clone());
    }
    if let Some(pool) = &plan.pool {
        state.pool_of.insert(plan.target, pool.clone());
    }
    let guest = state
        .guests
        .get_mut(&plan.target)
        .ok_or("clone target no longer exists")?;
    guest.config = config;
    guest.boots = boots;
    guest.touched = now;
    Ok(())
}

async fn copy_drive(job: &Job, plan: &ClonePlan, key: &str, text: &str) -> Result<String, String> {
    let mut drive = Drive::parse(plan.kind, text);
    let volume = drive.volume().to_owned();
    if drive.is_cloudinit() {
        let storage = volume.split(':').next().unwrap_or("").to_owned();
        job.log(format!("create full clone of drive {key} ({volume})"));
        let text = create_cloudinit_drive(job, plan.target, &storage).await?;
        let created = text.split(',').next().unwrap_or("").to_owned();
        job.log(format!("allocated target volume '{created}'"));
        return Ok(text);
    }
    if drive.is_cdrom() || !volume.contains(':') {
        return Ok(text.to_owned());
    }
    let known = job.world.state().volume(&job.node, &volume).cloned();
    let known = known.ok_or_else(|| format!("volume '{volume}' does not exist"))?;
    let created = if plan.full {
        full_clone(job, plan, key, &volume, &known).await?
    } else {
        linked_clone(job, plan, key, &volume, &known).await?
    };
    drive.set_volume(created);
    Ok(drive.render())
}

async fn full_clone(
    job: &Job,
    plan: &ClonePlan,
    key: &str,
    volume: &str,
    known: &Volume,
) -> Result<String, String> {
    let source = volume.split(':').next().unwrap_or("");
    let storage = plan.storage.as_deref().unwrap_or(source);
    let what = match plan.kind {
        Kind::Qemu => "drive",
        Kind::Lxc => "mountpoint",
    };
    job.log(format!("create full clone of {what} {key} ({volume})"));
    let stem = if plan.kind == Kind::Lxc && known.format == "subvol" {
        "subvol"
    } else {
        "vm"
    };
    let created = allocate(
        job,
        NewDisk {
            vmid: plan.target,
            storage,
            stem,
            format: plan.format.as_deref().unwrap_or(&known.format),
            size: known.size,
            used: known.used,
            content: known.content,
            boots: known.boots.clone(),
        },
    )
    .await?;
    job.log(format!("allocated target volume '{created}'"));
    if let Err(fault) = job
        .copy(storage, known.size.max(known.used), plan.limit)
        .await
    {
        let path = |volid: &str| {
            let (storage, name) = volid.split_once(':').unwrap_or(("", volid));
            job.world
                .state()
                .storages
                .get(storage)
                .map(|s| s.path_of(name))
                .unwrap_or_default()
        };
        let limit = plan
            .limit
            .map(|limit| format!("-r {limit}K "))
            .unwrap_or_default();
        let message = format!(
            "copy failed: command '/usr/bin/qemu-img convert -p -n {limit}-f {f} -O {f} {} zeroinit:{}' failed: {}",
            path(volume),
            path(&created),
            if fault == "received interrupt" {
                "interrupted by signal"
            } else {
                &fault
            },
            f = known.format,
        );
        job.world.state().remove_volume(&job.node, &created);
        return Err(message);
    }
    log_progress(job, known.size);
    Ok(created)
}

async fn linked_clone(
    job: &Job,
    plan: &ClonePlan,
    key: &str,
    volume: &str,
    known: &Volume,
) -> Result<String, String> {
    let (storage, name) = volume.split_once(':').unwrap_or(("", volume));
    job.log(format!("create linked clone of drive {key} ({volume})"));
    let _lock = job.lock_storage(storage).await?;
    let base = name.rsplit('/').next().unwrap_or(name);
    let fresh = {
        let state = job.world.state();
        state.free_disk_name(&job.node, storage, "vm", plan.target, "qcow2")?
    };
    let file = fresh.rsplit('/').next().unwrap_or(&fresh);
    job.log(format!(
        "clone {name}: images, {file}, {} to {file} (base=../{}/{base})",
        plan.target, plan.source
    ));
    let path = job.world.state().storage(storage)?.path_of(&fresh);
    job.log(formatting_line(&path, "qcow2", known.size));
    let wait = job.world.state().timing.allocate;
    job.sleep(wait).await?;
    let ctime = job.world.epoch();
    job.world.state().add_volume(
        &job.node,
        storage,
        &format!("{name}/{fresh}"),
        Volume {
            format: "qcow2".to_owned(),
            used: 331_776,
            ctime,
            vmid: Some(plan.target),
            parent: Some(format!("../{}/{base}", plan.source)),
            ..known.clone()
        },
    )
}
