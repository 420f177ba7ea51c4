//! Migrates guests between hosts of a cluster, and reports the features of their disks.
//!
//! A VM migrates offline or live; a running container is restarted. The configuration is locked
//! with `migrate` meanwhile and otherwise unchanged.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{ApiError, Context, Outcome};
use crate::guest::drive::{Drive, is_drive, is_mount, volumes};
use crate::schema::format::split_list;
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Guest, State};

/// Whether every disk of a guest supports a feature: `snapshot`, `clone` or `copy`.
pub(crate) fn feature(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let feature = context.required("feature")?;
    let state = context.world.state();
    let guest = state.guest(&context.node, kind, vmid)?;
    let able = disks(guest).iter().all(|volume| {
        let known = state.volume(&guest.node, volume);
        let format = known.map_or("", |known| known.format.as_str());
        match feature {
            "snapshot" => format == "qcow2",
            // The base of a linked clone is the disk of a template.
            "clone" => volume.contains("/base-") || volume.contains("/basevol-"),
            _ => true,
        }
    });
    let mut shown = json!({ "hasFeature": u8::from(able) });
    if kind == Kind::Qemu {
        shown["nodes"] = json!(eligible_hosts(&state, guest));
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

/// Returns the hosts with all storages of a guest: only its own if one is not shared.
fn eligible_hosts(state: &State, guest: &Guest) -> BTreeSet<String> {
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

/// The options of a migration.
struct MigrationPlan {
    kind: Kind,
    vmid: u32,
    target: String,
    /// Whether the guest may run while it migrates.
    online: bool,
    /// Whether the guest is stopped before and started after.
    restart: bool,
    /// Whether local disks of a running guest may be copied.
    local_disks: bool,
    /// The target storage by source storage; `*` stands for all others.
    storages: BTreeMap<String, String>,
    limit: Option<u64>,
}

impl MigrationPlan {
    fn storage<'a>(&'a self, from: &'a str) -> &'a str {
        let storages = &self.storages;
        storages
            .get(from)
            .or(storages.get("*"))
            .map_or(from, String::as_str)
    }
}

pub(crate) fn migrate(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let target = context.required("target")?.to_owned();
    if target == context.node {
        return Err(ApiError::parameter("target", "target is local node."));
    }
    if !context.world.state().hosts.contains_key(&target) {
        return Err(format!("no such cluster node '{target}'").into());
    }
    for name in ["force", "migration_type", "migration_network"] {
        if context.text(name).is_some() && !context.is_root() {
            return Err(ApiError::parameter(name, "Only root may use this option."));
        }
    }
    let plan = MigrationPlan {
        kind,
        vmid,
        online: context.flag("online"),
        restart: context.flag("restart"),
        local_disks: context.flag("with-local-disks"),
        storages: storages(context, &target)?,
        limit: context.number("bwlimit"),
        target,
    };
    {
        let state = context.world.state();
        let guest = state.guest(&context.node, kind, vmid)?;
        // The lock of a container is checked by the task.
        if let Some(lock) = guest.config.value("lock").filter(|_| kind == Kind::Qemu) {
            return Err(format!("VM is locked ({lock})").into());
        }
        if guest.running.is_some() {
            match kind {
                Kind::Qemu if !plan.online => {
                    return Err("can't migrate running VM without --online".into());
                }
                Kind::Lxc if !(plan.online || plan.restart) => {
                    return Err(
                        "can't migrate running container without --online or --restart".into(),
                    );
                }
                Kind::Qemu | Kind::Lxc => {}
            }
        }
    }
    let task = match kind {
        Kind::Qemu => "qmigrate",
        Kind::Lxc => "vzmigrate",
    };
    context.task(task, &vmid.to_string(), move |job| async move {
        run(&job, &plan).await.map_err(|fault| {
            job.log(format!("ERROR: migration aborted: {fault}"));
            "migration aborted".to_owned()
        })
    })
}

/// Parses the storage mapping: one storage for all, `1` for the same names, or pairs.
fn storages(context: &Context, target: &str) -> Result<BTreeMap<String, String>, ApiError> {
    let given = context.text("targetstorage");
    let given = given.or(context.text("target-storage")).unwrap_or("");
    let mut storages = BTreeMap::new();
    for entry in split_list(given).filter(|entry| *entry != "1") {
        let (from, to) = entry.split_once(':').unwrap_or(("*", entry));
        context.world.state().storage_on(target, to)?;
        let path = format!("/storage/{to}");
        super::permission::require(context, &path, "Datastore.AllocateSpace")?;
        storages.insert(from.to_owned(), to.to_owned());
    }
    Ok(storages)
}

/// Migrates a guest: copies its local disks, then moves its configuration.
async fn run(job: &Job, plan: &MigrationPlan) -> Result<(), String> {
    let (kind, vmid, target) = (plan.kind, plan.vmid, plan.target.as_str());
    let _lock = job.lock_guest(kind, vmid).await?;
    let was_running = check(job, plan)?;
    if kind == Kind::Lxc && was_running {
        job.log(format!("shutdown CT {vmid}"));
        let wait = job.world.state().timing.shutdown;
        job.sleep(wait).await?;
        job.world.set_stopped(&job.node, kind, vmid)?;
    }
    let local = local_volumes(job, plan)?;
    let title = kind.title();
    job.log(format!(
        "starting migration of {title} {vmid} to node '{target}'"
    ));
    {
        let mut state = job.world.state();
        let guest = state.guest_mut(&job.node, kind, vmid)?;
        guest.config.set("lock", "migrate");
    }
    let copied = copy(job, plan, &local, was_running).await;
    {
        let mut state = job.world.state();
        state
            .guest_mut(&job.node, kind, vmid)?
            .config
            .remove("lock");
    }
    copied?;
    transfer(job, plan, &local)?;
    if kind == Kind::Lxc && was_running {
        job.log("start container on target node");
        let there = Job {
            node: target.to_owned(),
            ..job.clone()
        };
        super::power::start_guest(&there, kind, vmid).await?;
    }
    job.log("migration finished successfully");
    Ok(())
}

/// Fails unless the guest can be migrated in its current state. Returns whether it runs.
fn check(job: &Job, plan: &MigrationPlan) -> Result<bool, String> {
    let state = job.world.state();
    let host = state.hosts.get(&plan.target);
    if host.is_none_or(|host| !host.online) {
        return Err("Can't connect to destination address using public key".to_owned());
    }
    let guest = state.guest(&job.node, plan.kind, plan.vmid)?;
    if let Some(lock) = guest.config.value("lock") {
        return Err(format!("{} is locked ({lock})", plan.kind.title()));
    }
    let running = guest.running.is_some();
    match plan.kind {
        Kind::Qemu if running && !plan.online => {
            Err("can't migrate running VM without --online".to_owned())
        }
        Kind::Lxc if running && plan.online => {
            Err("lxc live migration is currently not implemented".to_owned())
        }
        Kind::Lxc if running && !plan.restart => {
            Err("running container can only be migrated in restart mode".to_owned())
        }
        Kind::Qemu | Kind::Lxc => Ok(running),
    }
}

/// Returns the local volumes, which must be copied, with their sizes.
fn local_volumes(job: &Job, plan: &MigrationPlan) -> Result<Vec<(String, u64)>, String> {
    let state = job.world.state();
    let guest = state.guest(&job.node, plan.kind, plan.vmid)?;
    let mut local = Vec::new();
    let mut faults = Vec::new();
    for (key, volume) in volumes(plan.kind, &guest.config) {
        let (storage, name) = volume.split_once(':').unwrap_or(("", &volume));
        if state.storage(storage)?.shared {
            state.storage_on(&plan.target, storage)?;
            continue;
        }
        let text = guest.config.value(&key).unwrap_or("");
        let drive = Drive::parse(plan.kind, text);
        let fault = if drive.is_cdrom() && !drive.is_cloudinit() {
            Some("local cdrom image".to_owned())
        } else if plan.kind == Kind::Qemu && guest.running.is_some() && !plan.local_disks {
            let message = "can't live migrate attached local disks without with-local-disks option";
            Some(message.to_owned())
        } else if guest.running.is_some() && !guest.snapshots.is_empty() {
            Some("online storage migration not possible if snapshot exists".to_owned())
        } else if state.is_base_in_use(&volume) {
            Some("referenced by linked clone(s)".to_owned())
        } else {
            None
        };
        if let Some(fault) = fault {
            faults.push(format!("can't migrate local disk '{volume}': {fault}"));
            continue;
        }
        let known = state.volume(&job.node, &volume);
        let known = known.ok_or_else(|| format!("volume '{volume}' does not exist"))?;
        if known.parent.is_some() {
            let base = name.split('/').nth(1).unwrap_or(name);
            return Err(format!(
                "can't migrate '{volume}' as it's a clone of '{base}'"
            ));
        }
        state.storage_on(&plan.target, plan.storage(storage))?;
        local.push((volume.clone(), known.used));
    }
    drop(state);
    if faults.is_empty() {
        return Ok(local);
    }
    for fault in faults {
        job.log(fault);
    }
    Err("Problem found while scanning volumes - can't migrate VM - check log".to_owned())
}

async fn copy(
    job: &Job,
    plan: &MigrationPlan,
    local: &[(String, u64)],
    was_running: bool,
) -> Result<(), String> {
    for (volume, bytes) in local {
        job.log(format!("copying local disk image '{volume}'"));
        let storage = volume.split(':').next().unwrap_or("");
        job.copy(storage, *bytes, plan.limit).await?;
    }
    if plan.kind == Kind::Qemu && was_running {
        job.log(format!(
            "starting VM {} on remote node '{}'",
            plan.vmid, plan.target
        ));
        let wait = job.world.state().timing.vm_start;
        job.sleep(wait).await?;
    }
    Ok(())
}

/// Moves the local volumes and the guest to the target host.
fn transfer(job: &Job, plan: &MigrationPlan, local: &[(String, u64)]) -> Result<(), String> {
    let (now, last_update) = (job.world.now(), job.world.last_status_update());
    let mut state = job.world.state();
    for (volume, _) in local {
        let Some((storage, name)) = volume.split_once(':') else {
            continue;
        };
        let to = plan.storage(storage);
        let old = &mut state.storage_mut(storage)?.volumes;
        if let Some(moved) = old.remove(&(job.node.clone(), name.to_owned())) {
            state.add_volume(&plan.target, to, name, moved)?;
        }
    }
    let pid = state.tasks.next_pid();
    let guest = state.guest_mut(&job.node, plan.kind, plan.vmid)?;
    guest.touch(now, last_update);
    for (key, volume) in volumes(plan.kind, &guest.config) {
        let (storage, name) = volume.split_once(':').unwrap_or(("", &volume));
        let to = plan.storage(storage);
        let copied = local.iter().any(|(one, _)| *one == volume);
        if copied && to != storage {
            let mut drive = Drive::parse(plan.kind, guest.config.value(&key).unwrap_or(""));
            drive.set_volume(format!("{to}:{name}"));
            guest.config.set(&key, drive.render());
        }
    }
    if let Some(running) = &mut guest.running {
        running.pid = pid;
    }
    plan.target.clone_into(&mut guest.node);
    Ok(())
}
