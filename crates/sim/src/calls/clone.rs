//! Clones and templates.
//!
//! In: a source and a new id. Out: a copy, full or linked, or a template.
//! Never: two guests with one identity; a clone gets its own.

use std::time::Duration;

use super::disk::{NewDisk, allocate, formatting, make_cloudinit, progress};
use super::permission::{require, require_guest};
use super::vm_create::{abandon, blank, may_create};
use super::{Context, Fail, Outcome};
use crate::guest::config::Config;
use crate::guest::drive::{Drive, is_drive, is_mount};
use crate::world::Kind;
use crate::world::lock::Mode;
use crate::world::run::Job;
use crate::world::state::Volume;

/// How long a clone waits for the locks of its source and target.
const CLONE_LOCK: Duration = Duration::from_secs(1);

/// What a clone is to be.
struct Plan {
    kind: Kind,
    source: u32,
    target: u32,
    full: bool,
    name: Option<String>,
    description: Option<String>,
    storage: Option<String>,
    limit: Option<u64>,
    pool: Option<String>,
    snapshot: Option<String>,
    onto: String,
}

fn exists_already(kind: Kind, target: u32) -> String {
    format!(
        "unable to create {} {target}: config file already exists",
        kind.title()
    )
}

pub(crate) fn clone(context: &Context, kind: Kind) -> Outcome {
    let source = context.vmid()?;
    let target = context
        .number("newid")
        .and_then(|id| u32::try_from(id).ok())
        .unwrap_or(0);
    let pool = context.text("pool").map(ToOwned::to_owned);
    require_guest(context, source, None, "VM.Clone")?;
    may_create(context, target, pool.as_deref())?;
    let onto = context.text("target").unwrap_or(&context.node).to_owned();
    let template = {
        let state = context.world.state();
        let guest = state.guest(&context.node, kind, source)?;
        if let Some(lock) = guest.config.value("lock") {
            return Err(format!("{} is locked ({lock})", kind.title()).into());
        }
        if state.guests.contains_key(&target) {
            return Err(exists_already(kind, target).into());
        }
        if !state.hosts.contains_key(&onto) {
            return Err(Fail::parameter(
                "target",
                format!("no such cluster node '{onto}'"),
            ));
        }
        guest.is_template()
    };
    let full = context.text("full").map_or(!template, |text| text == "1");
    if !full && !template {
        return Err("Linked clone feature is not supported for drive 'scsi0'".into());
    }
    if let Some(storage) = context.text("storage") {
        if !full {
            return Err(Fail::parameter(
                "storage",
                "this option is only allowed when creating full clones.",
            ));
        }
        context.world.state().storage_on(&onto, storage)?;
        require(
            context,
            &format!("/storage/{storage}"),
            "Datastore.AllocateSpace",
        )?;
    }
    let name_key = match kind {
        Kind::Qemu => "name",
        Kind::Lxc => "hostname",
    };
    let plan = Plan {
        kind,
        source,
        target,
        full,
        name: context.text(name_key).map(ToOwned::to_owned),
        description: context.text("description").map(ToOwned::to_owned),
        storage: context.text("storage").map(ToOwned::to_owned),
        limit: context.number("bwlimit"),
        pool,
        snapshot: context.text("snapname").map(ToOwned::to_owned),
        onto,
    };
    let task = match kind {
        Kind::Qemu => "qmclone",
        Kind::Lxc => "vzclone",
    };
    context.task(task, &source.to_string(), move |job| async move {
        run(&job, plan).await
    })
}

async fn run(job: &Job, plan: Plan) -> Result<(), String> {
    let kind = plan.kind;
    // A source that runs is locked for one; one that is off is shared.
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
        let now = job.world.now();
        let mut state = job.world.state();
        if state.guests.contains_key(&plan.target) {
            return Err(exists_already(kind, plan.target));
        }
        let mut guest = blank(plan.target, kind, &plan.onto, now, "clone");
        guest.config.set(
            "description",
            format!(
                " {}clone temporary file",
                if kind == Kind::Qemu { "qm" } else { "vz" }
            ),
        );
        state.guests.insert(plan.target, guest);
    }
    if let Err(fault) = copy(job, &plan).await {
        abandon(job, plan.target);
        return Err(format!("clone failed: {fault}"));
    }
    Ok(())
}

