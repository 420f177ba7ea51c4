//! Backups: archives of guests on a storage, with notes and protection. Restoring them is in
//! `restore`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::permission::{allows, require};
use super::storage::{check_access, volume_of};
use super::{ApiError, Context, Outcome};
use crate::guest::config::Config;
use crate::guest::drive::{Drive, is_drive, is_mount};
use crate::schema::format::split_list;
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Backup, BackupDisk, Guest, State, Volume};

/// The options of a backup job.
#[derive(Clone)]
struct BackupPlan {
    storage: String,
    mode: String,
    /// The file extension of the compression, with its dot.
    extension: &'static str,
    notes: String,
    protected: bool,
    limit: Option<u64>,
}

pub(crate) fn create(context: &Context) -> Outcome {
    let text = |name: &str| context.text(name).unwrap_or("").to_owned();
    let plan = BackupPlan {
        storage: context.text("storage").unwrap_or("local").to_owned(),
        mode: context.text("mode").unwrap_or("snapshot").to_owned(),
        extension: match context.text("compress") {
            Some("zstd") => ".zst",
            Some("gzip" | "1") => ".gz",
            Some("lzo") => ".lzo",
            _ => "",
        },
        notes: text("notes-template"),
        protected: context.flag("protected"),
        limit: context.number("bwlimit"),
    };
    check_options(context, &plan.storage)?;
    let all = context.flag("all") || context.text("pool").is_some();
    let mut guests = Vec::new();
    let mut denied = None;
    for vmid in selected_guests(context)? {
        if allows(context, &format!("/vms/{vmid}"), "VM.Backup") {
            guests.push(vmid);
        } else if !all {
            denied = Some(vmid);
        }
    }
    if guests.is_empty() && denied.is_none() {
        return Ok(json!("OK").into());
    }
    let id = match guests[..] {
        [only] if denied.is_none() => only.to_string(),
        _ => denied.map_or_else(String::new, |vmid| vmid.to_string()),
    };
    context.task("vzdump", &id, move |job| async move {
        // The privilege on each guest is checked by the worker.
        if let Some(vmid) = denied {
            return Err(format!(
                "403 Permission check failed (/vms/{vmid}, VM.Backup)"
            ));
        }
        run(&job, &plan, guests).await
    })
}

fn check_options(context: &Context, storage: &str) -> Result<(), ApiError> {
    require(
        context,
        &format!("/storage/{storage}"),
        "Datastore.AllocateSpace",
    )?;
    if context.is_root() {
        return Ok(());
    }
    for name in ["tmpdir", "dumpdir", "script", "job-id"] {
        if context.text(name).is_some() {
            return Err(ApiError::parameter(name, "Only root may set this option."));
        }
    }
    if context.text("prune-backups").is_some() {
        require(
            context,
            &format!("/storage/{storage}"),
            "Datastore.Allocate",
        )?;
    }
    for name in ["bwlimit", "performance", "ionice"] {
        if context.text(name).is_some() {
            require(context, "/", "Sys.Modify")?;
        }
    }
    Ok(())
}

/// Returns the guests on this host to back up: those named, those of a pool, or all.
fn selected_guests(context: &Context) -> Result<Vec<u32>, ApiError> {
    let ids = |name: &str| -> Vec<u32> {
        split_list(context.text(name).unwrap_or(""))
            .filter_map(|id| id.parse().ok())
            .collect()
    };
    let (named, excluded) = (ids("vmid"), ids("exclude"));
    let all = context.flag("all") || context.text("exclude").is_some();
    if all && !named.is_empty() {
        return Err(ApiError::parameter(
            "all",
            "option conflicts with option 'vmid'",
        ));
    }
    if !all && named.is_empty() && context.text("pool").is_none() {
        return Err(ApiError::parameter("vmid", "property is missing"));
    }
    let state = context.world.state();
    let here = state.guests.values();
    let here = here.filter(|guest| guest.node == context.node && !excluded.contains(&guest.vmid));
    let mut selected: Vec<u32> = match context.text("pool") {
        Some(pool) => here
            .map(|guest| guest.vmid)
            .filter(|vmid| state.pool_of.get(vmid).is_some_and(|of| of == pool))
            .collect(),
        None if all => here.map(|guest| guest.vmid).collect(),
        // A guest on another host is skipped; one that does not exist fails in the task.
        None => named
            .into_iter()
            .filter(|vmid| {
                let guest = state.guests.get(vmid);
                guest.is_none_or(|guest| guest.node == context.node)
            })
            .collect(),
    };
    selected.sort_unstable();
    Ok(selected)
}

