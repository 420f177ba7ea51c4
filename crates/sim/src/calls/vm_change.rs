//! Changes the configuration of VMs. What cannot change while a VM runs is pending until it stops.

use serde_json::Value;

use super::disk::{check_drive, create_drive};
use super::guest::verify_digest;
use super::vm_config::{NOT_CONFIG, check_skiplock, is_cdrom, may_set, may_use_bridge, with_mac};
use super::{ApiError, Context, Outcome, permission};
use crate::guest::config::normalize_tags;
use crate::guest::drive::{Drive, boot_order, is_drive};
use crate::guest::identity::is_network;
use crate::schema::check::Parameters;
use crate::schema::format::split_list;
use crate::schema::table;
use crate::world::Kind;
use crate::world::run::Job;

/// The changes that a call requests.
#[derive(Clone, Default)]
struct Change {
    set: Parameters,
    delete: Vec<String>,
    revert: Vec<String>,
    force: bool,
}

/// Changes a VM synchronously: the caller waits for a worker, which waits for the lock.
pub(crate) async fn put(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let change = prepare(context, vmid)?;
    let lock = context.world.lock_config(Kind::Qemu, vmid, None).await?;
    check_digest(context, vmid)?;
    let job = Job {
        world: context.world.clone(),
        node: context.node.clone(),
        upid: String::new(),
    };
    let outcome = apply(&job, vmid, change).await;
    drop(lock);
    outcome.map_err(|fault| match fault {
        ChangeError::Other(message) => ApiError::new(500, message),
        ChangeError::Hotplug(key, message) => {
            // The warning stays in the worker and appears in tasks it starts later.
            if let (Some(index), Some(host)) = (
                context.worker,
                context.world.state().hosts.get(&context.node),
            ) {
                host.workers.warn(index);
            }
            ApiError::parameter(&key, message)
        }
    })?;
    Ok(Value::Null.into())
}

/// Changes a VM asynchronously: checks the call, then changes the VM in a task.
pub(crate) async fn post(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let change = prepare(context, vmid)?;
    {
        let lock = context.world.lock_config(Kind::Qemu, vmid, None).await?;
        check_digest(context, vmid)?;
        let state = context.world.state();
        state
            .guest(&context.node, Kind::Qemu, vmid)?
            .check_unlocked(&[])?;
        drop(state);
        drop(lock);
    }
    let mut message = format!("update VM {vmid}:");
    for (key, value) in &change.set {
        message.push_str(&format!(" -{key} {value}"));
    }
    if !change.delete.is_empty() {
        message.push_str(&format!(" -delete {}", change.delete.join(",")));
    }
    context.task("qmconfig", &vmid.to_string(), move |job| async move {
        job.log(message);
        let _lock = job.lock_guest(Kind::Qemu, vmid).await?;
        apply(&job, vmid, change)
            .await
            .map_err(|fault| match fault {
                ChangeError::Other(message) | ChangeError::Hotplug(_, message) => message,
            })
    })
}

fn check_digest(context: &Context, vmid: u32) -> Result<(), ApiError> {
    let state = context.world.state();
    let guest = state.guest(&context.node, Kind::Qemu, vmid)?;
    match context.text("digest") {
        Some(digest) => verify_digest(guest, digest),
        None => Ok(()),
    }
}

/// Checks privileges and values before anything is locked.
fn prepare(context: &Context, vmid: u32) -> Result<Change, ApiError> {
    check_skiplock(context)?;
    let list = |name: &str| -> Vec<String> {
        split_list(context.text(name).unwrap_or(""))
            .map(ToOwned::to_owned)
            .collect()
    };
    let mut change = Change {
        delete: list("delete"),
        revert: list("revert"),
        force: context.flag("force"),
        ..Change::default()
    };
    for (key, value) in &context.parameters {
        if !NOT_CONFIG.contains(&key.as_str()) {
            change.set.insert(key.clone(), value.clone());
        }
    }
    if change.set.is_empty() && change.delete.is_empty() && change.revert.is_empty() {
        return Err("no options specified".into());
    }
    for (name, keys) in [("delete", &change.delete), ("revert", &change.revert)] {
        for key in keys {
            if !is_option(key) {
                return Err(ApiError::parameter(name, format!("unknown option '{key}'")));
            }
            if name == "delete" && change.set.contains_key(key) {
                return Err(ApiError::parameter(
                    name,
                    format!("cannot use '-{key}' and '-delete {key}' at the same time"),
                ));
            }
        }
    }
    let drives: Parameters = {
        let state = context.world.state();
        state
            .guest(&context.node, Kind::Qemu, vmid)
            .map(|guest| guest.config.values().clone())
            .unwrap_or_default()
    };
    let cdrom = |key: &str| {
        let text = change.set.get(key).or_else(|| drives.get(key));
        is_drive(key) && text.is_some_and(|text| is_cdrom(text))
    };
    let keys = change
        .set
        .keys()
        .chain(&change.delete)
        .chain(&change.revert);
    may_set(context, vmid, None, keys.map(String::as_str), cdrom)?;
    for (key, value) in &mut change.set {
        if is_drive(key) {
            check_drive(context, key, value)?;
        }
        if is_network(key) {
            may_use_bridge(context, value)?;
            *value = with_mac(context, value);
        }
        if key == "tags" {
            *value = normalize_tags(value);
        }
    }
    context.exists(Kind::Qemu, vmid)?;
    Ok(change)
}

