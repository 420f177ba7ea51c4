//! Calls that a recording does not contain, although it contains the tasks that they started. The
//! calls are derived from the kinds, start times and logs of these tasks.

use std::collections::{BTreeMap, BTreeSet};

use super::transcript::{Row, UpidParts, upid_parts};
use crate::calls::{Request, Upload};

/// A call that was not recorded.
#[derive(Clone, Debug)]
pub(crate) struct UnrecordedCall {
    pub(crate) at: f64,
    pub(crate) upid: String,
    pub(crate) identity: String,
    pub(crate) request: Request,
    /// The guest it creates, if it creates one.
    pub(crate) creates: Option<u32>,
}

/// Estimates the boot time of the host: the median over all recorded calls that started a task. The
/// ticks of a UPID (1/100 s) count from it.
fn boot_time(rows: &[Row]) -> f64 {
    let mut offsets: Vec<f64> = rows
        .iter()
        .filter_map(|row| {
            let parts = upid_parts(row.started()?)?;
            Some(row.t0? + row.seconds - parts.ticks / 100.0)
        })
        .collect();
    offsets.sort_by(f64::total_cmp);
    offsets.get(offsets.len() / 2).copied().unwrap_or(0.0)
}

/// Finds the calls that were not recorded.
pub(crate) fn find(rows: &[Row]) -> Vec<UnrecordedCall> {
    let known: BTreeSet<&str> = rows.iter().filter_map(Row::started).collect();
    let booted = boot_time(rows);
    let mut first: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        if let Some(upid) = row.upid()
            && !known.contains(upid)
            && row.status == 200
        {
            first.entry(upid).or_insert((at, row.t0.unwrap_or(0.0)));
        }
    }
    let mut found: Vec<UnrecordedCall> = first
        .into_iter()
        .filter_map(|(upid, (_, seen))| {
            let parts = upid_parts(upid)?;
            // Not requested with an API token, but started by the host, as the World does too.
            if !parts.identity.contains('!') && parts.kind == "qmstart" {
                return None;
            }
            let at = (parts.ticks / 100.0 + booted - 0.04).min(seen - 0.01);
            let (request, creates) = derive_call(rows, upid, &parts, at)?;
            Some(UnrecordedCall {
                at,
                upid: upid.to_owned(),
                identity: parts.identity.clone(),
                request,
                creates,
            })
        })
        .collect();
    found.sort_by(|a, b| a.at.total_cmp(&b.at));
    found
}

/// Returns the lines of a task's log.
fn log_of(rows: &[Row], upid: &str) -> Vec<String> {
    rows.iter()
        .filter(|row| row.upid() == Some(upid) && row.api_path().ends_with("/log"))
        .flat_map(|row| row.data().as_array().into_iter().flatten())
        .filter_map(|line| line["t"].as_str().map(ToOwned::to_owned))
        .collect()
}

/// Derives the call that started a task, and the guest that it creates, if any.
fn derive_call(
    rows: &[Row],
    upid: &str,
    parts: &UpidParts,
    at: f64,
) -> Option<(Request, Option<u32>)> {
    let node = &parts.node;
    let id = &parts.id;
    let log = log_of(rows, upid);
    let qemu = format!("/nodes/{node}/qemu");
    let lxc = format!("/nodes/{node}/lxc");
    let purge = log.iter().any(|line| line.starts_with("purging"));
    let power = |base: &str, what: &str| Request::post(&format!("{base}/{id}/status/{what}"));
    let request = match parts.kind.as_str() {
        "qmstart" => power(&qemu, "start"),
        "qmstop" => power(&qemu, "stop"),
        "qmshutdown" => power(&qemu, "shutdown"),
        "qmreboot" => power(&qemu, "reboot"),
        "qmreset" => power(&qemu, "reset"),
        "vzstart" => power(&lxc, "start"),
        "vzstop" => power(&lxc, "stop"),
        "vzshutdown" => power(&lxc, "shutdown"),
        "vzreboot" => power(&lxc, "reboot"),
        "qmtemplate" => Request::post(&format!("{qemu}/{id}/template")),
        "qmdestroy" => {
            let call = Request::delete(&format!("{qemu}/{id}"));
            if purge { call.with("purge", 1) } else { call }
        }
        "vzdestroy" => {
            let forced = log.iter().any(|line| line.starts_with("forced to stop"));
            let mut call = Request::delete(&format!("{lxc}/{id}"));
            if purge {
                call = call.with("purge", 1);
            }
            if forced { call.with("force", 1) } else { call }
        }
        "qmcreate" => {
            let vmid = id.parse().ok();
            return Some((derive_create(rows, &qemu, id, &log, at), vmid));
        }
        "vzcreate" => {
            let vmid = id.parse().ok();
            let archive = log
                .iter()
                .find_map(|line| line.strip_prefix("extracting archive '"));
            let file = archive.and_then(|path| path.trim_end_matches('\'').rsplit('/').next());
            let call = Request::post(&lxc)
                .with("vmid", id)
                .with(
                    "ostemplate",
                    format!("local:vztmpl/{}", file.unwrap_or("unknown.tar.zst")),
                )
                .with("rootfs", "local:0")
                .with("unprivileged", 1);
            return Some((call, vmid));
        }
        "imgdel" => {
            let volume = log
                .iter()
                .find_map(|line| line.strip_prefix("Removed volume '"))
                .map(|rest| rest.trim_end_matches('\''))?;
            let storage = volume.split(':').next()?;
            Request::delete(&format!("/nodes/{node}/storage/{storage}/content/{volume}"))
        }
        "imgcopy" => return Some((derive_upload(node, &log)?, None)),
        "qmclone" => {
            let line = log
                .iter()
                .find_map(|line| line.strip_prefix("creating a clone of VM "));
            let target = line.and_then(|line| line.rsplit(' ').next())?;
            let full = log.iter().any(|line| line.starts_with("create full clone"));
            let call = Request::post(&format!("{qemu}/{id}/clone"))
                .with("newid", target)
                .with("full", u8::from(full));
            return Some((call, target.parse().ok()));
        }
        _ => return None,
    };
    Some((request, None))
}

