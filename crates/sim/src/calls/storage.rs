//! Storages and their content. Uploads and downloads are in `upload`.

use serde_json::{Value, json};

use super::cluster::may_see_storage;
use super::{ApiError, Context, Outcome, permission};
use crate::schema::format::split_list;
use crate::world::Kind;
use crate::world::state::{State, Storage, Volume};

impl State {
    /// Returns a storage that is available on a host, or PVE's error.
    pub(crate) fn storage_on(&self, host: &str, name: &str) -> Result<&Storage, String> {
        let storage = self.storage(name)?;
        if storage.is_on(host) {
            Ok(storage)
        } else {
            Err(format!(
                "storage '{name}' is not available on node '{host}'"
            ))
        }
    }

    /// Returns a storage that is active on a host, or PVE's error.
    pub(crate) fn active_on(&self, host: &str, name: &str) -> Result<&Storage, String> {
        let storage = self.storage_on(host, name)?;
        storage.check_active()?;
        Ok(storage)
    }
}

pub(crate) fn configured(context: &Context) -> Outcome {
    let names: Vec<String> = context.world.state().storages.keys().cloned().collect();
    let mut list = Vec::new();
    for name in names {
        if may_see_storage(context, &name) {
            let state = context.world.state();
            list.push(definition(state.storage(&name)?));
        }
    }
    if let Some(kind) = context.text("type") {
        list.retain(|entry| entry["type"] == kind);
    }
    Ok(json!(list).into())
}

pub(crate) fn configuration(context: &Context) -> Outcome {
    let name = context.required("storage")?;
    let state = context.world.state();
    Ok(definition(state.storage(name)?).into())
}

/// Defines a storage. Only directory-based types are simulated.
pub(crate) fn define(context: &Context) -> Outcome {
    let (name, kind) = (context.required("storage")?, context.required("type")?);
    let path = match kind {
        "dir" => context
            .text("path")
            .ok_or("missing value for required option 'path'")?
            .to_owned(),
        "nfs" | "cifs" => format!("/mnt/pve/{name}"),
        _ => {
            return Err(ApiError::new(
                501,
                format!("storage type '{kind}' is not simulated"),
            ));
        }
    };
    let mut state = context.world.state();
    if state.storages.contains_key(name) {
        return Err(format!("storage ID '{name}' already defined").into());
    }
    let list = |name: &str| {
        context
            .text(name)
            .map(|text| split_list(text).map(ToOwned::to_owned))
    };
    let content = list("content").map_or_else(
        || ["images", "rootdir"].map(ToOwned::to_owned).to_vec(),
        |kinds| kinds.collect(),
    );
    let mut created =
        Storage::directory(name, kind, &path, kind != "dir" || context.flag("shared"));
    created.content = content;
    created.hosts = list("nodes").map(|hosts| hosts.collect());
    created.enabled = !context.flag("disable");
    created.own_filesystem |= context.flag("is_mountpoint");
    state.storages.insert(name.to_owned(), created);
    Ok(json!({ "storage": name, "type": kind }).into())
}

/// Changes the definition of a storage.
pub(crate) fn redefine(context: &Context) -> Outcome {
    let name = context.required("storage")?;
    let mut state = context.world.state();
    let storage = state.storage_mut(name)?;
    if context.text("disable").is_some() {
        storage.enabled = !context.flag("disable");
    }
    if let Some(kinds) = context.text("content") {
        storage.content = split_list(kinds).map(ToOwned::to_owned).collect();
    }
    if let Some(hosts) = context.text("nodes") {
        storage.hosts = Some(split_list(hosts).map(ToOwned::to_owned).collect());
    }
    for key in split_list(context.text("delete").unwrap_or("")) {
        match key {
            "disable" => storage.enabled = true,
            "nodes" => storage.hosts = None,
            _ => {}
        }
    }
    Ok(json!({ "storage": name, "type": storage.kind }).into())
}

/// Removes the definition of a storage; its content remains.
pub(crate) fn undefine(context: &Context) -> Outcome {
    let name = context.required("storage")?;
    let mut state = context.world.state();
    state.storage(name)?;
    state.storages.remove(name);
    Ok(Value::Null.into())
}

