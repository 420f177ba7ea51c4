//! Sets what depends on the recorded host alone, such as when a guest finished booting or when the
//! status daemon ran. Nothing that a client decides is taken from the recording.

use std::collections::BTreeSet;

use serde_json::Value;

use super::runner::Runner;
use super::transcript::Row;
use crate::calls::Answer;

/// Returns the process id of a task in decimal, as commands show it.
pub(crate) fn pid_of(upid: &str) -> String {
    let hex = upid.split(':').nth(2).unwrap_or("");
    u64::from_str_radix(hex, 16).unwrap_or(0).to_string()
}

impl Runner {
    /// Makes the guest agent answer, or not, as recorded.
    pub(crate) fn set_agent(&self, row: &Row) {
        if !row.api_path().contains("/agent/") {
            return;
        }
        let Some(vmid) = row
            .api_path()
            .split('/')
            .nth(4)
            .and_then(|id| id.parse::<u32>().ok())
        else {
            return;
        };
        let now = self.now();
        let mut state = self.world.state();
        if let Some(running) = state
            .guests
            .get_mut(&vmid)
            .and_then(|guest| guest.running.as_mut())
        {
            running.agent_from = (row.status == 200).then_some(now);
        }
    }

    /// Sets whether the status daemon knows the listed guests, as recorded.
    pub(crate) fn set_status_update(&self, row: &Row) {
        if row.status != 200 || row.api_path() != "/cluster/resources" {
            return;
        }
        let now = self.now();
        let mut state = self.world.state();
        for entry in row.data().as_array().into_iter().flatten() {
            let vmid = entry["vmid"].as_u64().and_then(|id| u32::try_from(id).ok());
            let Some(guest) = vmid.and_then(|vmid| state.guests.get_mut(&vmid)) else {
                continue;
            };
            if entry.get("name").is_none() {
                guest.seen = None;
                guest.touched = now;
            } else if guest.seen.is_none() {
                guest.touched = 0.0;
            }
        }
    }

    /// Makes a task run at least as long as recorded.
    pub(crate) fn set_task_duration(&self, row: &Row) {
        let Some(upid) = row.started() else {
            return;
        };
        let (start, pid) = (row.t0.unwrap_or(0.0), pid_of(upid));
        let Some(id) = upid.split(':').nth(6) else {
            return;
        };
        let config = format!("/{id}/config");
        let mut last: Option<f64> = None;
        for later in self.rows.iter().filter(|one| one.t0 > Some(start)) {
            let ends = later.started().is_some_and(|other| {
                let parts: Vec<&str> = other.split(':').collect();
                parts.get(6) == Some(&id)
                    && parts.get(5).is_some_and(|kind| kind.ends_with("create"))
            });
            if ends {
                break;
            }
            let own = later.upid() == Some(upid);
            let locked = later.api_path().ends_with(&config) && later.data()["lock"] == "create";
            let works = own && (later.data()["status"] == "running" || later.method == "DELETE")
                || later.is_command() && later.path.ends_with(&format!(" {pid}"))
                || locked;
            if works {
                last = later.t0;
            }
        }
        if let Some(last) = last {
            let until = last + self.delay + 0.05;
            self.world.state().busy.insert(id.to_owned(), until);
        }
    }

    /// Sets the order in which the keys of a change are processed, which its result shows.
    pub(crate) fn set_key_order(&self, row: &Row) {
        let Some(boot) = row.parameter("boot").filter(|_| row.method == "PUT") else {
            return;
        };
        let after = self.rows.iter().find(|later| {
            later.t0 > row.t0 && later.method == "GET" && later.api_path() == row.api_path()
        });
        if let Some(after) = after {
            self.world.state().boot_first = Some(after.data()["boot"] != boot.as_str());
        }
    }

    /// Removes a guest that no row created and whose id a row is about to create.
    pub(crate) fn remove_stale_guest(&self, row: &Row, at: f64) {
        let name = match row.api_path().rsplit('/').next() {
            Some("qemu" | "lxc") => "vmid",
            Some("clone") => "newid",
            _ => return,
        };
        let replaces = row.parameter("force").is_some();
        if row.method != "POST" || row.status != 200 || replaces {
            return;
        }
        let vmid = row.parameter(name).and_then(|id| id.parse().ok());
        if let Some(vmid) = vmid.filter(|vmid| !self.is_created_before(*vmid, at)) {
            self.world.state().remove_guest(vmid, self.now());
        }
    }

    /// Adopts the recorded state where it differs, so that one difference does not cause others.
    pub(crate) fn realign(&self, row: &Row, answer: &Answer) {
        let parts: Vec<&str> = row.api_path().split('/').skip(1).collect();
        if let ["nodes", host, "storage", _, "content"] = parts[..] {
            self.drop_volumes(host, row, answer);
        }
        let ["nodes", host, "qemu", vmid, ..] = parts[..] else {
            return;
        };
        let Ok(vmid) = vmid.parse::<u32>() else {
            return;
        };
        let deleted =
            row.method == "GET" && row.status == 500 && row.reason.ends_with("does not exist");
        if deleted && answer.status == 200 {
            let now = self.now();
            self.world.state().remove_guest(vmid, now);
        }
        let off = row.is_artifact() && row.data()["status"] == "stopped";
        if off && self.world.is_running(vmid) {
            let _ = self.world.set_stopped(host, crate::world::Kind::Qemu, vmid);
        }
    }

    /// Removes the volumes that a list for root no longer shows. Backups are matched by name instead.
    fn drop_volumes(&self, host: &str, row: &Row, answer: &Answer) {
        let by_root = row
            .token
            .as_deref()
            .is_some_and(|id| id.starts_with("root@pam"));
        if row.method != "GET" || row.status != 200 || answer.status != 200 || !by_root {
            return;
        }
        let ids = |list: &Value| -> BTreeSet<String> {
            let entries = list.as_array().into_iter().flatten();
            let volumes = entries.filter(|entry| entry["content"] != "backup");
            let ids = volumes.filter_map(|entry| entry["volid"].as_str());
            ids.map(str::to_owned).collect()
        };
        for deleted in ids(answer.data()).difference(&ids(row.data())) {
            self.world.state().remove_volume(host, deleted);
        }
    }
}
