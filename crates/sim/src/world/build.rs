//! Builds a [`World`]. Afterwards it changes only through calls, scripts and the methods for tests.
//!
//! `sim serve`, replays and tests of several crates build Worlds; faults, roles, users and pace are
//! mostly set by tests.

use std::collections::{BTreeMap, BTreeSet};

use homestak_api::runtime::SharedClock;
use jiff::Timestamp;

use super::access::{Access, Grant, User};
use super::clock::{self, Pace, SteppedClock};
use super::fault::{Fault, Faults};
use super::lease::Networks;
use super::random::Random;
use super::state::{Boots, Host, State, Storage};
use super::task::Tasks;
use super::timing::Timing;
use super::worker::Workers;
use super::{Kind, World};

struct File {
    storage: String,
    name: String,
    size: u64,
    boots: Boots,
}

/// A guest that exists from the start.
struct PlacedGuest {
    vmid: u32,
    kind: Kind,
    host: String,
    config: Vec<(String, String)>,
}

/// Collects the initial state of a World.
pub struct Builder {
    seed: u64,
    pace: Pace,
    start: Option<Timestamp>,
    clock: Option<SharedClock>,
    stepped: Option<SteppedClock>,
    cluster: Option<String>,
    hosts: Vec<String>,
    storages: Vec<Storage>,
    access: Access,
    files: Vec<File>,
    guests: Vec<PlacedGuest>,
    downloads: BTreeMap<String, (u64, String)>,
    faults: Faults,
    timing: Timing,
    networks: Networks,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            seed: 1,
            pace: Pace::Real,
            start: None,
            clock: None,
            stepped: None,
            cluster: None,
            hosts: Vec::new(),
            storages: Vec::new(),
            access: Access::default(),
            files: Vec::new(),
            guests: Vec::new(),
            downloads: BTreeMap::new(),
            faults: Faults::default(),
            timing: Timing::default(),
            networks: Networks::default(),
        }
    }
}

impl Builder {
    /// Sets the seed of all random values.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the pace of time.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Sets the start time. Default: now, or 2026-01-01 if time is stepped.
    #[must_use]
    pub fn starting_at(mut self, start: Timestamp) -> Self {
        self.start = Some(start);
        self
    }

    /// Uses an existing clock, such as the one of a test.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the name of the cluster. Without one, a single host is not clustered.
    #[must_use]
    pub fn cluster(mut self, name: &str) -> Self {
        self.cluster = Some(name.to_owned());
        self
    }

    /// Adds a host.
    #[must_use]
    pub fn host(mut self, name: &str) -> Self {
        self.hosts.push(name.to_owned());
        self
    }

    /// Adds a directory storage that is local to each host.
    #[must_use]
    pub fn storage(self, name: &str) -> Self {
        self.add_storage(name, "dir", false)
    }

    /// Adds a storage that all hosts share.
    #[must_use]
    pub fn shared_storage(self, name: &str) -> Self {
        self.add_storage(name, "nfs", true)
    }

    fn add_storage(mut self, name: &str, kind: &str, shared: bool) -> Self {
        let path = match name {
            "local" => "/var/lib/vz".to_owned(),
            _ => format!("/mnt/pve/{name}"),
        };
        self.storages
            .push(Storage::directory(name, kind, &path, shared));
        self
    }

    /// Sets the size of the storage added last, in bytes.
    #[must_use]
    pub fn storage_size(mut self, bytes: u64) -> Self {
        if let Some(storage) = self.storages.last_mut() {
            storage.own_filesystem = true;
            storage.total = bytes;
            storage.reserved = bytes / super::state::RESERVED_SHARE;
            storage.base_used = storage.base_used.min(bytes / 10);
        }
        self
    }

    /// Adds a file to a storage of every host: `iso/a.iso`, `import/a.qcow2`, `vztmpl/a.tar.zst`.
    #[must_use]
    pub fn file(self, storage: &str, name: &str, size: u64) -> Self {
        self.image(storage, name, size, Boots::System)
    }

    /// Adds an image to a storage of every host, and what it boots.
    #[must_use]
    pub fn image(mut self, storage: &str, name: &str, size: u64, boots: Boots) -> Self {
        self.files.push(File {
            storage: storage.to_owned(),
            name: name.to_owned(),
            size,
            boots,
        });
        self
    }

    /// Makes a file of this size available for download at a URL.
    #[must_use]
    pub fn download(mut self, url: &str, size: u64) -> Self {
        let found = (size, String::new());
        self.downloads.insert(url.to_owned(), found);
        self
    }