async fn run(job: &Job, plan: &BackupPlan, guests: Vec<u32>) -> Result<(), String> {
    let name = &plan.storage;
    let usable = {
        let state = job.world.state();
        let storage = state.storage_on(&job.node, name);
        storage.and_then(|storage| {
            if storage.content.iter().any(|kind| kind == "backup") {
                Ok(())
            } else {
                let fault = "wrong content type";
                Err(format!("can't use storage '{name}' for backups - {fault}"))
            }
        })
    };
    usable.map_err(|fault| format!("could not get storage information for '{name}': {fault}"))?;
    let mut faults = 0;
    for vmid in guests {
        if let Err(fault) = back_up(job, plan, vmid).await {
            if fault == "received interrupt" {
                return Err("interrupted by signal".to_owned());
            }
            job.log(format!("ERROR: Backup of VM {vmid} failed - {fault}"));
            faults += 1;
        }
    }
    if faults > 0 {
        job.log("INFO: Backup job finished with errors");
        return Err("job errors".to_owned());
    }
    job.log("INFO: Backup job finished successfully");
    Ok(())
}

/// Backs up one guest, whose configuration is locked meanwhile.
async fn back_up(job: &Job, plan: &BackupPlan, vmid: u32) -> Result<(), String> {
    let began = job.world.clock().now();
    let (kind, backup) = {
        let kind = {
            let state = job.world.state();
            let guest = state.guests.get(&vmid);
            let guest = guest.filter(|guest| guest.node == job.node);
            guest
                .map(|guest| guest.kind)
                .ok_or_else(|| format!("unable to find VM '{vmid}'"))?
        };
        job.log(format!(
            "INFO: Starting Backup of VM {vmid} ({})",
            kind.api_name()
        ));
        let _lock = job.lock_guest(kind, vmid).await?;
        let mut state = job.world.state();
        let notes = render_notes(&state, plan, &job.node, vmid);
        let guest = state.guest(&job.node, kind, vmid)?;
        if let Some(lock) = guest.config.value("lock") {
            return Err(format!("{} is locked ({lock})", kind.title()));
        }
        let backup = backup_of(&state, guest, notes, plan.protected);
        let guest = state.guest_mut(&job.node, kind, vmid)?;
        guest.config.set("lock", "backup");
        (kind, backup)
    };
    job.log(format!("INFO: backup mode: {}", plan.mode));
    let used: u64 = backup.disks.values().map(|disk| disk.used).sum();
    let copied = job.copy(&plan.storage, used, plan.limit).await;
    {
        let mut state = job.world.state();
        if let Ok(guest) = state.guest_mut(&job.node, kind, vmid) {
            guest.config.remove("lock");
        }
    }
    copied?;
    let stem = match kind {
        Kind::Qemu => "vma",
        Kind::Lxc => "tar",
    };
    let name = format!(
        "backup/vzdump-{}-{vmid}-{}.{stem}{}",
        kind.api_name(),
        began.strftime("%Y_%m_%d-%H_%M_%S"),
        plan.extension
    );
    let mut state = job.world.state();
    let storage = state.storage(&plan.storage)?;
    let path = storage.path_of(&name);
    if state.usage(storage, &job.node).available < used {
        return Err(format!("{path}: No space left on device"));
    }
    let boots = backup.boots.clone();
    let archive = Volume {
        content: "backup",
        format: format!("{stem}{}", plan.extension),
        size: used,
        used,
        ctime: began.as_second(),
        vmid: Some(vmid),
        parent: None,
        boots,
        backup: Some(Box::new(backup)),
    };
    state.add_volume(&job.node, &plan.storage, &name, archive)?;
    drop(state);
    job.log(format!("INFO: creating vzdump archive '{path}'"));
    job.log(format!("INFO: Finished Backup of VM {vmid}"));
    Ok(())
}