fn is_option(key: &str) -> bool {
    let config = table().find("PUT", "/nodes/x/qemu/100/config");
    config.is_some_and(|(method, _)| table().definition(method, key).is_some())
}

/// Why a change failed.
enum ChangeError {
    Other(String),
    Hotplug(String, String),
}

impl From<String> for ChangeError {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

async fn apply(job: &Job, vmid: u32, change: Change) -> Result<(), ChangeError> {
    let running = check_state(job, vmid, &change)?;
    for key in &change.revert {
        let mut state = job.world.state();
        state
            .guest_mut(&job.node, Kind::Qemu, vmid)?
            .config
            .clear_pending(key);
    }
    for key in &change.delete {
        delete_key(job, vmid, key, running, change.force).await?;
    }
    for key in processing_order(job, &change.set) {
        let value = &change.set[key];
        if is_drive(key) {
            set_drive(job, vmid, key, value, running).await?;
        } else {
            set_plain(job, vmid, key, value, running)?;
        }
    }
    Ok(())
}

/// The probability that `boot` is processed before drives; six of twenty tries on PVE.
const BOOT_FIRST_PROBABILITY: f64 = 0.3;

/// Returns the keys of a change in the order they are processed, which is random on PVE: it matters
/// when a CD-ROM is appended to a boot order that the same change sets.
fn processing_order<'a>(job: &Job, set: &'a Parameters) -> Vec<&'a str> {
    let mut keys: Vec<&str> = set.keys().map(String::as_str).collect();
    if set.contains_key("boot") && keys.iter().any(|key| is_drive(key)) {
        let mut state = job.world.state();
        let known = state.boot_first.take();
        let first = known.unwrap_or_else(|| state.random.fraction() < BOOT_FIRST_PROBABILITY);
        keys.sort_by_key(|key| (*key == "boot") != first);
    }
    keys
}

/// Fails if the guest is locked or protected. Returns whether it runs.
fn check_state(job: &Job, vmid: u32, change: &Change) -> Result<bool, String> {
    let state = job.world.state();
    let guest = state.guest(&job.node, Kind::Qemu, vmid)?;
    guest.check_unlocked(&[])?;
    if guest.config.is_true("protection") {
        let disk = change.delete.iter().find(|key| {
            (is_drive(key) || key.starts_with("unused"))
                && guest.config.value(key).is_some_and(|text| !is_cdrom(text))
        });
        if let Some(key) = disk {
            return Err(format!(
                "can't remove drive '{key}' - protection mode enabled"
            ));
        }
    }
    Ok(guest.running.is_some())
}

/// Whether a key of a running VM changes at once.
fn is_live(key: &str) -> bool {
    matches!(
        key,
        "name"
            | "onboot"
            | "shares"
            | "startup"
            | "description"
            | "protection"
            | "vmstatestorage"
            | "hookscript"
            | "tags"
            | "autostart"
            | "cpuunits"
            | "cpulimit"
    ) || is_network(key)
        || key.starts_with("unused")
}

fn set_plain(job: &Job, vmid: u32, key: &str, value: &str, running: bool) -> Result<(), String> {
    let (now, last_update) = (job.world.now(), job.world.last_status_update());
    let mut state = job.world.state();
    let guest = state.guest_mut(&job.node, Kind::Qemu, vmid)?;
    if running && !is_live(key) {
        guest.config.set_pending(key, Some(value.to_owned()));
    } else {
        guest.touch(now, last_update);
        if value.is_empty() {
            guest.config.remove(key);
        } else {
            guest.config.set(key, value);
        }
    }
    Ok(())
}

