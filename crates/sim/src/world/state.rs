//! What there is: hosts, storages and their volumes, guests, pools, tasks.
//!
//! In: changes made by calls and tasks. Out: the facts answers are made from.
//! Never: waiting, permissions, HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::World;
use super::access::Access;
use super::event::Event;
use super::fault::Faults;
use super::random::Random;
use super::task::Tasks;
use super::timing::Timing;
use super::words::{self, Word};
use super::worker::Workers;
use crate::guest::config::Config;

/// A machine with Proxmox VE on it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) online: bool,
    pub(crate) cpus: u64,
    pub(crate) memory: u64,
    pub(crate) address: String,
    pub(crate) bridges: BTreeSet<String>,
    #[serde(skip)]
    pub(crate) workers: Workers,
}

/// What starts when a disk made from an image starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boots {
    /// Nothing that talks: no agent, and it ignores a shutdown.
    #[default]
    Nothing,
    /// A system with a guest agent.
    System,
    /// A hypervisor: while it runs, it has an API of its own.
    Hypervisor,
}

/// A file or disk on a storage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    #[serde(deserialize_with = "words::word")]
    pub(crate) content: Word,
    pub(crate) format: String,
    pub(crate) size: u64,
    pub(crate) used: u64,
    pub(crate) ctime: i64,
    pub(crate) vmid: Option<u32>,
    pub(crate) parent: Option<String>,
    pub(crate) boots: Boots,
    /// What a backup holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backup: Option<Box<Backup>>,
}

impl Volume {
    /// Whether it goes when a guest goes, which its backups do not.
    pub(crate) fn is_disk_of(&self, vmid: u32) -> bool {
        self.vmid == Some(vmid) && self.backup.is_none()
    }
}

/// A guest as it was when it was backed up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Backup {
    pub(crate) kind: Kind,
    pub(crate) config: Config,
    pub(crate) boots: Boots,
    pub(crate) notes: String,
    pub(crate) protected: bool,
    pub(crate) disks: BTreeMap<String, BackupDisk>,
}

/// A disk in a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BackupDisk {
    pub(crate) storage: String,
    pub(crate) format: String,
    pub(crate) size: u64,
    pub(crate) used: u64,
}

/// A storage. Volumes are kept by host, or under no host when it is shared.
#[derive(Serialize, Deserialize)]
pub(crate) struct Storage {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) path: String,
    pub(crate) content: Vec<String>,
    pub(crate) shared: bool,
    pub(crate) hosts: Option<BTreeSet<String>>,
    pub(crate) total: u64,
    /// What is used besides the volumes.
    pub(crate) base_used: u64,
    /// What cannot be used although it is free, as reserved blocks are not.
    pub(crate) reserved: u64,
    /// Refuses new data, as a full disk does.
    pub(crate) full: bool,
    /// Whether it is switched on.
    #[serde(default = "yes")]
    pub(crate) enabled: bool,
    /// Whether it is a file system of its own, instead of a directory beside others.
    #[serde(default)]
    pub(crate) own_filesystem: bool,
    /// Whether that file system is there.
    #[serde(default = "yes")]
    pub(crate) mounted: bool,
    /// Settings of its definition that are only shown.
    #[serde(default)]
    pub(crate) options: BTreeMap<String, String>,
    #[serde(with = "words::pairs")]
    pub(crate) volumes: BTreeMap<(String, String), Volume>,
}

/// The part of a file system that is kept for root, as ext4 does: one in so many.
pub(crate) const RESERVED_SHARE: u64 = 20;

/// What storages that were kept before these fields existed are.
fn yes() -> bool {
    true
}

/// How full a storage is.
pub(crate) struct Usage {
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// What can be written, which is less than what is not used.
    pub(crate) available: u64,
}

