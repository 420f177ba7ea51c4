//! Creates VMs: first a locked configuration, then the disks in a task. Nothing remains if the task
//! fails.

use std::time::Duration;

use super::disk::{check_drive, create_drive, free_volumes};
use super::vm_config::{NOT_CONFIG, may_set, may_use_bridge, with_mac};
use super::{ApiError, Context, Outcome, permission};
use crate::guest::config::Config;
use crate::guest::drive::{default_boot, is_drive};
use crate::guest::identity::is_network;
use crate::schema::check::Parameters;
use crate::world::run::Job;
use crate::world::state::{Boots, Guest, Kind};

/// How long a create waits for the id's lock.
const CREATE_LOCK: Duration = Duration::from_secs(5);

pub(crate) async fn create(context: &Context) -> Outcome {
    if context.text("archive").is_some() {
        return super::restore::vm(context).await;
    }
    let vmid = context.vmid()?;
    let pool = context.text("pool").map(ToOwned::to_owned);
    may_create(context, vmid, pool.as_deref())?;
    let values: Parameters = context
        .parameters
        .iter()
        .filter(|(key, _)| !NOT_CONFIG.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    may_set(
        context,
        vmid,
        pool.as_deref(),
        values.keys().map(String::as_str),
        |_| false,
    )?;
    for (key, value) in &values {
        if is_network(key) {
            may_use_bridge(context, value)?;
        }
        if is_drive(key) {
            check_drive(context, key, value)?;
        }
    }
    let failed =
        |fault: String| ApiError::new(500, format!("unable to create VM {vmid} - {fault}"));
    {
        let lock = context
            .world
            .lock_config(Kind::Qemu, vmid, Some(CREATE_LOCK))
            .await
            .map_err(failed)?;
        reserve_id(context, vmid, Kind::Qemu, "create").map_err(failed)?;
        drop(lock);
    }
    if let Some(pool) = &pool {
        context.world.state().pool_of.insert(vmid, pool.clone());
    }
    let start = context.flag("start");
    let mut values = values;
    for (key, value) in &mut values {
        if is_network(key) {
            *value = with_mac(context, value);
        }
    }
    context.task("qmcreate", &vmid.to_string(), move |job| async move {
        let outcome = populate(&job, vmid, values).await;
        if let Err(fault) = outcome {
            clean_up(&job, vmid);
            return Err(format!("unable to create VM {vmid} - {fault}"));
        }
        if start {
            super::power::start_guest(&job, Kind::Qemu, vmid).await?;
        }
        Ok(())
    })
}

/// Fails unless the caller has `VM.Allocate` on the id or the pool. As on PVE, the error does not
/// name the privilege.
pub(crate) fn may_create(context: &Context, vmid: u32, pool: Option<&str>) -> Result<(), ApiError> {
    let allowed = permission::allows(context, &format!("/vms/{vmid}"), "VM.Allocate")
        || pool.is_some_and(|pool| {
            permission::allows(context, &format!("/pool/{pool}"), "VM.Allocate")
        });
    if let Some(pool) = pool
        && !context.world.state().pools.contains_key(pool)
    {
        return Err(format!("no such pool '{pool}'").into());
    }
    if allowed {
        Ok(())
    } else {
        Err(ApiError::new(403, "Permission check failed"))
    }
}

/// Reserves a free id with a configuration that contains only a lock.
pub(crate) fn reserve_id(
    context: &Context,
    vmid: u32,
    kind: Kind,
    lock: &str,
) -> Result<(), String> {
    let (now, last_update) = (context.world.now(), context.world.last_status_update());
    let mut state = context.world.state();
    state.check_free(vmid)?;
    state.add_guest(
        empty_guest(vmid, kind, &context.node, now, lock),
        last_update,
    );
    Ok(())
}

/// Returns a guest whose configuration contains only a lock.
pub(crate) fn empty_guest(vmid: u32, kind: Kind, node: &str, now: f64, lock: &str) -> Guest {
    Guest {
        vmid,
        kind,
        node: node.to_owned(),
        config: Config::from_pairs([("lock".to_owned(), lock.to_owned())]),
        running: None,
        snapshots: Vec::new(),
        parent: None,
        seen: None,
        touched: now,
        boots: Boots::Nothing,
        leases: std::collections::BTreeMap::new(),
        inner: None,
    }
}

async fn populate(job: &Job, vmid: u32, values: Parameters) -> Result<(), String> {
    let _lock = job.lock_guest(Kind::Qemu, vmid).await?;
    job.world.state().guest(&job.node, Kind::Qemu, vmid)?;
    let mut config = Config::from_pairs(values.clone());
    let mut boots = Boots::Nothing;
    for (key, text) in values.iter().filter(|(key, _)| is_drive(key)) {
        let (created, starts) = create_drive(job, vmid, key, text).await?;
        if boots == Boots::Nothing {
            boots = starts;
        }
        config.set(key, created);
    }
    let now = job.world.epoch();
    let mut state = job.world.state();
    if config.value("boot").is_none() {
        config.set("boot", default_boot(config.values()));
    }
    if config
        .value("smbios1")
        .is_none_or(|text| !text.contains("uuid="))
    {
        let uuid = state.random.uuid();
        let text = match config.value("smbios1") {
            Some(rest) => format!("{rest},uuid={uuid}"),
            None => format!("uuid={uuid}"),
        };
        config.set("smbios1", text);
    }
    if matches!(config.value("vmgenid"), None | Some("1")) {
        let uuid = state.random.uuid();
        config.set("vmgenid", uuid);
    }
    config.set("meta", format!("creation-qemu=10.0.13,ctime={now}"));
    let guest = state.guest_mut(&job.node, Kind::Qemu, vmid)?;
    guest.config = config;
    guest.boots = boots;
    Ok(())
}

/// Removes the volumes and the configuration of a guest whose creation failed.
pub(crate) fn clean_up(job: &Job, vmid: u32) {
    free_volumes(job, vmid);
    let now = job.world.now();
    let mut state = job.world.state();
    let unfinished = state
        .guests
        .get(&vmid)
        .is_some_and(|guest| matches!(guest.config.value("lock"), Some("create" | "clone")));
    if unfinished {
        state.remove_guest(vmid, now);
    }
}
