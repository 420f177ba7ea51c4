//! Methods that inspect or change a World without an API call, for scripts, nested hypervisors, and
//! the tests of this crate, the engine, the providers and the command line.
//!
//! Those that only tests use are here too: they need the private state of a World.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use super::fault::Fault;
use super::state::{Boots, Kind};
use super::timing::BootStages;
use super::{Builder, World};
use crate::calls::vm_create::empty_guest;
use crate::guest::config::Config;

/// The state of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFacts {
    /// Its id.
    pub vmid: u32,
    /// Virtual machine or container.
    pub kind: Kind,
    /// The host it is on.
    pub host: String,
    /// Whether it runs.
    pub running: bool,
    /// Its configuration, without pending changes.
    pub config: BTreeMap<String, String>,
}

impl World {
    /// Adds a stopped guest.
    pub fn put_guest(&self, host: &str, kind: Kind, vmid: u32, config: Vec<(String, String)>) {
        let mut guest = empty_guest(vmid, kind, host, 0.0, "");
        guest.config = Config::from_pairs(config);
        self.state().guests.insert(vmid, guest);
    }

    /// Removes a guest and its disks, as on the host itself.
    pub fn remove_guest(&self, vmid: u32) {
        let now = self.now();
        let mut state = self.state();
        state.remove_guest(vmid, now);
        for storage in state.storages.values_mut() {
            storage.volumes.retain(|_, volume| !volume.is_disk_of(vmid));
        }
    }

