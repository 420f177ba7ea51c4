//! Changes that an operator makes in the web interface of Proxmox VE, for tests: clone, back up,
//! restore, migrate, rename, delete. Each one is a call as root that completes before it returns.
//!
//! Tests of this crate, the engine, the providers and the command line use them. They are not in
//! `homestak-test-support` because they need the private state of a World.

use super::{Kind, World};
use crate::calls::Request;

/// Parameters of a call.
type Parameters<'a> = &'a [(&'a str, &'a str)];

fn with_parameters(mut request: Request, parameters: Parameters<'_>) -> Request {
    for (name, value) in parameters {
        request = request.with(name, value);
    }
    request
}

impl World {
    /// Returns the kind of a guest and its API path.
    fn path_of(&self, vmid: u32) -> Result<(Kind, String), String> {
        let state = self.state();
        let guest = state.guests.get(&vmid);
        let guest = guest.ok_or_else(|| format!("guest {vmid} does not exist"))?;
        let path = format!("/nodes/{}/{}/{vmid}", guest.node, guest.kind.api_name());
        Ok((guest.kind, path))
    }

    /// Clones a guest, in full unless it is a template: `clone_guest(100, 200, &[("name", "b")])`.
    pub fn clone_guest(
        &self,
        vmid: u32,
        newid: u32,
        parameters: Parameters<'_>,
    ) -> Result<(), String> {
        let (_, path) = self.path_of(vmid)?;
        let request = Request::post(&format!("{path}/clone")).with("newid", newid);
        self.perform(with_parameters(request, parameters))
            .map(|_| ())
    }

    /// Backs a guest up and returns the volume of the archive. A second backup within the same second
    /// replaces the first.
    pub fn back_up(&self, vmid: u32, storage: &str) -> Result<String, String> {
        let (_, path) = self.path_of(vmid)?;
        let host = path.split('/').nth(2).unwrap_or("");
        let request = Request::post(&format!("/nodes/{host}/vzdump"))
            .with("vmid", vmid)
            .with("storage", storage);
        self.perform(request)?;
        let state = self.state();
        let archives = state
            .storage(storage)?
            .volumes
            .iter()
            .filter(|(_, volume)| volume.backup.is_some() && volume.vmid == Some(vmid));
        archives
            .max_by_key(|((_, name), volume)| (volume.ctime, name.clone()))
            .map(|((_, name), _)| format!("{storage}:{name}"))
            .ok_or_else(|| format!("guest {vmid} has no backup"))
    }

    /// Restores an archive on the host that has it. The guest keeps the identity of the original
    /// unless `("unique", "1")` is given. Overwriting a guest requires `("force", "1")`.
    pub fn restore_backup(
        &self,
        archive: &str,
        vmid: u32,
        parameters: Parameters<'_>,
    ) -> Result<(), String> {
        let missing = || format!("volume '{archive}' does not exist");
        let (storage, name) = archive.split_once(':').ok_or_else(missing)?;
        let (host, kind) = {
            let state = self.state();
            let mut volumes = state.storage(storage)?.volumes.iter();
            let ((owner, _), volume) = volumes
                .find(|((_, volume), _)| volume == name)
                .ok_or_else(missing)?;
            let backup = volume.backup.as_ref().ok_or_else(missing)?;
            // Volumes of a shared storage have no owner: every host has them.
            let host = state
                .hosts
                .keys()
                .find(|host| owner.is_empty() || *host == owner);
            (host.cloned().ok_or_else(missing)?, backup.kind)
        };
        let request =
            Request::post(&format!("/nodes/{host}/{}", kind.api_name())).with("vmid", vmid);
        let request = match kind {
            Kind::Qemu => request.with("archive", archive),
            Kind::Lxc => request.with("ostemplate", archive).with("restore", 1),
        };
        self.perform(with_parameters(request, parameters))
            .map(|_| ())
    }

    /// Migrates a guest and its disks to another host. A running container is restarted.
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
    pub fn change_guest(&self, vmid: u32, parameters: Parameters<'_>) -> Result<(), String> {
        let (_, path) = self.path_of(vmid)?;
        let request = Request::put(&format!("{path}/config"));
        self.perform(with_parameters(request, parameters))
            .map(|_| ())
    }

    /// Removes the lock of a guest, as `qm unlock` and `pct unlock` do.
    pub fn unlock_guest(&self, vmid: u32) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.config.remove("lock");
        }
    }

    /// Locks a guest, as `qm set --lock` and `pct set --lock` do.
    pub fn lock_guest(&self, vmid: u32, lock: &str) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.config.set("lock", lock);
        }
    }

    /// Makes later resizes of a container change only its volume and not its file system.
    pub fn ignore_filesystem_resizes(&self, vmid: u32) {
        self.state().fixed_size_filesystems.insert(vmid);
    }

    /// Kills the process of a task: it ends without cleanup and with an unknown status.
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

    /// Renames a guest.
    pub fn rename_guest(&self, vmid: u32, name: &str) -> Result<(), String> {
        let key = match self.path_of(vmid)?.0 {
            Kind::Qemu => "name",
            Kind::Lxc => "hostname",
        };
        self.change_guest(vmid, &[(key, name)])
    }

    /// Stops and deletes a guest with its disks, but not its backups. Fails if it is protected.
    pub fn delete_guest(&self, vmid: u32) -> Result<(), String> {
        let (_, path) = self.path_of(vmid)?;
        if self.is_running(vmid) {
            self.perform(Request::post(&format!("{path}/status/stop")))?;
        }
        self.perform(Request::delete(&path).with("purge", 1))
            .map(|_| ())
    }
}
