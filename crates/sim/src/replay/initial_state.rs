//! Reconstructs the state before a recording from its rows: hosts, storages, users and files at the
//! start, guests when a row first shows them. Nothing here is specific to one recording.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::settings;
use super::transcript::Row;
use crate::calls::upload::guess_boots;
use crate::guest::drive::{Drive, parse_size, render_size, volumes};
use crate::world::state::{Boots, Volume};
use crate::world::{Builder, Kind, Pace, World};

/// Privileges of a token that a recording uses but does not create: those needed to create guests.
const DEFAULT_PRIVILEGES: [&str; 24] = [
    "VM.Allocate",
    "VM.Audit",
    "VM.Clone",
    "VM.Config.CDROM",
    "VM.Config.CPU",
    "VM.Config.Cloudinit",
    "VM.Config.Disk",
    "VM.Config.HWType",
    "VM.Config.Memory",
    "VM.Config.Network",
    "VM.Config.Options",
    "VM.GuestAgent.Audit",
    "VM.PowerMgmt",
    "VM.Snapshot",
    "VM.Snapshot.Rollback",
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.AllocateTemplate",
    "Datastore.Audit",
    "SDN.Use",
    "SDN.Audit",
    "Sys.Audit",
    "VM.Console",
    "VM.GuestAgent.Unrestricted",
];

/// Returns the path segments that follow `word` in successful calls.
fn names_after(rows: &[Row], word: &str) -> BTreeSet<String> {
    rows.iter()
        .filter(|row| row.status == 200)
        .filter_map(|row| {
            let mut parts = row.api_path().split('/').skip_while(|part| *part != word);
            parts.next()?;
            parts.next().map(ToOwned::to_owned)
        })
        .filter(|name| !name.is_empty())
        .collect()
}

/// Returns a token with the secret that the replay uses for it: `user@realm!name=secret`.
pub(crate) fn secret_of(token: &str) -> String {
    format!("{token}=secret-of-{token}")
}

/// Builds the World that a recording starts with.
pub(crate) fn build(rows: &[Row], start: f64) -> World {
    let mut builder: Builder = World::builder().seed(7).pace(Pace::Stepped);
    if let Ok(start) = Timestamp::from_microsecond((start * 1e6) as i64) {
        builder = builder.starting_at(start);
    }
    let mut hosts = names_after(rows, "nodes");
    for row in rows
        .iter()
        .filter(|row| row.status == 200 && row.api_path() == "/nodes")
    {
        hosts.extend(
            row.data()
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|host| host["node"].as_str().map(ToOwned::to_owned)),
        );
    }
    for host in hosts.iter().filter(|host| *host != "localhost") {
        builder = builder.host(host);
    }
    let mut storages = names_after(rows, "storage");
    storages.insert("local".to_owned());
    let named = rows.iter().filter(|row| row.status == 200);
    storages.extend(named.filter_map(|row| row.parameter("storage")));
    // Storages that the recording defines did not exist before.
    for row in rows.iter().filter(|row| row.api_path() == "/storage") {
        if row.status == 200 && row.method == "POST" {
            storages.remove(&row.parameter("storage").unwrap_or_default());
        }
    }
    for storage in storages {
        builder = builder.storage(&storage);
    }
    builder = users(rows, builder);
    let world = builder.build();
    settings::definitions(rows, &world);
    settings::grants(rows, &world);
    files(rows, &world, start);
    tasks(rows, &world, start);
    downloads(rows, &world);
    world
}

fn users(rows: &[Row], mut builder: Builder) -> Builder {
    let mut created: BTreeSet<String> = BTreeSet::new();
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        if row.status == 200 && row.method == "POST" && row.api_path().contains("/token/") {
            let path: Vec<&str> = row.api_path().split('/').collect();
            if let [_, _, _, user, _, name] = path[..] {
                created.insert(format!("{user}!{name}"));
            }
        }
        if row.api_path() == "/access/ticket" && row.status == 200 {
            let name = row.parameter("username").unwrap_or_default();
            let password = row.parameter("password").unwrap_or_default();
            builder = builder.user(&name, &password);
        }
        if let Some(token) = token_of(row)
            && !created.contains(&token)
        {
            let missing = used.entry(token).or_default();
            // It lacks the privileges for which it was refused.
            if row.status == 403
                && let Some((_, privilege)) = row.reason.rsplit_once(", ")
            {
                missing.extend(
                    privilege
                        .trim_end_matches(')')
                        .split('|')
                        .map(ToOwned::to_owned),
                );
            }
        }
    }
    for (token, missing) in used {
        builder = builder.token(&secret_of(&token));
        let user = token.split('!').next().unwrap_or("").to_owned();
        if user == "root@pam" {
            continue;
        }
        let has: Vec<&str> = DEFAULT_PRIVILEGES
            .iter()
            .filter(|p| !missing.contains(**p))
            .copied()
            .collect();
        let role = format!("Replay-{}", token.replace(['@', '!'], "-"));
        builder = builder.role(&role, &has).grant(&user, "/", &role);
    }
    builder
}