impl Storage {
    /// Returns an empty storage of files that holds everything.
    pub(crate) fn directory(name: &str, kind: &str, path: &str, shared: bool) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            path: path.to_owned(),
            content: [
                "vztmpl", "rootdir", "snippets", "images", "import", "backup", "iso",
            ]
            .map(ToOwned::to_owned)
            .to_vec(),
            shared,
            hosts: None,
            total: 270_553_174_016,
            base_used: 24_000_000_000,
            reserved: 270_553_174_016 / RESERVED_SHARE,
            full: false,
            enabled: true,
            own_filesystem: shared,
            mounted: true,
            options: BTreeMap::new(),
            volumes: BTreeMap::new(),
        }
    }

    /// Returns the place of a host's volumes.
    pub(crate) fn place(&self, host: &str) -> String {
        if self.shared {
            String::new()
        } else {
            host.to_owned()
        }
    }

    pub(crate) fn is_on(&self, host: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
    }

    pub(crate) fn volume(&self, host: &str, name: &str) -> Option<&Volume> {
        self.volumes.get(&(self.place(host), name.to_owned()))
    }

    /// Returns the bytes of a host's volumes.
    fn bytes(&self, host: &str) -> u64 {
        let place = self.place(host);
        let volumes = self.volumes.range((place.clone(), String::new())..);
        volumes
            .take_while(|((at, _), _)| *at == place)
            .map(|(_, volume)| volume.used)
            .sum()
    }

    /// Fails when it cannot be used now.
    pub(crate) fn is_active(&self) -> Result<(), String> {
        if !self.enabled {
            return Err(format!("storage '{}' is disabled", self.name));
        }
        if !self.mounted {
            return Err(format!(
                "unable to activate storage '{}' - directory is expected to be a mount point but \
                 is not mounted: '{}'",
                self.name, self.path
            ));
        }
        Ok(())
    }

    /// Returns the path of a volume on the host.
    pub(crate) fn path_of(&self, name: &str) -> String {
        let (kind, file) = name.split_once('/').unwrap_or(("", name));
        match kind {
            "iso" => format!("{}/template/iso/{file}", self.path),
            "vztmpl" => format!("{}/template/cache/{file}", self.path),
            "import" => format!("{}/import/{file}", self.path),
            "snippets" => format!("{}/snippets/{file}", self.path),
            "backup" => format!("{}/dump/{file}", self.path),
            // A linked clone names its base first: only the last two parts are its own.
            _ => {
                let parts: Vec<&str> = name.split('/').collect();
                let own = parts.len().saturating_sub(2);
                format!("{}/images/{}", self.path, parts[own..].join("/"))
            }
        }
    }
}

/// Virtual machine or container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A virtual machine.
    Qemu,
    /// A container.
    Lxc,
}

impl Kind {
    /// Returns the word in paths: `qemu` or `lxc`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Lxc => "lxc",
        }
    }

    /// Returns the word in messages: `VM` or `CT`.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Qemu => "VM",
            Self::Lxc => "CT",
        }
    }

    /// Returns the directory of its configuration files.
    pub(crate) fn directory(self) -> &'static str {
        match self {
            Self::Qemu => "qemu-server",
            Self::Lxc => "lxc",
        }
    }

    /// Returns the lock file of a guest.
    pub(crate) fn lock_file(self, vmid: u32) -> String {
        match self {
            Self::Qemu => format!("/var/lock/qemu-server/lock-{vmid}.conf"),
            Self::Lxc => format!("/run/lock/lxc/pve-config-{vmid}.lock"),
        }
    }
}

/// A guest that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) pid: u64,
    pub(crate) since: f64,
    /// When it has its address.
    #[serde(default)]
    pub(crate) address_from: f64,
    /// When its agent starts to answer.
    pub(crate) agent_from: Option<f64>,
    /// When its SSH starts to answer.
    #[serde(default)]
    pub(crate) ssh_from: Option<f64>,
}

/// A snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) name: String,
    pub(crate) time: i64,
    pub(crate) description: String,
    pub(crate) parent: Option<String>,
    pub(crate) vmstate: bool,
    pub(crate) config: Config,
}

/// A guest that is gone, as the status sweep may still know it.
pub(crate) struct Former {
    at: f64,
    touched: f64,
    view: Seen,
    seen: Option<Seen>,
}

/// What the status sweep saw last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) running_since: Option<f64>,
    pub(crate) template: bool,
    pub(crate) memory: u64,
    pub(crate) cpus: u64,
    pub(crate) disk: u64,
}

