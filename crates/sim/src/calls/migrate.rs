//! Moving guests between hosts of a cluster, and what their disks can do.
//!
//! A VM moves while it is off or while it runs; a container that runs is restarted. The
//! configuration moves as it is, locked with `migrate` meanwhile.
//! In: a guest and a host. Out: the guest there.
//! Never: another configuration.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{Context, Fail, Outcome};
use crate::guest::drive::{Drive, is_drive, is_mount, volumes};
use crate::schema::format::split_list;
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

/// Where a guest goes, and how.
struct Move {
    kind: Kind,
    vmid: u32,
    target: String,
    /// Whether it may run while it moves.
    online: bool,
    /// Whether it is stopped before and started after.
    restart: bool,
    /// Whether disks that are not shared may be copied while it runs.
    local_disks: bool,
    /// Which storage takes the place of which; `*` stands for all.
    storages: BTreeMap<String, String>,
    limit: Option<u64>,
}

impl Move {
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
    let target = context.need("target")?.to_owned();
    if target == context.node {
        return Err(Fail::parameter("target", "target is local node."));
    }
    if !context.world.state().hosts.contains_key(&target) {
        return Err(format!("no such cluster node '{target}'").into());
    }
    for name in ["force", "migration_type", "migration_network"] {
        if context.text(name).is_some() && !context.is_root() {
            return Err(Fail::parameter(name, "Only root may use this option."));
        }
    }
    let plan = Move {
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
        // A container's lock is found by the task.
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
        shift(&job, &plan).await.map_err(|fault| {
            job.log(format!("ERROR: migration aborted: {fault}"));
            "migration aborted".to_owned()
        })
    })
}

/// Reads which storage takes the place of which: one for all, `1` for each itself, or pairs.
fn storages(context: &Context, target: &str) -> Result<BTreeMap<String, String>, Fail> {
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

/// Moves a guest: its disks that are not shared, then its configuration.
async fn shift(job: &Job, plan: &Move) -> Result<(), String> {
    let (kind, vmid, target) = (plan.kind, plan.vmid, plan.target.as_str());
    let _lock = job.lock_guest(kind, vmid).await?;
    let was_running = check(job, plan)?;
    if kind == Kind::Lxc && was_running {
        job.log(format!("shutdown CT {vmid}"));
        let wait = job.world.state().timing.shutdown;
        job.sleep(wait).await?;
        job.world.set_stopped(&job.node, kind, vmid)?;
    }
    let own = local_volumes(job, plan)?;
    let title = kind.title();
    job.log(format!(
        "starting migration of {title} {vmid} to node '{target}'"
    ));
    {
        let mut state = job.world.state();
        let guest = state.guest_mut(&job.node, kind, vmid)?;
        guest.config.set("lock", "migrate");
    }
    let copied = copy(job, plan, &own, was_running).await;
    {
        let mut state = job.world.state();
        state
            .guest_mut(&job.node, kind, vmid)?
            .config
            .remove("lock");
    }
    copied?;
    hand_over(job, plan, &own)?;
    if kind == Kind::Lxc && was_running {
        job.log("start container on target node");
        let there = Job {
            node: target.to_owned(),
            ..job.clone()
        };
        super::power::start_now(&there, kind, vmid).await?;
    }
    job.log("migration finished successfully");
    Ok(())
}

/// Fails unless the guest can go as it is. Returns whether it runs.
fn check(job: &Job, plan: &Move) -> Result<bool, String> {
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

/// Returns the volumes to copy with their sizes, or why they cannot be.
fn local_volumes(job: &Job, plan: &Move) -> Result<Vec<(String, u64)>, String> {
    let state = job.world.state();
    let guest = state.guest(&job.node, plan.kind, plan.vmid)?;
    let mut own = Vec::new();
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
            let words = "can't live migrate attached local disks without with-local-disks option";
            Some(words.to_owned())
        } else if guest.running.is_some() && !guest.snapshots.is_empty() {
            Some("online storage migration not possible if snapshot exists".to_owned())
        } else if state.is_base_and_used(&volume) {
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
        own.push((volume.clone(), known.used));
    }
    drop(state);
    if faults.is_empty() {
        return Ok(own);
    }
    for fault in faults {
        job.log(fault);
    }
    Err("Problem found while scanning volumes - can't migrate VM - check log".to_owned())
}

async fn copy(
    job: &Job,
    plan: &Move,
    own: &[(String, u64)],
    was_running: bool,
) -> Result<(), String> {
    for (volume, bytes) in own {
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

/// Gives the target what is not shared and the configuration, which stays as it is.
fn hand_over(job: &Job, plan: &Move, own: &[(String, u64)]) -> Result<(), String> {
    let (now, sweep) = (job.world.now(), job.world.last_sweep());
    let mut state = job.world.state();
    for (volume, _) in own {
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
    guest.touch(now, sweep);
    for (key, volume) in volumes(plan.kind, &guest.config) {
        let (storage, name) = volume.split_once(':').unwrap_or(("", &volume));
        let to = plan.storage(storage);
        let copied = own.iter().any(|(one, _)| *one == volume);
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