fn definition(storage: &Storage) -> Value {
    let mut shown = json!({
        "storage": storage.name,
        "type": storage.kind,
        "content": storage.content.join(","),
        "path": storage.path,
        "digest": "300d12ce8eb3de2d6f4cadc97359aef8b7ea9098",
    });
    for (key, value) in &storage.options {
        shown[key] = json!(value);
    }
    if storage.shared {
        shown["shared"] = json!(1);
    }
    if !storage.enabled {
        shown["disable"] = json!(1);
    }
    if let Some(hosts) = &storage.hosts {
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        shown["nodes"] = json!(hosts.join(","));
    }
    shown
}

pub(crate) fn list(context: &Context) -> Outcome {
    let names: Vec<String> = context.world.state().storages.keys().cloned().collect();
    let mut list = Vec::new();
    for name in names {
        if !may_see_storage(context, &name) {
            continue;
        }
        let state = context.world.state();
        let storage = state.storage(&name)?;
        let wanted = context.text("storage").is_none_or(|only| only == name)
            && context.text("content").is_none_or(|wanted| {
                split_list(wanted).any(|kind| storage.content.iter().any(|has| has == kind))
            });
        if !wanted || !storage.is_on(&context.node) {
            continue;
        }
        if context.flag("enabled") && !storage.enabled {
            continue;
        }
        let mut shown = status_fields(&state, storage, &context.node);
        shown["storage"] = json!(name);
        if storage.check_active().is_ok() {
            let usage = state.usage(storage, &context.node);
            shown["used_fraction"] = json!(usage.used as f64 / usage.total.max(1) as f64);
        }
        list.push(shown);
    }
    Ok(json!(list).into())
}

/// Returns the status of a storage. An inactive one has size 0.
fn status_fields(state: &State, storage: &Storage, host: &str) -> Value {
    let active = storage.check_active().is_ok();
    let usage = state.usage(storage, host);
    let shown = |bytes: u64| if active { bytes } else { 0 };
    json!({
        "type": storage.kind,
        "content": storage.content.join(","),
        "active": u8::from(active),
        "enabled": u8::from(storage.enabled),
        "shared": u8::from(storage.shared),
        "total": shown(usage.total),
        "used": shown(usage.used),
        "avail": shown(usage.available),
    })
}

pub(crate) fn status(context: &Context) -> Outcome {
    let state = context.world.state();
    let storage = state.storage_on(&context.node, context.required("storage")?)?;
    Ok(status_fields(&state, storage, &context.node).into())
}

pub(crate) fn content(context: &Context) -> Outcome {
    let name = context.required("storage")?;
    let vmid = context.number("vmid").and_then(|id| u32::try_from(id).ok());
    let state = context.world.state();
    let storage = state.active_on(&context.node, name)?;
    let volume_host = storage.volume_host(&context.node);
    let has =
        |path: &str, name: &str| context.is_root() || state.allows(&context.identity, path, name);
    let path = format!("/storage/{name}");
    // Volumes the caller may not read are omitted without an error.
    let listed = |volume: &Volume| {
        if has(&path, "Datastore.Allocate") {
            return true;
        }
        let owner = volume.vmid.map(|vmid| format!("/vms/{vmid}"));
        match (content_of(&state, volume), owner) {
            ("backup", Some(owner)) => {
                has(&path, "Datastore.AllocateSpace") && has(&owner, "VM.Backup")
            }
            ("backup" | "snippets", _) => false,
            (_, Some(owner)) => has(&path, "Datastore.Audit") && has(&owner, "VM.Config.Disk"),
            (_, None) => true,
        }
    };
    let list: Vec<Value> = storage
        .volumes
        .range((volume_host.clone(), String::new())..)
        .take_while(|((at, _), _)| *at == volume_host)
        .filter(|(_, volume)| listed(volume))
        .filter(|(_, volume)| {
            context
                .text("content")
                .is_none_or(|kind| content_of(&state, volume) == kind)
        })
        .filter(|(_, volume)| match (vmid, volume.vmid) {
            (None, _) => true,
            (Some(vmid), Some(of)) => vmid == of,
            // These belong to no guest and are listed for every guest.
            (Some(_), None) => matches!(volume.content, "import" | "snippets"),
        })
        .map(|((_, volume_name), volume)| {
            entry(name, volume_name, volume, content_of(&state, volume))
        })
        .collect();
    Ok(json!(list).into())
}