    /// Sets the password of a user, who is created if necessary.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        let user = self
            .access
            .users
            .entry(name.to_owned())
            .or_insert_with(|| User {
                enabled: true,
                ..User::default()
            });
        user.password = Some(password.to_owned());
        self
    }

    /// Adds a token, `user@realm!name=secret`, with all privileges of its user.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.add_token(token, false)
    }

    /// Adds a token with privilege separation.
    #[must_use]
    pub fn separated_token(self, token: &str) -> Self {
        self.add_token(token, true)
    }

    fn add_token(mut self, token: &str, separated: bool) -> Self {
        let (identity, secret) = token.split_once('=').unwrap_or((token, "secret"));
        if let Some((user, name)) = identity.split_once('!') {
            self.access.add_token(user, name, secret, separated);
        }
        self
    }

    /// Adds a role.
    #[must_use]
    pub fn role(mut self, name: &str, privileges: &[&str]) -> Self {
        let privileges: BTreeSet<String> = privileges.iter().map(|p| (*p).to_owned()).collect();
        self.access.roles.insert(name.to_owned(), privileges);
        self
    }

    /// Grants a role on a path to a user or a token.
    #[must_use]
    pub fn grant(mut self, subject: &str, path: &str, role: &str) -> Self {
        self.access.grants.push(Grant {
            path: path.to_owned(),
            kind: if subject.contains('!') {
                "token"
            } else {
                "user"
            },
            subject: subject.to_owned(),
            role: role.to_owned(),
            propagate: true,
        });
        self
    }

    /// Adds a stopped guest.
    #[must_use]
    pub fn guest(mut self, host: &str, kind: Kind, vmid: u32, config: &[(&str, &str)]) -> Self {
        let config = config
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        self.guests.push(PlacedGuest {
            vmid,
            kind,
            host: host.to_owned(),
            config,
        });
        self
    }

    /// Adds a fault.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.add(fault);
        self
    }

    /// Sets the durations of operations.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Nests it in another World: same clock, separate network.
    pub(super) fn within(mut self, outer: &World) -> Self {
        self.clock = Some(outer.clock().clone());
        self.stepped = outer.stepped().cloned();
        self.networks = outer.0.networks.clone();
        self
    }

    /// Builds the World. The default host is `pve1`, the default storage `local`.
    pub fn build(mut self) -> World {
        if self.hosts.is_empty() {
            self = self.host("pve1");
        }
        if self.storages.is_empty() {
            self = self.storage("local");
        }
        if self.cluster.is_none() && self.hosts.len() > 1 {
            self.cluster = Some("pretended".to_owned());
        }
        let (clock, stepped) = match self.clock {
            Some(clock) => (clock, self.stepped),
            None => clock::make(self.pace, self.start),
        };
        let network = self.networks.take();
        let mut random = Random::new(self.seed);
        let secret = random.hex(32);
        let hosts = self
            .hosts
            .iter()
            .enumerate()
            .map(|(at, name)| (name.clone(), host(name, at, network)));
        let hosts: BTreeMap<String, Host> = hosts.collect();
        let leased = hosts
            .values()
            .filter_map(|host| host.address.parse().ok())
            .collect();
        let state = State {
            name: self.cluster,
            hosts,
            storages: self
                .storages
                .into_iter()
                .map(|s| (s.name.clone(), s))
                .collect(),
            guests: BTreeMap::new(),
            deleted: BTreeMap::new(),
            pools: BTreeMap::new(),
            pool_of: BTreeMap::new(),
            pool_storages: BTreeMap::new(),
            access: self.access,
            tasks: Tasks::default(),
            faults: self.faults,
            random,
            timing: self.timing,
            quorate: true,
            downloads: self.downloads,
            copies: BTreeMap::new(),
            busy: BTreeMap::new(),
            boot_first: None,
            fixed_size_filesystems: BTreeSet::new(),
            events: Vec::new(),
            fences: BTreeMap::new(),
            secret,
            network,
            leased,
        };
        let world = World::new(state, clock, stepped, self.networks);
        for file in &self.files {
            for host in &self.hosts {
                world.put_file(
                    host,
                    &file.storage,
                    &file.name,
                    file.size,
                    file.boots.clone(),
                );
            }
        }
        for guest in self.guests {
            world.put_guest(&guest.host, guest.kind, guest.vmid, guest.config);
        }
        world
    }
}

fn host(name: &str, at: usize, network: u8) -> Host {
    Host {
        name: name.to_owned(),
        online: true,
        cpus: 8,
        memory: 64 << 30,
        address: format!("10.{network}.{}.{}", at / 250, at % 250 + 2),
        bridges: BTreeSet::from(["vmbr0".to_owned()]),
        workers: Workers::default(),
    }
}