/// Returns the token a row was sent with.
pub(crate) fn token_of(row: &Row) -> Option<String> {
    if let Some(token) = &row.token {
        return Some(token.clone());
    }
    let header = row.req_headers.as_ref()?.get("Authorization")?;
    let token = header.strip_prefix("PVEAPIToken=")?;
    let (name, _) = token.split_once('=')?;
    Some(name.to_owned())
}

/// Adds the files that are older than the recording.
fn files(rows: &[Row], world: &World, start: f64) {
    for row in rows
        .iter()
        .filter(|row| row.status == 200 && row.api_path().ends_with("/content"))
    {
        let host = row.api_path().split('/').nth(2).unwrap_or("").to_owned();
        for entry in row.data().as_array().into_iter().flatten() {
            let old = entry["ctime"].as_f64().is_some_and(|ctime| ctime < start);
            if old && entry["content"] == "backup" {
                super::archive::add_listed(rows, world, &host, entry);
            } else if old && entry.get("vmid").is_none() {
                add_file(world, &host, entry);
            }
        }
    }
}

/// Adds the listed tasks that are older than the recording.
fn tasks(rows: &[Row], world: &World, start: f64) {
    let mut old: BTreeMap<String, Value> = BTreeMap::new();
    for row in rows
        .iter()
        .filter(|row| row.status == 200 && row.api_path().ends_with("/tasks"))
    {
        for entry in row.data().as_array().into_iter().flatten() {
            if let Some(upid) = entry["upid"].as_str()
                && entry["starttime"].as_f64().is_some_and(|at| at < start)
            {
                old.insert(upid.to_owned(), entry.clone());
            }
        }
    }
    for (upid, entry) in old {
        let Some(parts) = super::transcript::upid_parts(&upid) else {
            continue;
        };
        let now = entry["starttime"].as_i64().unwrap_or(0);
        let mut state = world.state();
        let upid = state.tasks.start(&crate::world::task::NewTask {
            node: &parts.node,
            kind: &parts.kind,
            id: &parts.id,
            identity: &parts.identity,
            now,
            ticks: parts.ticks as u64,
            warned: false,
        });
        let ended = entry["endtime"].as_i64().unwrap_or(now);
        let outcome = match entry["status"].as_str() {
            None | Some("OK") => Ok(()),
            Some(fault) => Err(fault.to_owned()),
        };
        state.tasks.finish(&upid, ended, outcome);
    }
}

/// Adds a listed file.
pub(crate) fn add_file(world: &World, host: &str, entry: &Value) {
    let Some((storage, name)) = entry["volid"]
        .as_str()
        .and_then(|volid| volid.split_once(':'))
    else {
        return;
    };
    world.put_file(
        host,
        storage,
        name,
        entry["size"].as_u64().unwrap_or(0),
        guess_boots(name),
    );
}

/// Sets size and checksum of downloads from the answers that show them.
fn downloads(rows: &[Row], world: &World) {
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    let mut sums: BTreeMap<String, String> = BTreeMap::new();
    let exits = exits(rows);
    for row in rows {
        let Some(url) = row.parameter("url") else {
            continue;
        };
        if row.status == 200 && row.api_path().ends_with("query-url-metadata") {
            sizes.insert(url.clone(), row.data()["size"].as_u64().unwrap_or(0));
        }
        let exit = row
            .started()
            .and_then(|upid| exits.get(upid))
            .cloned()
            .unwrap_or_default();
        if exit == "OK" {
            sizes.entry(url.clone()).or_insert(100_000_000);
            if let Some(sum) = row.parameter("checksum") {
                sums.insert(url.clone(), sum);
            }
        }
        if let Some(got) = exit
            .split('\'')
            .nth(1)
            .filter(|_| exit.starts_with("checksum mismatch"))
        {
            sums.insert(url.clone(), got.to_owned());
            sizes.entry(url).or_insert(100_000_000);
        }
    }
    for (url, size) in sizes {
        world.offer_download(&url, size, sums.get(&url).map_or("", String::as_str));
    }
}