/// Returns the content type a volume is listed with: `rootdir` while its owner is a container.
fn content_of(state: &State, volume: &Volume) -> &'static str {
    let owner = volume.vmid.and_then(|vmid| state.guests.get(&vmid));
    match volume.content {
        "images" | "rootdir" if owner.is_some_and(|guest| guest.kind == Kind::Lxc) => "rootdir",
        "rootdir" => "images",
        content => content,
    }
}

fn entry(storage: &str, name: &str, volume: &Volume, content: &str) -> Value {
    let mut shown = json!({
        "volid": format!("{storage}:{name}"),
        "content": content,
        "format": volume.format,
        "size": volume.size,
        "ctime": volume.ctime,
    });
    if let Some(vmid) = volume.vmid {
        shown["vmid"] = json!(vmid);
    }
    if let Some(backup) = &volume.backup {
        shown["subtype"] = json!(backup.kind.api_name());
        if !backup.notes.is_empty() {
            shown["notes"] = json!(backup.notes);
        }
        if backup.protected {
            shown["protected"] = json!(1);
        }
    } else if volume.vmid.is_some() {
        shown["used"] = json!(volume.used);
        shown["parent"] = json!(volume.parent);
    }
    shown
}

/// Returns storage and name of the volume of a call, which may be given without its storage.
pub(crate) fn volume_of(context: &Context) -> Result<(String, String), ApiError> {
    let volume = context.required("volume")?;
    let storage = context.text("storage").unwrap_or("");
    match volume.split_once(':') {
        Some((own, name)) => Ok((own.to_owned(), name.to_owned())),
        None => Ok((storage.to_owned(), volume.to_owned())),
    }
}

pub(crate) fn volume(context: &Context) -> Outcome {
    let (storage, name) = volume_of(context)?;
    check_access(context, &storage, &name, None)?;
    let state = context.world.state();
    let storage = state.active_on(&context.node, &storage)?;
    let Some(volume) = storage.volume(&context.node, &name) else {
        return Err(ApiError::new(
            500,
            format!("volume '{}:{name}' does not exist", storage.name),
        ));
    };
    // Here the format is that of the file, not the content type.
    let format = if volume.format == "iso" || volume.backup.is_some() {
        "raw"
    } else {
        &volume.format
    };
    let mut shown = json!({
        "path": storage.path_of(&name),
        "size": volume.size,
        "used": volume.used,
        "format": format,
    });
    if let Some(parent) = &volume.parent {
        shown["parent"] = json!(parent);
    }
    if let Some(backup) = &volume.backup {
        shown["notes"] = json!(backup.notes);
        shown["protected"] = json!(u8::from(backup.protected));
    }
    Ok(shown.into())
}

pub(crate) fn delete_volume(context: &Context) -> Outcome {
    let (storage, name) = volume_of(context)?;
    let owner = owner_of(&name);
    let path = format!("/storage/{storage}");
    context.world.state().active_on(&context.node, &storage)?;
    check_name(&name)?;
    match owner {
        Some(vmid) if name.starts_with("backup/") => {
            permission::require(context, &path, "Datastore.AllocateSpace")?;
            permission::require(context, &format!("/vms/{vmid}"), "VM.Backup")?;
        }
        // The disk of a guest needs less than a file without an owner.
        Some(_) => permission::require_any(
            context,
            &path,
            &[
                "Datastore.Allocate".to_owned(),
                "Datastore.AllocateSpace".to_owned(),
            ],
        )?,
        None => permission::require(context, &path, "Datastore.Allocate")?,
    }
    let id = owner.map_or_else(|| storage.clone(), |vmid| format!("{vmid}@{storage}"));
    let volid = format!("{storage}:{name}");
    context.task("imgdel", &id, move |job| async move {
        let _lock = job.lock_storage(&storage).await?;
        let wait = job.world.state().timing.allocate;
        job.sleep(wait).await?;
        let (removed, path) = {
            let mut state = job.world.state();
            let known = state.volume(&job.node, &volid);
            let backup = known.and_then(|volume| volume.backup.as_ref());
            if backup.is_some_and(|backup| backup.protected) {
                return Err(format!(
                    "cannot remove protected volume '{name}' on '{storage}'"
                ));
            }
            let path = state.storage(&storage)?.path_of(&name);
            (state.remove_volume(&job.node, &volid), path)
        };
        if !removed {
            // A missing volume is only a warning.
            job.warn(format!("disk image '{path}' does not exist"));
        }
        job.log(format!("Removed volume '{volid}'"));
        Ok(())
    })
}