async fn copy(job: &Job, plan: &Plan) -> Result<(), String> {
    let kind = plan.kind;
    let title = kind.title();
    job.log(format!(
        "creating a clone of {title} {} with ID {}",
        plan.source, plan.target
    ));
    let (mut config, boots) = {
        let state = job.world.state();
        let guest = state.guest(&job.node, kind, plan.source)?;
        let config = match &plan.snapshot {
            Some(name) => guest
                .snapshots
                .iter()
                .find(|snapshot| snapshot.name == *name)
                .map(|snapshot| snapshot.config.clone())
                .ok_or_else(|| format!("snapshot '{name}' does not exist"))?,
            None => Config::from_pairs(guest.config.values().clone()),
        };
        (config, guest.boots.clone())
    };
    for key in ["template", "lock", "parent", "protection"] {
        config.remove(key);
    }
    let drives: Vec<(String, String)> = config
        .values()
        .iter()
        .filter(|(key, _)| match kind {
            Kind::Qemu => is_drive(key),
            Kind::Lxc => is_mount(key),
        })
        .map(|(key, text)| (key.clone(), text.clone()))
        .collect();
    for (key, text) in drives {
        let copied = copy_drive(job, plan, &key, &text).await?;
        config.set(&key, copied);
    }
    let unused: Vec<String> = config
        .values()
        .keys()
        .filter(|key| key.starts_with("unused"))
        .cloned()
        .collect();
    for key in unused {
        config.remove(&key);
    }
    finish(job, plan, config, boots)
}

/// Gives the clone an identity of its own and puts it in place.
fn finish(
    job: &Job,
    plan: &Plan,
    mut config: Config,
    boots: crate::world::Boots,
) -> Result<(), String> {
    let kind = plan.kind;
    let epoch = job.world.epoch();
    let mut state = job.world.state();
    let networks: Vec<(String, String)> = config
        .values()
        .iter()
        .filter(|(key, _)| key.starts_with("net") && key[3..].parse::<u32>().is_ok())
        .map(|(key, text)| (key.clone(), text.clone()))
        .collect();
    for (key, text) in networks {
        let fresh = state.random.mac();
        let parts: Vec<String> = text
            .split(',')
            .map(|part| match part.split_once('=') {
                Some((name, old)) if old.matches(':').count() == 5 => format!("{name}={fresh}"),
                _ => part.to_owned(),
            })
            .collect();
        config.set(&key, parts.join(","));
    }
    match kind {
        Kind::Qemu => {
            let (uuid, generation) = (state.random.uuid(), state.random.uuid());
            config.set("smbios1", format!("uuid={uuid}"));
            config.set("vmgenid", generation);
            if config.value("meta").is_none() {
                config.set("meta", format!("creation-qemu=10.0.13,ctime={epoch}"));
            }
            let name = plan.name.clone().unwrap_or_else(|| {
                let old = config
                    .value("name")
                    .map_or_else(|| plan.source.to_string(), ToOwned::to_owned);
                format!("Copy-of-VM-{old}")
            });
            config.set("name", name);
        }
        Kind::Lxc => {
            let name = plan
                .name
                .clone()
                .or_else(|| config.value("hostname").map(|old| format!("Copy-of-{old}")));
            config.set(
                "hostname",
                name.unwrap_or_else(|| format!("CT{}", plan.target)),
            );
        }
    }
    match &plan.description {
        Some(text) => config.set("description", text.clone()),
        None => {
            config.remove("description");
        }
    }
    let now = job.world.now();
    if let Some(pool) = &plan.pool {
        state.pool_of.insert(plan.target, pool.clone());
    }
    let guest = state
        .guests
        .get_mut(&plan.target)
        .ok_or("clone target is gone")?;
    guest.config = config;
    guest.boots = boots;
    guest.touched = now;
    Ok(())
}

async fn copy_drive(job: &Job, plan: &Plan, key: &str, text: &str) -> Result<String, String> {
    let mut drive = Drive::parse(plan.kind, text);
    let volume = drive.volume().to_owned();
    if drive.is_cloudinit() {
        let storage = volume.split(':').next().unwrap_or("").to_owned();
        job.log(format!("create full clone of drive {key} ({volume})"));
        let text = make_cloudinit(job, plan.target, &storage).await?;
        let made = text.split(',').next().unwrap_or("").to_owned();
        job.log(format!("allocated target volume '{made}'"));
        return Ok(text);
    }
    if drive.is_cdrom() || !volume.contains(':') {
        return Ok(text.to_owned());
    }
    let known = job.world.state().volume(&job.node, &volume).cloned();
    let known = known.ok_or_else(|| format!("volume '{volume}' does not exist"))?;
    let made = if plan.full {
        full(job, plan, key, &volume, &known).await?
    } else {
        linked(job, plan, key, &volume, &known).await?
    };
    drive.set_volume(made);
    Ok(drive.render())
}

