//! Backups in a recording: adds those that are older than the recording, and gives those created
//! during it their recorded names.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::runner::Runner;
use super::transcript::Row;
use crate::guest::config::Config;
use crate::guest::drive::Drive;
use crate::world::state::{Backup, BackupDisk, Boots, Volume};
use crate::world::{Kind, World};

/// Returns storage, volume name and guest kind of a listed archive.
fn parts(entry: &Value) -> Option<(&str, &str, Kind)> {
    let (storage, name) = entry["volid"].as_str()?.split_once(':')?;
    let kind = match entry["subtype"].as_str()? {
        "qemu" => Kind::Qemu,
        _ => Kind::Lxc,
    };
    Some((storage, name, kind))
}

/// Adds an archive that is older than the recording, if a row shows its content.
pub(crate) fn add_listed(rows: &[Row], world: &World, host: &str, entry: &Value) {
    let Some((storage, name, kind)) = parts(entry) else {
        return;
    };
    let shown = rows.iter().find(|row| {
        row.api_path().ends_with("/vzdump/extractconfig")
            && row.parameter("volume").as_deref() == entry["volid"].as_str()
    });
    let Some(text) = shown.and_then(|row| row.data().as_str()) else {
        return;
    };
    let backup = parse(kind, text);
    let number = |key: &str| entry[key].as_u64().unwrap_or(0);
    let volume = Volume {
        content: "backup",
        format: entry["format"].as_str().unwrap_or("vma").to_owned(),
        size: number("size"),
        used: number("size"),
        ctime: entry["ctime"].as_i64().unwrap_or(0),
        vmid: u32::try_from(number("vmid")).ok(),
        parent: None,
        boots: Boots::Nothing,
        backup: Some(Box::new(backup)),
    };
    let _ = world.state().add_volume(host, storage, name, volume);
}

/// Parses the configuration in an archive, including the `#qmdump#map:` lines that list its disks.
fn parse(kind: Kind, text: &str) -> Backup {
    let mut notes = Vec::new();
    let mut values = BTreeMap::new();
    let mut disks = BTreeMap::new();
    for line in text.lines() {
        if let Some(map) = line.strip_prefix("#qmdump#map:") {
            if let [key, _, storage, format, ..] = map.split(':').collect::<Vec<_>>()[..] {
                disks.insert(key.to_owned(), (storage.to_owned(), format.to_owned()));
            }
        } else if let Some(note) = line.strip_prefix('#') {
            notes.push(percent_decode_str(note).decode_utf8_lossy().into_owned());
        } else if let Some((key, value)) = line.split_once(": ") {
            values.insert(key.to_owned(), value.to_owned());
        }
    }
    if !notes.is_empty() {
        values.insert("description".to_owned(), notes.join("\n"));
    }
    let disks = disks.into_iter().map(|(key, (storage, format))| {
        let text = values.get(&key).map_or("", String::as_str);
        let size = Drive::parse(kind, text).size();
        let disk = BackupDisk {
            storage,
            format,
            size,
            used: 0,
        };
        (key, disk)
    });
    Backup {
        kind,
        disks: disks.collect(),
        config: Config::from_pairs(values),
        boots: Boots::Nothing,
        notes: String::new(),
        protected: false,
    }
}

impl Runner {
    /// Renames the archive of a guest to its recorded name, which contains the time of the backup.
    pub(crate) fn rename_archive(&self, host: &str, entry: &Value) {
        let Some((storage, name, kind)) = parts(entry) else {
            return;
        };
        let mut state = self.world.state();
        let Ok(known) = state.storage_mut(storage) else {
            return;
        };
        let host = known.volume_host(host);
        let made = known.volumes.iter().find(|((at, _), volume)| {
            let backup = volume.backup.as_ref();
            *at == host
                && volume.vmid.map(u64::from) == entry["vmid"].as_u64()
                && backup.is_some_and(|backup| backup.kind == kind)
        });
        if let Some(old) = made.map(|(key, _)| key.clone())
            && let Some(volume) = known.volumes.remove(&old)
        {
            known.volumes.insert((host, name.to_owned()), volume);
        }
    }
}