/// Fails unless the caller may read a volume; `vmid` may always read its own.
pub(crate) fn check_access(
    context: &Context,
    storage: &str,
    name: &str,
    vmid: Option<u32>,
) -> Result<(), ApiError> {
    let path = format!("/storage/{storage}");
    context.world.state().storage_on(&context.node, storage)?;
    let owner = owner_of(name);
    let own = owner.is_some() && owner == vmid;
    if own || permission::allows(context, &path, "Datastore.Allocate") {
        return Ok(());
    }
    match owner {
        Some(owner) if name.starts_with("backup/") => {
            permission::require(context, &path, "Datastore.AllocateSpace")?;
            permission::require(context, &format!("/vms/{owner}"), "VM.Backup")
        }
        Some(owner) => {
            permission::require(context, &path, "Datastore.Audit")?;
            permission::require(context, &format!("/vms/{owner}"), "VM.Config.Disk")
        }
        None => {
            let wanted = ["Datastore.AllocateSpace", "Datastore.Audit"].map(ToOwned::to_owned);
            permission::require_any(context, &path, &wanted)
        }
    }
}

/// Returns the guest that owns a volume, from the volume's name.
pub(crate) fn owner_of(name: &str) -> Option<u32> {
    let mut parts = name.split('/').rev();
    let file = parts.next()?;
    parts
        .next()
        .and_then(|directory| directory.parse().ok())
        .or_else(|| {
            let stems = ["vm-", "base-", "subvol-", "basevol-"];
            let archives = ["vzdump-qemu-", "vzdump-lxc-"];
            let rest = stems
                .iter()
                .chain(&archives)
                .find_map(|prefix| file.strip_prefix(prefix))?;
            rest.split('-').next()?.parse().ok()
        })
}

/// Fails for a volume name that is invalid on a directory-based storage.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let bad = || format!("unable to parse directory volume name '{name}'");
    let Some((kind, file)) = name.split_once('/') else {
        return if owner_of(name).is_some() {
            Ok(())
        } else {
            Err(bad())
        };
    };
    let ends = |endings: &[&str]| endings.iter().any(|ending| file.ends_with(ending));
    let good = match kind {
        "iso" => ends(&[".iso", ".img"]),
        "vztmpl" => ends(&[".tar.gz", ".tar.xz", ".tar.zst", ".tar", ".tar.bz2"]),
        "import" => ends(&[".raw", ".qcow2", ".vmdk", ".ova", ".ovf", ".img"]),
        "snippets" | "backup" => true,
        _ => kind.parse::<u32>().is_ok(),
    };
    if good { Ok(()) } else { Err(bad()) }
}

pub(crate) fn import_metadata(context: &Context) -> Outcome {
    let volume = context.required("volume")?;
    let name = volume.split_once(':').map_or(volume, |(_, name)| name);
    if !(name.ends_with(".ova") || name.ends_with(".ovf")) {
        return Err(format!("unable to parse directory volume name '{volume}'").into());
    }
    Ok(json!({ "type": "vm", "source": "ova", "create-args": {}, "disks": {}, "net": {}, "warnings": [] })
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_volume_is_in_its_name() {
        assert_eq!(owner_of("130/vm-130-disk-0.qcow2"), Some(130));
        assert_eq!(
            owner_of("510/base-510-disk-0.qcow2/530/vm-530-disk-0.qcow2"),
            Some(530)
        );
        assert_eq!(owner_of("vm-7000-disk-1"), Some(7000));
        assert_eq!(
            owner_of("backup/vzdump-lxc-421-2026_11_16-15_44_54.tar.zst"),
            Some(421)
        );
        assert_eq!(owner_of("iso/a.iso"), None);
    }
}