/// A guest.
#[derive(Serialize, Deserialize)]
pub(crate) struct Guest {
    pub(crate) vmid: u32,
    pub(crate) kind: Kind,
    pub(crate) node: String,
    pub(crate) config: Config,
    pub(crate) running: Option<Running>,
    pub(crate) snapshots: Vec<Snapshot>,
    /// The snapshot the current state descends from.
    pub(crate) parent: Option<String>,
    /// What the sweep saw before the last change; `None` when it has seen nothing yet.
    pub(crate) seen: Option<Seen>,
    pub(crate) touched: f64,
    pub(crate) boots: Boots,
    /// What the pretended network gave each of its interfaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) leases: BTreeMap<u32, Ipv4Addr>,
    /// The World inside, once it has run. It is kept beside the state, because it is one itself.
    #[serde(skip)]
    pub(crate) inner: Option<World>,
}

/// Everything.
#[derive(Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) name: Option<String>,
    pub(crate) hosts: BTreeMap<String, Host>,
    pub(crate) storages: BTreeMap<String, Storage>,
    pub(crate) guests: BTreeMap<u32, Guest>,
    /// Guests that were removed a moment ago. The cluster's list joins by id, so a new guest with
    /// such an id is shown with what the sweep saw of the one before it.
    #[serde(skip)]
    pub(crate) former: BTreeMap<u32, Former>,
    pub(crate) pools: BTreeMap<String, String>,
    pub(crate) pool_of: BTreeMap<u32, String>,
    /// The storages in each pool.
    #[serde(default)]
    pub(crate) pool_storages: BTreeMap<String, BTreeSet<String>>,
    pub(crate) access: Access,
    pub(crate) tasks: Tasks,
    pub(crate) faults: Faults,
    pub(crate) random: Random,
    pub(crate) timing: Timing,
    pub(crate) quorate: bool,
    pub(crate) downloads: BTreeMap<String, (u64, String)>,
    /// How many copies run on a storage, which share its speed. None do after a restart.
    #[serde(skip)]
    pub(crate) copies: BTreeMap<String, u32>,
    /// Until when copies for a guest last at least, by its id. Only a replay knows such times.
    #[serde(skip)]
    pub(crate) busy: BTreeMap<String, f64>,
    /// Containers whose file system does not grow with its volume.
    #[serde(default)]
    pub(crate) stubborn: BTreeSet<u32>,
    /// Whether the next change works on `boot` before the drives; nothing leaves it to chance.
    #[serde(skip)]
    pub(crate) boot_first: Option<bool>,
    /// What happens to the World by itself, and when.
    #[serde(default)]
    pub(crate) events: Vec<(f64, Event)>,
    /// The highest number under which each scope of a driver was changed.
    #[serde(default)]
    pub(crate) fences: BTreeMap<String, i64>,
    pub(crate) secret: String,
    /// Which pretended network this World is; no two Worlds inside each other share one.
    pub(crate) network: u8,
    /// Addresses that network has given away.
    pub(crate) leased: BTreeSet<Ipv4Addr>,
}

impl State {
    /// Refuses a change under an older number than the highest that was seen of its scope.
    pub(crate) fn admit(&mut self, scope: String, number: i64) -> Result<(), String> {
        let highest = self.fences.entry(scope).or_insert(number);
        if *highest > number {
            return Err(format!(
                "the lease of this run was taken from it: its number is {number}, and {highest} was used since"
            ));
        }
        *highest = number;
        Ok(())
    }

    /// Returns a guest of this kind on this host, or the fault PVE names.
    pub(crate) fn guest(&self, node: &str, kind: Kind, vmid: u32) -> Result<&Guest, String> {
        self.guests
            .get(&vmid)
            .filter(|guest| guest.kind == kind && guest.node == node)
            .ok_or_else(|| missing(node, kind, vmid))
    }

    pub(crate) fn guest_mut(
        &mut self,
        node: &str,
        kind: Kind,
        vmid: u32,
    ) -> Result<&mut Guest, String> {
        self.guests
            .get_mut(&vmid)
            .filter(|guest| guest.kind == kind && guest.node == node)
            .ok_or_else(|| missing(node, kind, vmid))
    }

    pub(crate) fn storage(&self, name: &str) -> Result<&Storage, String> {
        self.storages
            .get(name)
            .ok_or_else(|| format!("storage '{name}' does not exist"))
    }

    /// Returns how full a storage is. Directories on one file system share its space.
    pub(crate) fn usage(&self, storage: &Storage, host: &str) -> Usage {
        let beside = |other: &&Storage| {
            other.name != storage.name
                && !other.own_filesystem
                && !storage.own_filesystem
                && other.is_on(host)
        };
        let others: u64 = self
            .storages
            .values()
            .filter(beside)
            .map(|other| other.bytes(host))
            .sum();
        let total = storage.total;
        let used = (storage.base_used + storage.bytes(host) + others).min(total);
        let free = total.saturating_sub(used).saturating_sub(storage.reserved);
        Usage {
            total,
            used,
            available: if storage.full { 0 } else { free },
        }
    }

