//! Read-only calls about the cluster as a whole: status, resources, hosts, version, next free id.
//! Lists contain only what the caller may see.

use serde::Serialize;
use serde_json::{Value, json};

use super::{ApiError, Context, Outcome, Output, permission};
use crate::world::state::State;

/// The simulated version.
pub(crate) const VERSION: &str = "9.1.7";
const RELEASE: &str = "9.1";
const REPOSITORY: &str = "0307225d4bc8b3ed";

pub(crate) fn version() -> Outcome {
    Ok(json!({ "version": VERSION, "release": RELEASE, "repoid": REPOSITORY }).into())
}

/// Returns how Proxmox VE writes its own version.
pub(crate) fn long_version() -> String {
    format!("pve-manager/{VERSION}/{REPOSITORY}")
}

pub(crate) fn status(context: &Context) -> Outcome {
    let state = context.world.state();
    let mut list = Vec::new();
    if let Some(name) = &state.name {
        list.push(json!({
            "type": "cluster",
            "id": "cluster",
            "name": name,
            "nodes": state.hosts.len(),
            "quorate": u8::from(state.quorate),
            "version": state.hosts.len(),
        }));
    }
    let standalone = state.name.is_none();
    for (at, host) in state.hosts.values().enumerate() {
        list.push(json!({
            "type": "node",
            "id": format!("node/{}", host.name),
            "name": host.name,
            "nodeid": if standalone { 0 } else { at + 1 },
            "ip": host.address,
            "local": u8::from(host.name == context.node),
            "online": u8::from(host.online),
            "level": "",
        }));
    }
    Ok(json!(list).into())
}

pub(crate) fn options() -> Outcome {
    Ok(json!({ "mac_prefix": "BC:24:11", "description": "", "allowed-tags": [] }).into())
}

pub(crate) fn next_id(context: &Context) -> Outcome {
    let state = context.world.state();
    if let Some(wanted) = context.number("vmid") {
        let wanted = u32::try_from(wanted).unwrap_or(0);
        if let Some(guest) = state.guests.get(&wanted) {
            let message = format!("{} {wanted} already exists", guest.kind.title());
            return Err(ApiError::parameter("vmid", message));
        }
        return Ok(json!(wanted.to_string()).into());
    }
    // Nothing is reserved: the next caller gets the same id.
    let free = (100..=999_999_999)
        .find(|id| !state.guests.contains_key(id))
        .unwrap_or(100);
    Ok(json!(free.to_string()).into())
}

pub(crate) fn resources(context: &Context) -> Outcome {
    let now = context.world.now();
    let last_update = context.world.last_status_update();
    let uptime = context.world.uptime();
    let only = context.text("type");
    let wanted = |kind: &str| only.is_none_or(|only| only == kind);
    let mut text = String::from("[");
    if wanted("vm") {
        visible_guests(context, now, last_update, &mut text);
    }
    let mut list = Vec::new();
    if wanted("pool") {
        let pools: Vec<String> = context.world.state().pools.keys().cloned().collect();
        for pool in pools {
            if permission::allows(context, &format!("/pool/{pool}"), "Pool.Audit") {
                list.push(json!({ "id": format!("/pool/{pool}"), "type": "pool", "pool": pool }));
            }
        }
    }
    let state = context.world.state();
    if wanted("node") {
        for host in state.hosts.values() {
            let mut shown = host.entry(uptime, root_disk(&state, &host.name));
            if host.online {
                shown["cgroup-mode"] = json!(1);
            }
            hide_node_details(context, &state, &host.name, &mut shown);
            list.push(shown);
        }
    }
    drop(state);
    if wanted("storage") {
        list.extend(visible_storages(context));
    }
    let state = context.world.state();
    // A request for networks only lists none, and `SDN.Use` is not enough to list them.
    if only.is_none()
        && (context.is_root()
            || state.allows(&context.identity, "/sdn/zones/localnetwork", "SDN.Audit"))
    {
        for host in state.hosts.values() {
            list.push(json!({
                "id": format!("network/{}/zone/localnetwork", host.name),
                "type": "network",
                "network": "localnetwork",
                "network-type": "zone",
                "node": host.name,
                "status": if host.online { "ok" } else { "unknown" },
            }));
        }
    }
    drop(state);
    for entry in list {
        push_json(&mut text, &entry);
    }
    text.push(']');
    Ok(Output::Text(text))
}

/// Appends an entry to a JSON list.
fn push_json(text: &mut String, entry: &impl Serialize) {
    if text.len() > 1 {
        text.push(',');
    }
    // Serialization fails only for maps with non-string keys, which no entry has.
    text.push_str(&serde_json::to_string(entry).unwrap_or_default());
}

