//! What tests and tools do to a World besides calling it: look, break, repair.
//!
//! In: names. Out: facts, or a World in which something is broken.
//! Never: what a client could see or do; clients call.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use super::fault::Fault;
use super::state::{Boots, Kind};
use super::timing::Stages;
use super::{Builder, World};
use crate::calls::vm_create::blank;
use crate::guest::config::Config;

/// What is true of a guest.
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
    /// Its configuration, without what is pending.
    pub config: BTreeMap<String, String>,
}

impl World {
    /// Puts a guest in place, stopped.
    pub fn put_guest(&self, host: &str, kind: Kind, vmid: u32, config: Vec<(String, String)>) {
        let mut guest = blank(vmid, kind, host, 0.0, "");
        guest.config = Config::from_pairs(config);
        self.state().guests.insert(vmid, guest);
    }

    /// Removes a guest with its disks, as someone at the host does.
    pub fn remove_guest(&self, vmid: u32) {
        let now = self.now();
        let mut state = self.state();
        state.forget(vmid, now);
        for storage in state.storages.values_mut() {
            storage.volumes.retain(|_, volume| !volume.is_disk_of(vmid));
        }
    }

    /// Switches a guest off, as a power failure does.
    pub fn switch_off(&self, vmid: u32) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.running = None;
        }
    }

    /// Returns the facts of every guest.
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

    /// Returns when a virtual machine that runs was started, and how long its agent takes from there
    /// to its first answer, in seconds.
    pub fn boot_of(&self, vmid: u32) -> Option<(f64, f64)> {
        let state = self.state();
        let running = state.guests.get(&vmid)?.running.as_ref()?;
        Some((running.since, running.agent_from? - running.since))
    }

    /// Returns the ids of all volumes, with the host for those that are not shared.
    pub fn volumes(&self) -> Vec<(String, String)> {
        let state = self.state();
        state
            .storages
            .values()
            .flat_map(|storage| {
                storage
                    .volumes
                    .keys()
                    .map(|(place, name)| (place.clone(), format!("{}:{name}", storage.name)))
            })
            .collect()
    }

    /// Returns whether all tasks have ended.
    pub fn is_quiet(&self) -> bool {
        self.state()
            .tasks
            .by_upid
            .values()
            .all(|task| task.ended.is_some())
    }

    /// Returns the tasks that run.
    pub fn running_tasks(&self) -> Vec<String> {
        let state = self.state();
        let tasks = state.tasks.by_upid.values();
        tasks
            .filter(|task| task.ended.is_none())
            .map(|task| task.upid.clone())
            .collect()
    }

    /// Returns how often each kind of call came: the method, and the path with `*` in place of ids
    /// of guests, tasks and volumes.
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

    /// Takes a host off the network, or brings it back.
    pub fn set_online(&self, host: &str, online: bool) {
        if let Some(host) = self.state().hosts.get_mut(host) {
            host.online = online;
        }
    }

    /// Takes the quorum away, or gives it back. Without it nothing can be changed.
    pub fn set_quorate(&self, quorate: bool) {
        self.state().quorate = quorate;
    }

    /// Fills a storage, or empties it.
    pub fn set_full(&self, storage: &str, full: bool) {
        if let Some(storage) = self.state().storages.get_mut(storage) {
            storage.full = full;
        }
    }

    /// Takes the file system of a storage away, or brings it back.
    pub fn set_mounted(&self, storage: &str, mounted: bool) {
        if let Some(storage) = self.state().storages.get_mut(storage) {
            storage.mounted = mounted;
        }
    }

    /// Has virtual machines that start from now on boot in these stages: the one of that name, or
    /// all without stages of their own.
    pub fn set_stages(&self, stages: Stages) {
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

    /// Whether SSH answers at an address of this World or of one inside it.
    pub fn ssh_answers(&self, address: &str) -> bool {
        self.catch_up();
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

    /// Locks a guest, as a backup that was killed leaves it, or takes the lock away.
    pub fn set_lock(&self, vmid: u32, lock: Option<&str>) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            match lock {
                Some(lock) => guest.config.set("lock", lock),
                None => _ = guest.config.remove("lock"),
            }
        }
    }

    /// Makes disks copy at so many bytes per second.
    pub fn set_copy_speed(&self, bytes_per_second: u64) {
        self.state().timing.copy_speed = bytes_per_second;
    }

    /// Lets a token, `user@realm!name=secret`, do what its user may, unless it may already.
    pub fn admit(&self, token: &str) {
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

    /// Says what a guest's disk starts.
    pub fn set_boots(&self, vmid: u32, boots: Boots) {
        if let Some(guest) = self.state().guests.get_mut(&vmid) {
            guest.boots = boots;
        }
    }

    /// Returns the World inside a guest, while the guest is a hypervisor that runs and has booted.
    ///
    /// It is made the first time it is asked for. Stopping the guest takes its power: it is shown
    /// again after the next start, with its guests off. Destroying the guest ends it. It runs on the same
    /// clock, has one host with the guest's name, and a storage `local`. `prepare` adds to it.
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