fn render_notes(state: &State, plan: &BackupPlan, node: &str, vmid: u32) -> String {
    let name = state.guests.get(&vmid).map(Guest::name).unwrap_or_default();
    plan.notes
        .replace("{{guestname}}", &name)
        .replace("{{vmid}}", &vmid.to_string())
        .replace("{{node}}", node)
        .replace("{{cluster}}", state.name.as_deref().unwrap_or(""))
        .replace("\\n", "\n")
}

/// Returns the content of an archive of a guest: its current configuration and its disks.
pub(crate) fn backup_of(state: &State, guest: &Guest, notes: String, protected: bool) -> Backup {
    let mut config = Config::from_pairs(guest.config.values().clone());
    config.remove("lock");
    let mut disks = BTreeMap::new();
    for (key, text) in config.values() {
        let drive = Drive::parse(guest.kind, text);
        let included = match guest.kind {
            Kind::Qemu => is_drive(key) && !drive.is_cdrom() && drive.part("backup") != Some("0"),
            // Mount points other than the root are excluded unless they set `backup=1`.
            Kind::Lxc => key == "rootfs" || is_mount(key) && drive.part("backup") == Some("1"),
        };
        let Some((storage, name)) = drive.volume().split_once(':').filter(|_| included) else {
            continue;
        };
        let known = state.volume(&guest.node, drive.volume());
        let extension = name.rsplit('.').next().unwrap_or("raw");
        let disk = BackupDisk {
            storage: storage.to_owned(),
            format: known.map_or_else(|| extension.to_owned(), |known| known.format.clone()),
            size: known.map_or(drive.size(), |known| known.size),
            used: known.map_or(0, |known| known.used),
        };
        disks.insert(key.clone(), disk);
    }
    Backup {
        kind: guest.kind,
        config,
        boots: guest.boots.clone(),
        notes,
        protected,
        disks,
    }
}

/// Returns the configuration in a backup as text.
pub(crate) fn extract_config(context: &Context) -> Outcome {
    let (storage, name) = volume_of(context)?;
    check_access(context, &storage, &name, None)?;
    let state = context.world.state();
    let backup = find(&state, &context.node, &storage, &name)?;
    let mut text = backup.config.text();
    if backup.kind == Kind::Qemu {
        for (key, disk) in &backup.disks {
            let (storage, format) = (&disk.storage, &disk.format);
            text.push_str(&format!(
                "#qmdump#map:{key}:drive-{key}:{storage}:{format}:\n"
            ));
        }
    }
    Ok(json!(text).into())
}

/// Returns the content of a backup on a storage.
pub(crate) fn find<'s>(
    state: &'s State,
    host: &str,
    storage: &str,
    name: &str,
) -> Result<&'s Backup, String> {
    let known = state.storage_on(host, storage)?;
    let volume = known
        .volume(host, name)
        .ok_or_else(|| format!("volume '{storage}:{name}' does not exist"))?;
    volume
        .backup
        .as_deref()
        .ok_or_else(|| format!("volume '{storage}:{name}' is not a backup"))
}

/// Changes the notes and the protection of a backup.
pub(crate) fn update_attributes(context: &Context) -> Outcome {
    let (storage, name) = volume_of(context)?;
    check_access(context, &storage, &name, None)?;
    let mut state = context.world.state();
    find(&state, &context.node, &storage, &name)?;
    let known = state.storage_mut(&storage)?;
    let key = (known.volume_host(&context.node), name);
    if let Some(backup) = known
        .volumes
        .get_mut(&key)
        .and_then(|volume| volume.backup.as_mut())
    {
        if let Some(notes) = context.text("notes") {
            notes.clone_into(&mut backup.notes);
        }
        if context.text("protected").is_some() {
            backup.protected = context.flag("protected");
        }
    }
    Ok(Value::Null.into())
}