/// Returns how each task of a recording ended.
pub(crate) fn exits(rows: &[Row]) -> BTreeMap<String, String> {
    rows.iter()
        .filter(|row| row.status == 200 && row.api_path().ends_with("/status"))
        .filter_map(|row| {
            let exit = row.data().get("exitstatus")?.as_str()?;
            Some((row.upid()?.to_owned(), exit.to_owned()))
        })
        .collect()
}

/// A guest that a row shows.
#[derive(Clone, Debug)]
pub(crate) struct ObservedGuest {
    pub(crate) vmid: u32,
    pub(crate) kind: Kind,
    pub(crate) host: String,
    pub(crate) entry: Value,
}

/// Returns the guests that must have existed for a row to be answered this way.
pub(crate) fn observed_guests(row: &Row) -> Vec<ObservedGuest> {
    if row.status != 200 {
        return Vec::new();
    }
    let parts: Vec<&str> = row.api_path().split('/').skip(1).collect();
    let kind_of = |word: &str| match word {
        "qemu" => Some(Kind::Qemu),
        "lxc" => Some(Kind::Lxc),
        _ => None,
    };
    match parts[..] {
        ["nodes", host, word, vmid, ref rest @ ..] => {
            let (Some(kind), Ok(vmid)) = (kind_of(word), vmid.parse()) else {
                return Vec::new();
            };
            let proves = matches!(
                (row.method.as_str(), rest),
                ("GET", _)
                    | ("DELETE", [])
                    | ("PUT", ["config"])
                    | ("POST", ["config" | "clone" | "template" | "snapshot"])
            );
            let entry = match rest {
                ["config" | "status", ..] => row.data().clone(),
                _ => Value::Null,
            };
            let observed = ObservedGuest {
                vmid,
                kind,
                host: host.to_owned(),
                entry,
            };
            if proves { vec![observed] } else { Vec::new() }
        }
        ["cluster", "resources"] | ["nodes", _, "qemu" | "lxc"] => row
            .data()
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let word =
                    entry["type"]
                        .as_str()
                        .unwrap_or(if parts.len() == 3 { parts[2] } else { "" });
                let host = entry["node"]
                    .as_str()
                    .unwrap_or(parts.get(1).copied().unwrap_or(""));
                Some(ObservedGuest {
                    vmid: u32::try_from(entry["vmid"].as_u64()?).ok()?,
                    kind: kind_of(word)?,
                    host: host.to_owned(),
                    entry: entry.clone(),
                })
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Adds a guest that a row shows, unless it exists.
pub(crate) fn add_guest(world: &World, seen: &ObservedGuest) {
    if world.state().guests.contains_key(&seen.vmid) {
        return;
    }
    let looks_like_config = seen.entry.get("digest").is_some();
    let mut config: Vec<(String, String)> = Vec::new();
    if looks_like_config {
        for (key, value) in seen.entry.as_object().into_iter().flatten() {
            if key != "digest" {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), ToOwned::to_owned);
                config.push((key.clone(), text));
            }
        }
    } else {
        config = config_from_entry(seen);
    }
    world.put_guest(&seen.host, seen.kind, seen.vmid, config);
    let named: Vec<(String, u64)> = {
        let state = world.state();
        state
            .guests
            .get(&seen.vmid)
            .map(|guest| {
                volumes(seen.kind, &guest.config)
                    .into_iter()
                    .map(|(key, volume)| {
                        let text = guest.config.value(&key).unwrap_or("");
                        (volume, Drive::parse(seen.kind, text).size())
                    })
                    .collect()
            })
            .unwrap_or_default()
    };
    for (volume, size) in named {
        add_volume(world, seen, &volume, size);
    }
    if seen.entry["status"] == "running" {
        let _ = world.set_running(&seen.host, seen.kind, seen.vmid);
    }
}