async fn full(
    job: &Job,
    plan: &Plan,
    key: &str,
    volume: &str,
    known: &Volume,
) -> Result<String, String> {
    let source = volume.split(':').next().unwrap_or("");
    let storage = plan.storage.as_deref().unwrap_or(source);
    job.log(format!("create full clone of drive {key} ({volume})"));
    let stem = if plan.kind == Kind::Lxc && known.format == "subvol" {
        "subvol"
    } else {
        "vm"
    };
    let made = allocate(
        job,
        NewDisk {
            vmid: plan.target,
            storage,
            stem,
            format: &known.format,
            size: known.size,
            used: known.used,
            content: known.content,
            boots: known.boots.clone(),
        },
    )
    .await?;
    job.log(format!("allocated target volume '{made}'"));
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
        let words = format!(
            "copy failed: command '/usr/bin/qemu-img convert -p -n {limit}-f {f} -O {f} {} zeroinit:{}' failed: {}",
            path(volume),
            path(&made),
            if fault == "received interrupt" {
                "interrupted by signal"
            } else {
                &fault
            },
            f = known.format,
        );
        job.world.state().remove_volume(&job.node, &made);
        return Err(words);
    }
    progress(job, known.size);
    Ok(made)
}

async fn linked(
    job: &Job,
    plan: &Plan,
    key: &str,
    volume: &str,
    known: &Volume,
) -> Result<String, String> {
    let (storage, name) = volume.split_once(':').unwrap_or(("", volume));
    job.log(format!("create linked clone of drive {key} ({volume})"));
    let _lock = job.lock_storage(storage).await?;
    let base = name.rsplit('/').next().unwrap_or(name);
    let file = format!("vm-{}-disk-0.{}", plan.target, known.format);
    job.log(format!(
        "clone {name}: images, {file}, {} to {file} (base=../{}/{base})",
        plan.target, plan.source
    ));
    let path = job
        .world
        .state()
        .storage(storage)?
        .path_of(&format!("{}/{file}", plan.target));
    job.log(formatting(&path, &known.format, known.size));
    let wait = job.world.state().timing.allocate;
    job.sleep(wait).await?;
    let ctime = job.world.epoch();
    let own = if name.contains('/') {
        format!("{name}/{}/{file}", plan.target)
    } else {
        format!("{name}/vm-{}-disk-0", plan.target)
    };
    job.world.state().add_volume(
        &job.node,
        storage,
        &own,
        Volume {
            used: 331_776,
            ctime,
            vmid: Some(plan.target),
            parent: Some(format!("../{}/{base}", plan.source)),
            ..known.clone()
        },
    )
}

/// Makes a template of a guest: its disks become bases.
pub(crate) fn template(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    {
        let state = context.world.state();
        let guest = state.guest(&context.node, kind, vmid)?;
        if guest.is_template() {
            let words = match kind {
                Kind::Qemu => "you can't convert a template to a template",
                Kind::Lxc => "you can't convert a CT to template if it is already a template",
            };
            return Err(words.into());
        }
        if guest.running.is_some() {
            let words = match kind {
                Kind::Qemu => "you can't convert a VM to template if VM is running",
                Kind::Lxc => "you can't convert a CT to template if the CT is running",
            };
            return Err(words.into());
        }
        if !guest.snapshots.is_empty() {
            return Err("unable to create template, because VM contains snapshots".into());
        }
    }
    if kind == Kind::Lxc {
        // Containers are converted before the answer.
        become_base(&context.world, &context.node, kind, vmid)?;
        return Ok(serde_json::Value::Null.into());
    }
    context.task("qmtemplate", &vmid.to_string(), move |job| async move {
        let _lock = job.lock_guest(kind, vmid).await?;
        let wait = job.world.state().timing.allocate;
        job.sleep(wait).await?;
        become_base(&job.world, &job.node, kind, vmid)
    })
}

fn become_base(
    world: &crate::world::World,
    node: &str,
    kind: Kind,
    vmid: u32,
) -> Result<(), String> {
    let (now, sweep) = (world.now(), world.last_sweep());
    let mut state = world.state();
    let drives: Vec<(String, String)> = {
        let guest = state.guest_mut(node, kind, vmid)?;
        guest.touch(now, sweep);
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
            let place = known.place(node);
            if let Some(old) = known.volumes.remove(&(place.clone(), name.to_owned())) {
                known.volumes.insert((place, renamed.clone()), old);
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
