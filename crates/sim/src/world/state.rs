//! The state of a World: hosts, storages and their volumes, guests, pools, tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::World;
use super::access::Access;
use super::event::Event;
use super::fault::Faults;
use super::random::Random;
use super::serde_helpers::{self, Keyword};
use super::task::Tasks;
use super::timing::Timing;
use super::worker::Workers;
use crate::guest::config::Config;

/// A Proxmox VE host.
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

/// What a disk boots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boots {
    /// Nothing: no agent answers, and a shutdown is ignored.
    #[default]
    Nothing,
    /// A system with a guest agent.
    System,
    /// A Proxmox VE host with its own API.
    Hypervisor,
}

/// A file or disk on a storage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    #[serde(deserialize_with = "serde_helpers::keyword")]
    pub(crate) content: Keyword,
    pub(crate) format: String,
    pub(crate) size: u64,
    pub(crate) used: u64,
    pub(crate) ctime: i64,
    pub(crate) vmid: Option<u32>,
    pub(crate) parent: Option<String>,
    pub(crate) boots: Boots,
    /// The content of a backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backup: Option<Box<Backup>>,
}

impl Volume {
    /// Whether it is deleted with a guest, unlike its backups.
    pub(crate) fn is_disk_of(&self, vmid: u32) -> bool {
        self.vmid == Some(vmid) && self.backup.is_none()
    }
}

/// The state of a guest in a backup.
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

/// A storage. The host in a volume's key is empty if the storage is shared.
#[derive(Serialize, Deserialize)]
pub(crate) struct Storage {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) path: String,
    pub(crate) content: Vec<String>,
    pub(crate) shared: bool,
    pub(crate) hosts: Option<BTreeSet<String>>,
    pub(crate) total: u64,
    /// Bytes used by other data than volumes.
    pub(crate) base_used: u64,
    /// Free bytes that cannot be used, such as reserved blocks.
    pub(crate) reserved: u64,
    /// Whether new data is refused.
    pub(crate) full: bool,
    #[serde(default = "yes")]
    pub(crate) enabled: bool,
    /// Whether it is a separate file system, not a directory on the root file system.
    #[serde(default)]
    pub(crate) own_filesystem: bool,
    /// Whether that file system is mounted.
    #[serde(default = "yes")]
    pub(crate) mounted: bool,
    /// Settings that are returned but have no effect.
    #[serde(default)]
    pub(crate) options: BTreeMap<String, String>,
    #[serde(with = "serde_helpers::pairs")]
    pub(crate) volumes: BTreeMap<(String, String), Volume>,
}

/// The share of a file system reserved for root, as in ext4: 1/20.
pub(crate) const RESERVED_SHARE: u64 = 20;

/// The value of fields that are missing in Worlds saved by earlier versions.
fn yes() -> bool {
    true
}

/// The usage of a storage, in bytes.
pub(crate) struct Usage {
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// Without reserved blocks, so less than `total - used`.
    pub(crate) available: u64,
}

impl Storage {
    /// Returns an empty directory storage for all content types.
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

    /// Returns the host in the keys of a host's volumes: none if the storage is shared.
    pub(crate) fn volume_host(&self, host: &str) -> String {
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
        self.volumes.get(&(self.volume_host(host), name.to_owned()))
    }

    /// Returns the bytes used by a host's volumes.
    fn bytes(&self, host: &str) -> u64 {
        let host = self.volume_host(host);
        let volumes = self.volumes.range((host.clone(), String::new())..);
        volumes
            .take_while(|((at, _), _)| *at == host)
            .map(|(_, volume)| volume.used)
            .sum()
    }

    /// Fails if it is disabled or not mounted.
    pub(crate) fn check_active(&self) -> Result<(), String> {
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
            // The name of a linked clone starts with its base; its path is the last two parts.
            _ => {
                let parts: Vec<&str> = name.split('/').collect();
                let own = parts.len().saturating_sub(2);
                format!("{}/images/{}", self.path, parts[own..].join("/"))
            }
        }
    }
}

/// The kind of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A virtual machine.
    Qemu,
    /// A container.
    Lxc,
}

impl Kind {
    /// Returns the name in API paths: `qemu` or `lxc`.
    pub fn api_name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Lxc => "lxc",
        }
    }

    /// Returns the name in messages: `VM` or `CT`.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Qemu => "VM",
            Self::Lxc => "CT",
        }
    }

    /// Returns the directory of the configuration files.
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

/// The state of a running guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) pid: u64,
    pub(crate) since: f64,
    /// When it gets its address.
    #[serde(default)]
    pub(crate) address_from: f64,
    /// When its agent starts to answer.
    pub(crate) agent_from: Option<f64>,
    /// When SSH starts to answer.
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

/// A deleted guest that the status daemon may still know.
pub(crate) struct DeletedGuest {
    at: f64,
    touched: f64,
    summary: GuestSummary,
    seen: Option<GuestSummary>,
}

/// The fields of a guest that the status daemon collects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GuestSummary {
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
    /// What the status daemon collected before the last change; `None` if it did not run since the
    /// guest was created.
    pub(crate) seen: Option<GuestSummary>,
    pub(crate) touched: f64,
    pub(crate) boots: Boots,
    /// Addresses from DHCP by interface.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) leases: BTreeMap<u32, Ipv4Addr>,
    /// The nested World, once it exists. It is saved next to the state.
    #[serde(skip)]
    pub(crate) inner: Option<World>,
}