    /// Powers a guest off without a shutdown.
    pub fn switch_off(&self, vmid: u32) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.running = None;
        }
    }

    /// Returns the state of every guest.
    pub fn guests(&self) -> Vec<GuestFacts> {
        let state = self.state();
        state
            .guests
            .values()
            .map(|guest| GuestFacts {
                vmid: guest.vmid,
                kind: guest.kind,
                host: guest.node.clone(),
                running: guest.running.is_some(),
                config: guest.config.values().clone(),
            })
            .collect()
    }

    /// Returns the start time of a running virtual machine and the seconds from there until its
    /// agent answers.
    pub fn boot_of(&self, vmid: u32) -> Option<(f64, f64)> {
        let state = self.state();
        let running = state.guests.get(&vmid)?.running.as_ref()?;
        Some((running.since, running.agent_from? - running.since))
    }

    /// Returns host and id of all volumes. The host is empty for shared storages.
    pub fn volumes(&self) -> Vec<(String, String)> {
        let state = self.state();
        state
            .storages
            .values()
            .flat_map(|storage| {
                storage
                    .volumes
                    .keys()
                    .map(|(host, name)| (host.clone(), format!("{}:{name}", storage.name)))
            })
            .collect()
    }

    /// Whether no task is running.
    pub fn is_idle(&self) -> bool {
        self.state()
            .tasks
            .by_upid
            .values()
            .all(|task| task.ended.is_some())
    }

    /// Returns the running tasks.
    pub fn running_tasks(&self) -> Vec<String> {
        let state = self.state();
        let tasks = state.tasks.by_upid.values();
        tasks
            .filter(|task| task.ended.is_none())
            .map(|task| task.upid.clone())
            .collect()
    }

    /// Returns the number of calls by method and path. `*` replaces the ids of guests, tasks and
    /// volumes.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let counted = self.0.counted.lock();
        counted.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn count(&self, method: &str, path: &str) {
        let kind = |part: &str| {
            let id = part.parse::<u32>().is_ok() || part.contains(':');
            if id { "*" } else { part }.to_owned()
        };
        let parts: Vec<String> = path.split('/').map(kind).collect();
        let call = format!("{method} {}", parts.join("/"));
        let mut counted = self
            .0
            .counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *counted.entry(call).or_default() += 1;
    }

    /// Adds a fault.
    pub fn add_fault(&self, fault: Fault) {
        self.state().faults.add(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Sets whether a host is reachable.
    pub fn set_online(&self, host: &str, online: bool) {
        if let Some(host) = self.state().hosts.get_mut(host) {
            host.online = online;
        }
    }

    /// Sets whether the cluster has quorum. Changes are refused without it.
    pub fn set_quorate(&self, quorate: bool) {
        self.state().quorate = quorate;
    }

    /// Sets whether a storage is full.
    pub fn set_full(&self, storage: &str, full: bool) {
        if let Some(storage) = self.state().storages.get_mut(storage) {
            storage.full = full;
        }
    }

    /// Sets what a storage may hold, such as `images` and `iso`.
    pub fn set_content(&self, storage: &str, content: &[&str]) {
        if let Some(storage) = self.state().storages.get_mut(storage) {
            storage.content = content.iter().map(|kind| (*kind).to_owned()).collect();
        }
    }

    /// Sets whether the file system of a storage is mounted.
    pub fn set_mounted(&self, storage: &str, mounted: bool) {
        if let Some(storage) = self.state().storages.get_mut(storage) {
            storage.mounted = mounted;
        }
    }

    /// Sets the boot stages for the next starts of the named virtual machine, or of all those without
    /// their own stages.
    pub fn set_stages(&self, stages: BootStages) {
        let timing = &mut self.state().timing;
        let Some(guest) = stages.guest.clone() else {
            let seconds = |value: f64| Duration::try_from_secs_f64(value).ok();
            timing.address = stages.address.and_then(seconds).or(timing.address);
            timing.boot = stages.agent.and_then(seconds).unwrap_or(timing.boot);
            timing.ssh = stages.ssh.and_then(seconds).or(timing.ssh);
            return;
        };
        timing.stages.insert(guest, stages);
    }

    /// Whether SSH answers at an address in this World or a nested one.
    pub fn ssh_answers(&self, address: &str) -> bool {
        self.apply_due_events();
        let now = self.now();
        let inner: Vec<Self> = {
            let state = self.state();
            let mut guests = state.guests.values();
            if guests.any(|guest| guest.ssh_answers(address, now)) {
                return true;
            }
            let running = state
                .guests
                .values()
                .filter(|guest| guest.running.is_some());
            running.filter_map(|guest| guest.inner.clone()).collect()
        };
        inner.iter().any(|world| world.ssh_answers(address))
    }

    /// Sets the copy speed of disks.
    pub fn set_copy_speed(&self, bytes_per_second: u64) {
        self.state().timing.copy_speed = bytes_per_second;
    }

    /// Adds a token, `user@realm!name=secret`, without privilege separation, unless it exists.
    pub fn allow_token(&self, token: &str) {
        let Some((identity, secret)) = token.split_once('=') else {
            return;
        };
        let Some((user, name)) = identity.split_once('!') else {
            return;
        };
        let mut state = self.state();
        let known = state.access.users.get(user);
        let known = known.and_then(|user| user.tokens.get(name));
        if known.is_some_and(|token| token.secret == secret) {
            return;
        }
        state.access.add_token(user, name, secret, false);
    }

    /// Sets what the disk of a guest boots.
    pub fn set_boots(&self, vmid: u32, boots: Boots) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.boots = boots;
        }
    }

    /// Returns the World inside a guest, while the guest is a booted hypervisor.
    ///
    /// It is created by the first call, with the same clock, one host named like the guest, and a
    /// storage `local`; `prepare` adds to this. After a restart of the guest its own guests are
    /// stopped. It is removed with the guest.
    pub fn inside(&self, vmid: u32, prepare: impl FnOnce(Builder) -> Builder) -> Option<Self> {
        let now = self.now();
        let mut state = self.state();
        let boot = state.timing.boot.as_secs_f64();
        let timing = state.timing.clone();
        let guest = state.guests.get(&vmid)?;
        let up = guest
            .running
            .as_ref()
            .is_some_and(|running| now - running.since >= boot);
        if guest.boots != Boots::Hypervisor || !up {
            return None;
        }
        if let Some(inner) = &guest.inner {
            return Some(inner.clone());
        }
        let seed = state.random.next();
        let guest = state.guests.get_mut(&vmid)?;
        let builder = Builder::default()
            .seed(seed)
            .timing(timing)
            .within(self)
            .host(&guest.name())
            .storage("local");
        let inner = prepare(builder).build();
        guest.inner = Some(inner.clone());
        Some(inner)
    }

    /// Whether a guest runs.
    pub fn is_running(&self, vmid: u32) -> bool {
        self.state()
            .guests
            .get(&vmid)
            .is_some_and(|guest| guest.running.is_some())
    }
}
