//! What people do to guests at the vendor's interface, for tests: clone, back up, restore, migrate,
//! rename, delete. Each is one call as root, by the code that answers calls, and is done on return.
//! In: ids and parameters. Out: what was done, or the refusal.
//! Never: waiting.

use super::{Kind, World};
use crate::calls::Request;

/// Parameters of a call.
type With<'a> = &'a [(&'a str, &'a str)];

fn with(mut request: Request, parameters: With<'_>) -> Request {
    for (name, value) in parameters {
        request = request.with(name, value);
    }
    request
}

impl World {
    /// Returns the kind of a guest and the path of its calls.
    fn path_of(&self, vmid: u32) -> Result<(Kind, String), String> {
        let state = self.state();
        let guest = state.guests.get(&vmid);
        let guest = guest.ok_or_else(|| format!("there is no guest {vmid}"))?;
        let path = format!("/nodes/{}/{}/{vmid}", guest.node, guest.kind.word());
        Ok((guest.kind, path))
    }

    /// Clones a guest, in full unless it is a template: `clone_guest(100, 200, &[("name", "b")])`.
    pub fn clone_guest(&self, vmid: u32, newid: u32, parameters: With<'_>) -> Result<(), String> {
        let (_, path) = self.path_of(vmid)?;
        let request = Request::post(&format!("{path}/clone")).with("newid", newid);
        self.perform(with(request, parameters)).map(|_| ())
    }

    /// Backs a guest up and returns the volume of the archive. Within one second there is one.
    pub fn back_up(&self, vmid: u32, storage: &str) -> Result<String, String> {
        let (_, path) = self.path_of(vmid)?;
        let host = path.split('/').nth(2).unwrap_or("");
        let request = Request::post(&format!("/nodes/{host}/vzdump"))
            .with("vmid", vmid)
            .with("storage", storage);
        self.perform(request)?;
        let state = self.state();
        let known = state.storage(storage)?;
        let archives = known
            .volumes
            .iter()
            .filter(|(_, volume)| volume.backup.is_some() && volume.vmid == Some(vmid));
        archives
            .max_by_key(|((_, name), volume)| (volume.ctime, name.clone()))
            .map(|((_, name), _)| format!("{storage}:{name}"))
            .ok_or_else(|| format!("there is no backup of guest {vmid}"))
    }

    /// Restores an archive as a guest, on the host that has the archive. The copy has the identity
    /// of the original unless `("unique", "1")` is given; over a guest it needs `("force", "1")`.
    pub fn restore_backup(
        &self,
        archive: &str,
        vmid: u32,
        parameters: With<'_>,
    ) -> Result<(), String> {
        let missing = || format!("volume '{archive}' does not exist");
        let (storage, name) = archive.split_once(':').ok_or_else(missing)?;
        let (host, kind) = {
            let state = self.state();
            let mut volumes = state.storage(storage)?.volumes.iter();
            let ((place, _), volume) = volumes
                .find(|((_, known), _)| known == name)
                .ok_or_else(missing)?;
            let backup = volume.backup.as_ref().ok_or_else(missing)?;
            // On a shared storage every host has it.
            let host = state
                .hosts
                .keys()
                .find(|host| place.is_empty() || *host == place);
            (host.cloned().ok_or_else(missing)?, backup.kind)
        };
        let request = Request::post(&format!("/nodes/{host}/{}", kind.word())).with("vmid", vmid);
        let request = match kind {
            Kind::Qemu => request.with("archive", archive),
            Kind::Lxc => request.with("ostemplate", archive).with("restore", 1),
        };
        self.perform(with(request, parameters)).map(|_| ())
    }

    /// Moves a guest to another host with its disks. A container that runs is restarted.
    pub fn migrate_guest(&self, vmid: u32, host: &str) -> Result<(), String> {
        let (kind, path) = self.path_of(vmid)?;
        let mut request = Request::post(&format!("{path}/migrate")).with("target", host);
        if self.is_running(vmid) {
            request = match kind {
                Kind::Qemu => request.with("online", 1).with("with-local-disks", 1),
                Kind::Lxc => request.with("restart", 1),
            };
        }
        self.perform(request).map(|_| ())
    }

    /// Changes a configuration: `tags`, `description`, `smbios1`, `protection`, or `delete`.
    pub fn change_guest(&self, vmid: u32, parameters: With<'_>) -> Result<(), String> {
        let (_, path) = self.path_of(vmid)?;
        let request = Request::put(&format!("{path}/config"));
        self.perform(with(request, parameters)).map(|_| ())
    }

    /// Removes the lock of a configuration, as `qm unlock` and `pct unlock` at the host do.
    pub fn unlock_guest(&self, vmid: u32) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.config.remove("lock");
        }
    }

    /// Locks a configuration, as `qm set --lock` and `pct set --lock` at the host do.
    pub fn lock_guest(&self, vmid: u32, lock: &str) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.config.set("lock", lock);
        }
    }

    /// Has a container keep its file system as it is when its volume grows.
    pub fn keep_file_system(&self, vmid: u32) {
        self.state().stubborn.insert(vmid);
    }

    /// Kills the process of a task: nothing is cleared up, and how it ended is not known.
    pub fn kill_task(&self, upid: &str) {
        let now = self.epoch();
        self.state().tasks.kill(upid, now);
    }

    /// Starts a guest.
    pub fn start_guest(&self, vmid: u32) -> Result<(), String> {
        let (_, path) = self.path_of(vmid)?;
        let request = Request::post(&format!("{path}/status/start"));
        self.perform(request).map(|_| ())
    }

    /// Gives a guest another name.
    pub fn rename_guest(&self, vmid: u32, name: &str) -> Result<(), String> {
        let key = match self.path_of(vmid)?.0 {
            Kind::Qemu => "name",
            Kind::Lxc => "hostname",
        };
        self.change_guest(vmid, &[(key, name)])
    }

    /// Stops a guest and deletes it with its disks. Its backups stay. Protection refuses.
    pub fn delete_guest(&self, vmid: u32) -> Result<(), String> {
        let (_, path) = self.path_of(vmid)?;
        if self.is_running(vmid) {
            self.perform(Request::post(&format!("{path}/status/stop")))?;
        }
        self.perform(Request::delete(&path).with("purge", 1))
            .map(|_| ())
    }
}