/// Adds a listed disk whose guest does not exist.
pub(crate) fn add_orphaned_disk(world: &World, host: &str, vmid: u32, entry: &Value) {
    let kind = match entry["content"].as_str() {
        Some("images") => Kind::Qemu,
        Some("rootdir") => Kind::Lxc,
        _ => return,
    };
    let seen = ObservedGuest {
        vmid,
        kind,
        host: host.to_owned(),
        entry: Value::Null,
    };
    let size = entry["size"].as_u64().unwrap_or(0);
    add_volume(world, &seen, entry["volid"].as_str().unwrap_or(""), size);
}

fn add_volume(world: &World, seen: &ObservedGuest, volume: &str, size: u64) {
    let Some((storage, name)) = volume.split_once(':') else {
        return;
    };
    if world.state().volume(&seen.host, volume).is_some() {
        return;
    }
    if crate::calls::storage::owner_of(name).is_none() {
        world.put_file(&seen.host, storage, name, size, guess_boots(name));
        return;
    }
    let format = name.rsplit('.').next().unwrap_or("raw").to_owned();
    let content = match seen.kind {
        Kind::Qemu => "images",
        Kind::Lxc => "rootdir",
    };
    let ctime = world.epoch();
    let volume = Volume {
        content,
        format,
        size,
        used: size / 5,
        ctime,
        vmid: Some(seen.vmid),
        parent: None,
        boots: Boots::Nothing,
        backup: None,
    };
    let _ = world.state().add_volume(&seen.host, storage, name, volume);
}

/// Derives a configuration from a list entry.
pub(crate) fn config_from_entry(seen: &ObservedGuest) -> Vec<(String, String)> {
    let entry = &seen.entry;
    let vmid = seen.vmid;
    let mut config = Vec::new();
    let mut put = |key: &str, value: String| config.push((key.to_owned(), value));
    let name_key = match seen.kind {
        Kind::Qemu => "name",
        Kind::Lxc => "hostname",
    };
    if let Some(name) = entry["name"].as_str() {
        put(name_key, name.to_owned());
    }
    if let Some(memory) = entry["maxmem"].as_u64() {
        put("memory", (memory >> 20).to_string());
    }
    if let Some(cpus) = entry["maxcpu"].as_u64().or(entry["cpus"].as_u64()) {
        put("cores", cpus.to_string());
    }
    for key in ["tags", "lock"] {
        if let Some(text) = entry[key].as_str() {
            put(key, text.to_owned());
        }
    }
    let template = entry["template"].as_u64() == Some(1);
    if template {
        put("template", "1".to_owned());
    }
    let size = entry["maxdisk"].as_u64().unwrap_or(0);
    match seen.kind {
        Kind::Qemu if size > 0 => {
            let stem = if template { "base" } else { "vm" };
            let size = render_size(size);
            put(
                "scsi0",
                format!("local:{vmid}/{stem}-{vmid}-disk-0.qcow2,size={size}"),
            );
            put("boot", "order=scsi0".to_owned());
        }
        Kind::Qemu => put("boot", " ".to_owned()),
        Kind::Lxc => put(
            "rootfs",
            format!("local:{vmid}/subvol-{vmid}-disk-0.subvol,size=0T"),
        ),
    }
    if entry["serial"].as_u64() == Some(1) {
        put("serial0", "socket".to_owned());
    }
    config
}

/// Adds the files that a successful create request refers to.
pub(crate) fn add_source_files(world: &World, host: &str, parameters: &BTreeMap<String, String>) {
    for (key, text) in parameters {
        let sources: Vec<&str> = if key == "ostemplate" {
            vec![text.as_str()]
        } else {
            text.split(',')
                .map(|part| part.strip_prefix("import-from=").unwrap_or(part))
                .collect()
        };
        for source in sources {
            let Some((storage, name)) = source.split_once(':') else {
                continue;
            };
            let file = ["iso/", "import/", "vztmpl/"]
                .iter()
                .any(|kind| name.starts_with(kind));
            if file && world.state().volume(host, source).is_none() {
                let size = parse_size("80M").unwrap_or(0);
                world.put_file(host, storage, name, size, guess_boots(name));
            }
        }
    }
}
