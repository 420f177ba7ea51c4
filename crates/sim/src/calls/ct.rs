//! Creates and changes containers, whose rules differ from those of VMs.

use std::time::Duration;

use serde_json::Value;

use super::disk::{NewDisk, allocate};
use super::guest::verify_digest;
use super::permission::{self, denied, require_guest};
use super::vm_config::may_use_bridge;
use super::vm_create::{clean_up, may_create, reserve_id};
use super::{ApiError, Context, Outcome};
use crate::guest::config::{Config, normalize_tags};
use crate::guest::drive::{Drive, is_mount, render_size};
use crate::guest::identity::is_network;
use crate::schema::check::Parameters;
use crate::schema::format::split_list;
use crate::schema::{property, table};
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::Boots;

/// Parameters that are not keys of the configuration.
const NOT_CONFIG: [&str; 17] = [
    "node",
    "vmid",
    "digest",
    "delete",
    "revert",
    "force",
    "pool",
    "storage",
    "ostemplate",
    "password",
    "ssh-public-keys",
    "start",
    "restore",
    "unique",
    "bwlimit",
    "ignore-unpack-errors",
    "ha-managed",
];
/// How much larger an archive is when it is unpacked.
const UNPACK_RATIO: u64 = 3;

pub(crate) fn config_values(context: &Context) -> Parameters {
    context
        .parameters
        .iter()
        .filter(|(key, _)| !NOT_CONFIG.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns the privilege a key needs.
fn required_privilege(key: &str) -> &'static str {
    match key {
        "cores" | "cpulimit" | "cpuunits" => "VM.Config.CPU",
        "memory" | "swap" => "VM.Config.Memory",
        "nameserver" | "searchdomain" | "hostname" => "VM.Config.Network",
        key if is_mount(key) || key.starts_with("unused") => "VM.Config.Disk",
        key if key.starts_with("net") => "VM.Config.Network",
        _ => "VM.Config.Options",
    }
}

pub(crate) fn may_set(
    context: &Context,
    vmid: u32,
    pool: Option<&str>,
    values: &Parameters,
    privileged: bool,
    creating: bool,
) -> Result<(), ApiError> {
    if context.is_root() {
        return Ok(());
    }
    for (key, value) in values {
        match key.as_str() {
            "features" => may_set_features(context, vmid, pool, value, privileged)?,
            "hookscript" => {
                return Err(denied(
                    "changing the hookscript is only allowed for root@pam",
                ));
            }
            key if is_device(key) => {
                return Err(denied(
                    "configuring device passthrough is only allowed for root@pam",
                ));
            }
            "unprivileged" | "arch" | "ostype" | "lock" => {}
            // Privileges on the pool do not apply to the tags of a container being created.
            "tags" if creating => {
                permission::require(context, &format!("/vms/{vmid}"), "VM.Config.Options")?;
            }
            key => require_guest(context, vmid, pool, required_privilege(key))?,
        }
        if is_network(key) {
            may_use_bridge(context, value)?;
        }
    }
    Ok(())
}

fn is_device(key: &str) -> bool {
    key.strip_prefix("dev")
        .is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Whether a key of a running container changes at once; others are pending until the next start.
fn is_live(key: &str) -> bool {
    matches!(
        key,
        "hostname"
            | "cores"
            | "cpulimit"
            | "cpuunits"
            | "memory"
            | "swap"
            | "description"
            | "tags"
            | "onboot"
            | "startup"
            | "protection"
            | "hookscript"
    ) || key.starts_with("net")
        || key.starts_with("unused")
        || is_mount(key)
}

fn may_set_features(
    context: &Context,
    vmid: u32,
    pool: Option<&str>,
    value: &str,
    privileged: bool,
) -> Result<(), ApiError> {
    if privileged {
        return Err(denied(
            "changing feature flags for privileged container is only allowed for root@pam",
        ));
    }
    let parts = property::split(value, "");
    if parts.iter().any(|(key, _)| key != "nesting") {
        return Err(denied(
            "changing feature flags (except nesting) is only allowed for root@pam",
        ));
    }
    require_guest(context, vmid, pool, "VM.Allocate")
}

/// Adds a hardware address and type if missing, and sorts the parts after the name, as PVE does.
pub(crate) fn normalize_network(context: &Context, text: &str) -> String {
    let mut parts = property::split(text, "name");
    if property::part(&parts, "hwaddr").is_none() {
        parts.push(("hwaddr".into(), context.world.state().random.mac()));
    }
    if property::part(&parts, "type").is_none() {
        parts.push(("type".into(), "veth".into()));
    }
    parts.sort_by(|a, b| (a.0 != "name", &a.0).cmp(&(b.0 != "name", &b.0)));
    property::join(&parts, "")
}

fn looks_like_keys(text: &str) -> bool {
    let known = ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-"];
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .all(|line| {
            line.split_whitespace()
                .any(|word| known.iter().any(|start| word.starts_with(start)))
        })
}

pub(crate) async fn create(context: &Context) -> Outcome {
    if context.flag("restore") {
        return super::restore::container(context).await;
    }
    let vmid = context.vmid()?;
    let pool = context.text("pool").map(ToOwned::to_owned);
    may_create(context, vmid, pool.as_deref())?;
    let template = context.required("ostemplate")?.to_owned();
    context.world.state().check_free(vmid)?;
    // While the template's storage is read, another create may take the id.
    context.world.sleep(Duration::from_millis(60)).await;
    if context
        .text("ssh-public-keys")
        .is_some_and(|keys| !looks_like_keys(keys))
    {
        return Err("SSH public key validation error".into());
    }
    let mut values = config_values(context);
    let privileged = !context.flag("unprivileged");
    may_set(context, vmid, pool.as_deref(), &values, privileged, true)?;
    if privileged && !context.is_root() {
        permission::require(context, "/", "Sys.Modify")?;
    }
    if !values.contains_key("rootfs") {
        let storage = context.text("storage").unwrap_or("local");
        values.insert("rootfs".into(), format!("{storage}:4"));
    }
    for (_, text) in values.iter().filter(|(key, _)| is_mount(key)) {
        check_mount(context, text)?;
    }
    if template.starts_with('/') && !context.is_root() {
        return Err("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.".into());
    }
    if let Some((storage, _)) = template.split_once(':') {
        context.world.state().storage_on(&context.node, storage)?;
    }
    for (key, value) in &mut values {
        if is_network(key) {
            *value = normalize_network(context, value);
        }
        if key == "tags" {
            *value = normalize_tags(value);
        }
    }
    let failed =
        |fault: String| ApiError::new(500, format!("unable to create CT {vmid} - {fault}"));
    {
        let wait = Some(Duration::from_secs(5));
        let lock = context
            .world
            .lock_config(Kind::Lxc, vmid, wait)
            .await
            .map_err(failed)?;
        reserve_id(context, vmid, Kind::Lxc, "create").map_err(failed)?;
        drop(lock);
    }
    if let Some(pool) = &pool {
        context.world.state().pool_of.insert(vmid, pool.clone());
    }
    let start = context.flag("start");
    context.task("vzcreate", &vmid.to_string(), move |job| async move {
        if let Err(fault) = populate(&job, vmid, &template, values).await {
            clean_up(&job, vmid);
            return Err(format!("unable to create CT {vmid} - {fault}"));
        }
        if start {
            super::power::start_guest(&job, Kind::Lxc, vmid).await?;
        }
        Ok(())
    })
}

fn check_mount(context: &Context, text: &str) -> Result<(), ApiError> {
    let mount = Drive::parse(Kind::Lxc, text);
    let volume = mount.volume();
    if volume.starts_with('/') {
        if context.is_root() {
            return Ok(());
        }
        return Err(denied("mount point type bind is only allowed for root@pam"));
    }
    if let Some((storage, _)) = volume.split_once(':') {
        let allowed = {
            let state = context.world.state();
            let known = state.storage_on(&context.node, storage)?;
            known.content.iter().any(|kind| kind == "rootdir")
        };
        if !allowed {
            return Err(
                format!("storage '{storage}' does not support container directories").into(),
            );
        }
        permission::require(
            context,
            &format!("/storage/{storage}"),
            "Datastore.AllocateSpace",
        )?;
    }
    Ok(())
}

async fn populate(job: &Job, vmid: u32, template: &str, values: Parameters) -> Result<(), String> {
    let _lock = job.lock_guest(Kind::Lxc, vmid).await?;
    let archive = {
        let state = job.world.state();
        state.volume(&job.node, template).map(|volume| volume.size)
    };
    let Some(archive) = archive else {
        let fault = format!("volume '{template}' does not exist");
        job.log(fault.clone());
        return Err(fault);
    };
    let mut config = Config::from_pairs(values.clone());
    if !config.is_true("unprivileged") {
        config.remove("unprivileged");
    }
    for (key, text) in values.iter().filter(|(key, _)| is_mount(key)) {
        config.set(key, create_mount(job, vmid, text).await?);
    }
    unpack(job, vmid, template, archive, &config).await?;
    for (key, value) in [("arch", "amd64"), ("memory", "512"), ("swap", "512")] {
        if config.value(key).is_none() {
            config.set(key, value);
        }
    }
    if config.value("ostype").is_none() {
        config.set("ostype", os_type(template));
    }
    if config.value("hostname").is_none() {
        config.set("hostname", format!("CT{vmid}"));
    }
    let mut state = job.world.state();
    let guest = state.guest_mut(&job.node, Kind::Lxc, vmid)?;
    guest.config = config;
    guest.boots = Boots::System;
    Ok(())
}

/// Returns the operating system of a template from its name.
fn os_type(template: &str) -> &'static str {
    let name = template.rsplit('/').next().unwrap_or("");
    [
        "debian",
        "ubuntu",
        "alpine",
        "fedora",
        "centos",
        "archlinux",
        "opensuse",
        "gentoo",
        "nixos",
    ]
    .into_iter()
    .find(|os_type| name.starts_with(os_type))
    .unwrap_or("unmanaged")
}

async fn unpack(
    job: &Job,
    vmid: u32,
    template: &str,
    archive: u64,
    config: &Config,
) -> Result<(), String> {
    let (path, speed) = {
        let state = job.world.state();
        let (storage, name) = template.split_once(':').unwrap_or(("", template));
        (
            state.storage(storage)?.path_of(name),
            state.timing.unpack_speed.max(1),
        )
    };
    job.log(format!("extracting archive '{path}'"));
    let unpacked = job.work(Duration::from_secs_f64(archive as f64 / speed as f64));
    unpacked.await.map_err(|fault| {
        format!(
            "command 'lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- tar xpf - --zstd \
             --totals --one-file-system -p --sparse --numeric-owner --acls --xattrs \
             '--xattrs-include=user.*' '--xattrs-include=security.capability' \
             '--warning=no-file-ignored' '--warning=no-xattr-write' -C /var/lib/lxc/{vmid}/rootfs \
             --skip-old-files --anchored --exclude './dev/*'' failed: {fault}"
        )
    })?;
    let size = archive * UNPACK_RATIO;
    job.log(format!(
        "Total bytes read: {size} ({}MiB, {}MiB/s)",
        size >> 20,
        (speed * UNPACK_RATIO) >> 20
    ));
    job.log("Detected container architecture: amd64");
    let name = config.value("hostname").unwrap_or("ct").to_owned();
    for key in ["ed25519", "ecdsa", "rsa"] {
        job.log(format!(
            "Creating SSH host key 'ssh_host_{key}_key' - this may take some time ..."
        ));
        let print = job.world.state().random.hex(43);
        job.log(format!("done: SHA256:{print} root@{name}"));
    }
    Ok(())
}

async fn create_mount(job: &Job, vmid: u32, text: &str) -> Result<String, String> {
    let mut mount = Drive::parse(Kind::Lxc, text);
    let Some((storage, gib)) = mount.allocation() else {
        return Ok(text.to_owned());
    };
    let storage = storage.to_owned();
    let size = (gib * 1_073_741_824.0) as u64;
    // Size 0 means a directory instead of an image.
    let (stem, format) = if size == 0 {
        ("subvol", "subvol")
    } else {
        ("vm", "raw")
    };
    let created = allocate(
        job,
        NewDisk {
            vmid,
            storage: &storage,
            stem,
            format,
            size,
            used: size / 10,
            content: "rootdir",
            boots: Boots::System,
        },
    )
    .await?;
    mount.set_volume(created);
    mount.set("size", render_size(size));
    Ok(mount.render())
}

/// Changes a container. What cannot change while it runs becomes pending.
pub(crate) async fn put(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let mut values = config_values(context);
    let list = |name: &str| -> Vec<String> {
        split_list(context.text(name).unwrap_or(""))
            .map(ToOwned::to_owned)
            .collect()
    };
    let (delete, revert) = (list("delete"), list("revert"));
    if values.is_empty() && delete.is_empty() && revert.is_empty() {
        return Err("no options specified".into());
    }
    for (name, keys) in [("delete", &delete), ("revert", &revert)] {
        for key in keys {
            let known = table()
                .find("PUT", "/nodes/x/lxc/100/config")
                .is_some_and(|(method, _)| table().definition(method, key).is_some());
            if !known {
                return Err(ApiError::parameter(name, format!("unknown option '{key}'")));
            }
        }
    }
    let privileged = {
        let state = context.world.state();
        !state
            .guest(&context.node, Kind::Lxc, vmid)?
            .config
            .is_true("unprivileged")
    };
    may_set(context, vmid, None, &values, privileged, false)?;
    for key in &delete {
        require_guest(context, vmid, None, required_privilege(key))?;
    }
    for (key, value) in &mut values {
        if is_network(key) {
            *value = normalize_network(context, value);
        }
        if key == "tags" {
            *value = normalize_tags(value);
        }
    }
    let lock = context.world.lock_config(Kind::Lxc, vmid, None).await?;
    let job = Job {
        world: context.world.clone(),
        node: context.node.clone(),
        upid: String::new(),
    };
    {
        let state = context.world.state();
        let guest = state.guest(&context.node, Kind::Lxc, vmid)?;
        guest.check_unlocked(&[])?;
    }
    if values.contains_key("unprivileged") {
        return Err("unable to modify read-only option: 'unprivileged'".into());
    }
    for (key, text) in &mut values {
        if is_mount(key) {
            check_mount(context, text)?;
            *text = create_mount(&job, vmid, text).await?;
        }
    }
    let (now, last_update) = (context.world.now(), context.world.last_status_update());
    let mut state = context.world.state();
    let guest = state.guest_mut(&context.node, Kind::Lxc, vmid)?;
    if let Some(digest) = context.text("digest") {
        verify_digest(guest, digest)?;
    }
    guest.touch(now, last_update);
    let running = guest.running.is_some();
    let waits = |key: &str| running && !is_live(key);
    for key in &revert {
        guest.config.clear_pending(key);
    }
    for key in delete {
        if key == "rootfs" {
            return Err(ApiError::parameter(
                "delete",
                "unable to delete required option 'rootfs'",
            ));
        }
        if waits(&key) {
            guest.config.set_pending(&key, None);
        } else {
            guest.config.remove(&key);
        }
    }
    for (key, value) in values {
        if waits(&key) {
            guest.config.set_pending(&key, Some(value));
        } else {
            guest.config.set(&key, value);
        }
    }
    drop(state);
    drop(lock);
    Ok(Value::Null.into())
}