/// The state of a World.
#[derive(Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) name: Option<String>,
    pub(crate) hosts: BTreeMap<String, Host>,
    pub(crate) storages: BTreeMap<String, Storage>,
    pub(crate) guests: BTreeMap<u32, Guest>,
    /// Guests deleted since the last run of the status daemon. The cluster's list joins by id, so a
    /// new guest with the same id is listed with the data of the deleted one.
    #[serde(skip)]
    pub(crate) deleted: BTreeMap<u32, DeletedGuest>,
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
    /// Number of running copies by storage and host; they share its speed.
    #[serde(skip)]
    pub(crate) copies: BTreeMap<String, u32>,
    /// The earliest end of running tasks by guest id; set only by a replay.
    #[serde(skip)]
    pub(crate) busy: BTreeMap<String, f64>,
    /// Containers whose file system does not grow with the volume.
    #[serde(default, rename = "stubborn")]
    pub(crate) fixed_size_filesystems: BTreeSet<u32>,
    /// Whether the next change processes `boot` before the drives; random if `None`.
    #[serde(skip)]
    pub(crate) boot_first: Option<bool>,
    /// Scripted events by time.
    #[serde(default)]
    pub(crate) events: Vec<(f64, Event)>,
    /// The highest fencing number by scope.
    #[serde(default)]
    pub(crate) fences: BTreeMap<String, i64>,
    pub(crate) secret: String,
    /// The second byte of all addresses; differs between nested Worlds.
    pub(crate) network: u8,
    /// Addresses in use.
    pub(crate) leased: BTreeSet<Ipv4Addr>,
}

impl State {
    /// Refuses a change whose fencing number is lower than the highest one of its scope.
    pub(crate) fn check_fence(&mut self, scope: String, number: i64) -> Result<(), String> {
        let highest = self.fences.entry(scope).or_insert(number);
        if *highest > number {
            return Err(format!(
                "this run lost its lease: its fencing number is {number}, but {highest} was used since"
            ));
        }
        *highest = number;
        Ok(())
    }

    /// Returns a guest of this kind on this host, or PVE's error.
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

    /// Returns the usage of a storage. Directories on the same file system share its space.
    pub(crate) fn usage(&self, storage: &Storage, host: &str) -> Usage {
        let shares_filesystem = |other: &&Storage| {
            other.name != storage.name
                && !other.own_filesystem
                && !storage.own_filesystem
                && other.is_on(host)
        };
        let others: u64 = self
            .storages
            .values()
            .filter(shares_filesystem)
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

    /// Fails if an id is in use.
    pub(crate) fn check_free(&self, vmid: u32) -> Result<(), String> {
        match self.guests.get(&vmid) {
            None => Ok(()),
            Some(guest) => Err(format!(
                "{} {vmid} already exists on node '{}'",
                guest.kind.title(),
                guest.node
            )),
        }
    }

    /// Adds a guest. Until the status daemon runs again, it is listed with the data of the deleted
    /// guest that had its id.
    pub(crate) fn add_guest(&mut self, mut guest: Guest, last_status_update: f64) {
        let deleted = self.deleted.remove(&guest.vmid);
        guest.seen = deleted
            .filter(|one| one.at > last_status_update)
            .and_then(|one| {
                if one.touched <= last_status_update {
                    Some(one.summary)
                } else {
                    one.seen
                }
            });
        self.guests.insert(guest.vmid, guest);
    }

    /// Removes a guest and releases its addresses. Its volumes remain.
    pub(crate) fn remove_guest(&mut self, vmid: u32, now: f64) {
        let oldest = now - self.timing.sweep.as_secs_f64();
        self.deleted.retain(|_, one| one.at > oldest);
        if let Some(guest) = self.guests.remove(&vmid) {
            let deleted = DeletedGuest {
                at: now,
                touched: guest.touched,
                summary: guest.summary(),
                seen: guest.seen,
            };
            self.deleted.insert(vmid, deleted);
            for address in guest.leases.values() {
                self.leased.remove(address);
            }
        }
        self.pool_of.remove(&vmid);
    }

    /// Removes a volume by its full id. Returns whether it existed.
    pub(crate) fn remove_volume(&mut self, host: &str, volid: &str) -> bool {
        let Some((storage, name)) = volid.split_once(':') else {
            return false;
        };
        self.storages.get_mut(storage).is_some_and(|storage| {
            let key = (storage.volume_host(host), name.to_owned());
            storage.volumes.remove(&key).is_some()
        })
    }
}

/// Returns PVE's error for a guest that does not exist.
pub(crate) fn missing(node: &str, kind: Kind, vmid: u32) -> String {
    format!(
        "Configuration file 'nodes/{node}/{}/{vmid}.conf' does not exist",
        kind.directory()
    )
}

impl Guest {
    /// Stores what the status daemon knows. Must be called before every change.
    pub(crate) fn touch(&mut self, now: f64, last_status_update: f64) {
        if self.touched <= last_status_update {
            self.seen = Some(self.summary());
        }
        self.touched = now;
    }

    pub(crate) fn summary(&self) -> GuestSummary {
        GuestSummary {
            name: self.name(),
            running_since: self.running.as_ref().map(|running| running.since),
            template: self.is_template(),
            memory: self.memory(),
            cpus: self.cpus(),
            disk: self.disk_size(),
        }
    }

    /// Fails if the guest is locked, unless by one of the ignored locks.
    pub(crate) fn check_unlocked(&self, ignored: &[&str]) -> Result<(), String> {
        match self.config.value("lock") {
            Some(lock) if !ignored.contains(&lock) => {
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