    pub(crate) fn storage_mut(&mut self, name: &str) -> Result<&mut Storage, String> {
        self.storages
            .get_mut(name)
            .ok_or_else(|| format!("storage '{name}' does not exist"))
    }

    /// Returns a volume by its full id.
    pub(crate) fn volume(&self, host: &str, volid: &str) -> Option<&Volume> {
        let (storage, name) = volid.split_once(':')?;
        self.storages.get(storage)?.volume(host, name)
    }

    /// Fails when an id is used already.
    pub(crate) fn is_free(&self, vmid: u32) -> Result<(), String> {
        match self.guests.get(&vmid) {
            None => Ok(()),
            Some(guest) => Err(format!(
                "{} {vmid} already exists on node '{}'",
                guest.kind.title(),
                guest.node
            )),
        }
    }

    /// Adds a guest. Until the next sweep it is listed as the one that had its id before.
    pub(crate) fn add_guest(&mut self, mut guest: Guest, last_sweep: f64) {
        let former = self.former.remove(&guest.vmid);
        guest.seen = former.filter(|one| one.at > last_sweep).and_then(|one| {
            if one.touched <= last_sweep {
                Some(one.view)
            } else {
                one.seen
            }
        });
        self.guests.insert(guest.vmid, guest);
    }

    /// Forgets a guest: its configuration, its pool and its addresses.
    pub(crate) fn forget(&mut self, vmid: u32, now: f64) {
        let forgotten = now - self.timing.sweep.as_secs_f64();
        self.former.retain(|_, one| one.at > forgotten);
        if let Some(guest) = self.guests.remove(&vmid) {
            let former = Former {
                at: now,
                touched: guest.touched,
                view: guest.view(),
                seen: guest.seen,
            };
            self.former.insert(vmid, former);
            for address in guest.leases.values() {
                self.leased.remove(address);
            }
        }
        self.pool_of.remove(&vmid);
    }

    /// Removes a volume by its full id. Returns whether there was one.
    pub(crate) fn remove_volume(&mut self, host: &str, volid: &str) -> bool {
        let Some((storage, name)) = volid.split_once(':') else {
            return false;
        };
        self.storages.get_mut(storage).is_some_and(|storage| {
            let key = (storage.place(host), name.to_owned());
            storage.volumes.remove(&key).is_some()
        })
    }
}

/// Returns PVE's words for a guest that is not there.
pub(crate) fn missing(node: &str, kind: Kind, vmid: u32) -> String {
    format!(
        "Configuration file 'nodes/{node}/{}/{vmid}.conf' does not exist",
        kind.directory()
    )
}

impl Guest {
    /// Remembers what the sweep knew before a change. Must be called before the change.
    pub(crate) fn touch(&mut self, now: f64, last_sweep: f64) {
        if self.touched <= last_sweep {
            self.seen = Some(self.view());
        }
        self.touched = now;
    }

    pub(crate) fn view(&self) -> Seen {
        Seen {
            name: self.name(),
            running_since: self.running.as_ref().map(|running| running.since),
            template: self.is_template(),
            memory: self.memory(),
            cpus: self.cpus(),
            disk: self.disk_size(),
        }
    }

    /// Fails while the configuration has a lock, apart from those that do not matter to the caller.
    pub(crate) fn unlocked(&self, harmless: &[&str]) -> Result<(), String> {
        match self.config.value("lock") {
            Some(lock) if !harmless.contains(&lock) => {
                Err(format!("{} is locked ({lock})", self.kind.title()))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn is_template(&self) -> bool {
        self.config.is_true("template")
    }

    pub(crate) fn name(&self) -> String {
        let key = match self.kind {
            Kind::Qemu => "name",
            Kind::Lxc => "hostname",
        };
        let unnamed = || match self.kind {
            Kind::Qemu => format!("VM {}", self.vmid),
            Kind::Lxc => format!("CT{}", self.vmid),
        };
        let name = self.config.value(key);
        name.map_or_else(unnamed, ToOwned::to_owned)
    }
}