async fn set_drive(
    job: &Job,
    vmid: u32,
    key: &str,
    value: &str,
    running: bool,
) -> Result<(), ChangeError> {
    let drive = Drive::parse(Kind::Qemu, value);
    if running && drive.volume() == "cdrom" {
        let mut state = job.world.state();
        let guest = state.guest_mut(&job.node, Kind::Qemu, vmid)?;
        guest.config.set_pending(key, Some(drive.render()));
        append_to_boot_order(guest, key, true);
        let message = format!(
            "hotplug problem - adding blockdev 'drive-{key}' failed : VM {vmid} qmp command \
             'blockdev-add' failed - The 'host_cdrom' block driver requires a file name\n\n"
        );
        return Err(ChangeError::Hotplug(key.to_owned(), message));
    }
    let (text, boots) = create_drive(job, vmid, key, value).await?;
    let created = Drive::parse(Kind::Qemu, &text);
    let (now, last_update) = (job.world.now(), job.world.last_status_update());
    let mut state = job.world.state();
    let guest = state.guest_mut(&job.node, Kind::Qemu, vmid)?;
    guest.touch(now, last_update);
    if guest.boots == crate::world::Boots::Nothing {
        guest.boots = boots;
    }
    let old = guest
        .config
        .value(key)
        .map(|old| Drive::parse(Kind::Qemu, old));
    // A replaced disk becomes an unused disk.
    if let Some(old) = old
        && !old.is_cdrom()
        && old.volume() != created.volume()
    {
        add_unused(guest, old.volume());
    }
    let hot =
        !running || created.is_cdrom() || key.starts_with("scsi") || key.starts_with("virtio");
    if hot {
        guest.config.set(key, text);
    } else {
        guest.config.set_pending(key, Some(text));
    }
    if created.is_cdrom() {
        append_to_boot_order(guest, key, running);
    }
    Ok(())
}

/// Appends a new CD-ROM to the boot order, as PVE does without being asked.
fn append_to_boot_order(guest: &mut crate::world::state::Guest, key: &str, running: bool) {
    let order = guest
        .config
        .value_with_pending("boot")
        .map(boot_order)
        .unwrap_or_default();
    if order.is_empty() || order.iter().any(|known| known == key) {
        return;
    }
    let text = format!("order={};{key}", order.join(";"));
    if running {
        guest.config.set_pending("boot", Some(text));
    } else {
        guest.config.set("boot", text);
    }
}

/// Records a volume under the first free `unusedN`.
fn add_unused(guest: &mut crate::world::state::Guest, volume: &str) {
    let free = (0..256)
        .map(|n| format!("unused{n}"))
        .find(|key| guest.config.value(key).is_none());
    if let Some(free) = free {
        guest.config.set(&free, volume);
    }
}

async fn delete_key(
    job: &Job,
    vmid: u32,
    key: &str,
    running: bool,
    force: bool,
) -> Result<(), String> {
    let (now, last_update) = (job.world.now(), job.world.last_status_update());
    let slow = {
        let mut state = job.world.state();
        let guest = state.guest_mut(&job.node, Kind::Qemu, vmid)?;
        let Some(text) = guest.config.value(key).map(ToOwned::to_owned) else {
            // A disk that was only pending becomes an unused disk.
            let pending = guest
                .config
                .value_with_pending(key)
                .filter(|_| is_drive(key));
            let drive = pending.map(|text| Drive::parse(Kind::Qemu, text));
            guest.config.clear_pending(key);
            if let Some(drive) = drive.filter(|drive| !drive.is_cdrom()) {
                add_unused(guest, drive.volume());
            }
            return Ok(());
        };
        if key.starts_with("unused") {
            guest.config.remove(key);
            state.remove_volume(&job.node, &text);
            return Ok(());
        }
        let hot = !is_drive(key) || key.starts_with("scsi") || key.starts_with("virtio");
        if running && !(hot && (is_drive(key) || is_live(key))) {
            guest.config.set_pending(key, None);
            return Ok(());
        }
        guest.touch(now, last_update);
        if is_drive(key) {
            let drive = Drive::parse(Kind::Qemu, &text);
            guest.config.remove(key);
            let volume = drive.volume().to_owned();
            if drive.is_cloudinit() || (force && !drive.is_cdrom()) {
                state.remove_volume(&job.node, &volume);
            } else if !drive.is_cdrom() {
                add_unused(guest, &volume);
            }
        } else {
            guest.config.remove(key);
        }
        running && is_drive(key)
    };
    if slow {
        // Unplugging the device takes the guest a while.
        job.world.sleep(std::time::Duration::from_secs(2)).await;
    }
    Ok(())
}

/// Detaches disks, like `delete` of a change.
pub(crate) async fn unlink(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    permission::require(context, &format!("/vms/{vmid}"), "VM.Config.Disk")?;
    let keys: Vec<String> = split_list(context.required("idlist")?)
        .map(ToOwned::to_owned)
        .collect();
    let force = context.flag("force");
    let lock = context.world.lock_config(Kind::Qemu, vmid, None).await?;
    let job = Job {
        world: context.world.clone(),
        node: context.node.clone(),
        upid: String::new(),
    };
    let change = Change {
        delete: keys,
        force,
        ..Change::default()
    };
    let outcome = apply(&job, vmid, change).await;
    drop(lock);
    match outcome {
        Ok(()) => Ok(Value::Null.into()),
        Err(ChangeError::Other(message) | ChangeError::Hotplug(_, message)) => Err(message.into()),
    }
}