/// Lists the guests a caller may see. The access list is checked per guest only when the caller
/// may not see all of them.
fn visible_guests(context: &Context, now: f64, last_update: f64, text: &mut String) {
    let state = context.world.state();
    let all = sees_all_guests(context, &state);
    let has =
        |path: &str, name: &str| context.is_root() || state.allows(&context.identity, path, name);
    for guest in state.guests.values() {
        if !(all || has(&format!("/vms/{}", guest.vmid), "VM.Audit")) {
            continue;
        }
        let mut shown = guest.resource(now, last_update);
        let pool = state.pool_of.get(&guest.vmid).map(String::as_str);
        shown.pool = pool.filter(|pool| has(&format!("/pool/{pool}"), "Pool.Audit"));
        let host = state.hosts.get(&guest.node);
        if host.is_some_and(|host| !host.online) {
            shown.status = "unknown";
        }
        push_json(text, &shown);
    }
}

/// Whether a caller may see every guest, without checking each.
pub(crate) fn sees_all_guests(context: &Context, state: &State) -> bool {
    let access = &state.access;
    context.is_root()
        || (access
            .privileges(&context.identity, "/vms", None)
            .get("VM.Audit")
            == Some(&true)
            && !access
                .grants
                .iter()
                .any(|grant| grant.path.starts_with("/vms/")))
}

fn visible_storages(context: &Context) -> Vec<Value> {
    let names: Vec<String> = context.world.state().storages.keys().cloned().collect();
    let mut list = Vec::new();
    for name in names {
        // `Datastore.AllocateSpace` is enough for the list of a host, but not for this one.
        if !permission::allows(context, &format!("/storage/{name}"), "Datastore.Audit") {
            continue;
        }
        let state = context.world.state();
        let Some(storage) = state.storages.get(&name).filter(|storage| storage.enabled) else {
            continue;
        };
        for host in state
            .hosts
            .values()
            .filter(|host| storage.is_on(&host.name))
        {
            let mut shown = json!({
                "id": format!("storage/{}/{name}", host.name),
                "type": "storage",
                "storage": name,
                "node": host.name,
                "plugintype": storage.kind,
                "content": storage.content.join(","),
                "shared": u8::from(storage.shared),
                "status": if host.online { "available" } else { "unknown" },
            });
            if host.online {
                // From the last status update, so also for a storage that failed since.
                let usage = state.usage(storage, &host.name);
                shown["maxdisk"] = json!(usage.total);
                shown["disk"] = json!(usage.used);
            }
            list.push(shown);
        }
    }
    list
}

/// Whether a caller may see a storage on its host.
pub(crate) fn may_see_storage(context: &Context, name: &str) -> bool {
    let path = format!("/storage/{name}");
    ["Datastore.Audit", "Datastore.AllocateSpace"]
        .iter()
        .any(|privilege| permission::allows(context, &path, privilege))
}

/// Returns total and used bytes of the disk a host runs from.
pub(crate) fn root_disk(state: &State, host: &str) -> (u64, u64) {
    state
        .storages
        .values()
        .find(|storage| !storage.shared && storage.is_on(host))
        .map_or((1 << 38, 1 << 34), |storage| {
            let usage = state.usage(storage, host);
            (usage.total, usage.used)
        })
}

/// Removes the fields that need `Sys.Audit` on the host.
fn hide_node_details(context: &Context, state: &State, host: &str, shown: &mut Value) {
    let path = format!("/nodes/{host}");
    let audits = context.is_root() || state.allows(&context.identity, &path, "Sys.Audit");
    if !audits && let Some(object) = shown.as_object_mut() {
        object.retain(|key, _| {
            matches!(
                key.as_str(),
                "id" | "type" | "node" | "status" | "level" | "cgroup-mode" | "ssl_fingerprint"
            )
        });
    }
}

pub(crate) fn nodes(context: &Context) -> Outcome {
    let uptime = context.world.uptime();
    let state = context.world.state();
    let list: Vec<Value> = state
        .hosts
        .values()
        .map(|host| {
            let mut shown = host.entry(uptime, root_disk(&state, &host.name));
            if host.online {
                shown["ssl_fingerprint"] = json!(fingerprint(&host.name));
            }
            hide_node_details(context, &state, &host.name, &mut shown);
            shown
        })
        .collect();
    Ok(json!(list).into())
}

/// Returns an invented certificate fingerprint for a host.
fn fingerprint(host: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let bytes = Sha256::digest(host.as_bytes());
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    parts.join(":")
}