/// Derives a create request from the log of its task and the next row with the configuration.
fn derive_create(rows: &[Row], path: &str, id: &str, log: &[String], at: f64) -> Request {
    let mut call = Request::post(path).with("vmid", id);
    let mut source: Option<&str> = None;
    for line in log {
        if let Some(rest) = line.strip_prefix("create full clone of drive (") {
            source = Some(rest.trim_end_matches(')'));
        }
        if let Some((key, rest)) = line.split_once(": successfully created disk '") {
            let text = rest.trim_end_matches('\'');
            let format = text
                .split(',')
                .next()
                .and_then(|v| v.rsplit('.').next())
                .unwrap_or("raw");
            let storage = text.split(':').next().unwrap_or("local");
            let value = match source.take() {
                Some(source) => format!("{storage}:0,import-from={source},format={format}"),
                None if text.contains("-cloudinit") => format!("{storage}:cloudinit"),
                None => {
                    let size = text.rsplit("size=").next().unwrap_or("1G");
                    let bytes = crate::guest::drive::parse_size(size).unwrap_or(1 << 30);
                    format!(
                        "{storage}:{},format={format}",
                        bytes as f64 / f64::from(1 << 30)
                    )
                }
            };
            call = call.with(key, value);
        }
    }
    for (key, value) in config_after(rows, path, id, at) {
        call.parameters.entry(key).or_insert(value);
    }
    call
}

/// Returns the configuration of a guest without drives, from the first row after `at` that has it.
fn config_after(rows: &[Row], path: &str, id: &str, at: f64) -> Vec<(String, String)> {
    let config = format!("{path}/{id}/config");
    let later = |row: &&Row| row.t0.unwrap_or(0.0) > at && row.status == 200 && row.method == "GET";
    // After the guest was destroyed, its id may belong to another guest.
    let deleted_at = rows
        .iter()
        .filter(|row| row.t0.unwrap_or(0.0) > at)
        .filter_map(|row| Some((upid_parts(row.upid().or(row.started())?)?, row.t0?)))
        .find(|(parts, _)| parts.kind == "qmdestroy" && parts.id == id)
        .map_or(f64::MAX, |(_, t0)| t0);
    let mut settings = Vec::new();
    for row in rows
        .iter()
        .filter(later)
        .filter(|row| row.t0.unwrap_or(0.0) < deleted_at)
    {
        if row.api_path() == config && row.data().get("lock").is_none() {
            for (key, value) in row.data().as_object().into_iter().flatten() {
                let skip = matches!(
                    key.as_str(),
                    "digest" | "meta" | "vmgenid" | "template" | "description"
                );
                if skip || crate::guest::drive::is_drive(key) || value == " " {
                    continue;
                }
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), ToOwned::to_owned);
                settings.push((key.clone(), text));
            }
            return settings;
        }
    }
    for row in rows
        .iter()
        .filter(later)
        .filter(|row| row.t0.unwrap_or(0.0) < deleted_at)
    {
        let list = row.data().as_array().into_iter().flatten();
        let entry = list.into_iter().find(|entry| {
            entry["vmid"].as_u64().map(|v| v.to_string()).as_deref() == Some(id)
                && entry.get("name").is_some()
        });
        if let Some(entry) = entry {
            let text = |key: &str| entry[key].as_str().map(ToOwned::to_owned);
            settings.extend(
                text("name")
                    .filter(|name| !name.contains(' '))
                    .map(|v| ("name".to_owned(), v)),
            );
            settings.extend(text("tags").map(|v| ("tags".to_owned(), v)));
            if let Some(memory) = entry["maxmem"].as_u64() {
                settings.push(("memory".to_owned(), (memory >> 20).to_string()));
            }
            return settings;
        }
    }
    settings
}

/// Derives an upload request from the log of its task.
fn derive_upload(node: &str, log: &[String]) -> Option<Request> {
    let path = log
        .iter()
        .find_map(|line| line.strip_prefix("target file: "))?;
    let size = log
        .iter()
        .find_map(|line| line.strip_prefix("file size is: "))?
        .parse()
        .ok()?;
    let content = if path.contains("/iso/") {
        "iso"
    } else if path.contains("/import/") {
        "import"
    } else {
        "vztmpl"
    };
    let mut call =
        Request::post(&format!("/nodes/{node}/storage/local/upload")).with("content", content);
    call.upload = Some(Upload {
        name: path.rsplit('/').next()?.to_owned(),
        size,
        head: b"QFI\xfb".to_vec(),
        ..Upload::default()
    });
    Some(call)
}

/// Returns the guests that recorded calls create, with the time of each call.
pub(crate) fn created_by_recorded_calls(rows: &[Row]) -> Vec<(u32, f64)> {
    rows.iter()
        .filter(|row| row.status == 200 && row.method == "POST")
        .filter_map(|row| {
            let path = row.api_path();
            let name = if path.ends_with("/clone") {
                "newid"
            } else if path.ends_with("/qemu") || path.ends_with("/lxc") {
                "vmid"
            } else {
                return None;
            };
            let vmid = row.parameter(name)?.parse().ok()?;
            Some((vmid, row.t0.unwrap_or(0.0)))
        })
        .collect()
}
