//! A kind of host unlike Proxmox VE: it keeps guests in memory, their ids are words, and there are
//! no bridges and storages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use homestak_api::v1::{HostDetail, OtherHost};
use homestak_core::plan::Plan;
use homestak_driver::DriverError;
use homestak_driver::hosts::{HostDriver, HostKind, HostTraits};
use homestak_driver::preflight::{Finding, FindingSeverity};
use homestak_engine::ports::{
    AddressLease, Capabilities, ErrorClass, Gib, GuestAddress, GuestId, GuestRef, GuestUuid,
    ImageRequest, Inventory, Mib, NewGuest, NewIdentity, ObservedGuest, ObservedHost, PortError,
    PowerState, Provider, StopMode,
};
use tokio::sync::watch;

/// The name of the host and of its kind.
pub const HOST: &str = "memory";
/// The name of a host of this kind that is unreachable.
pub const UNREACHABLE: &str = "unreachable";
/// Ids, in the order in which they are assigned.
const IDS: [&str; 4] = ["blue-heron", "grey-owl", "red-kite", "wren"];

/// The kind, as a program registers it.
pub static KIND: HostKind = HostKind {
    name: HOST,
    label: "a host in memory",
    default_of: None,
    traits: HostTraits {
        is_simulated: true,
        numbers_guests: false,
        has_storages: false,
        has_bridges: false,
        runs_containers: false,
        console: None,
        ..HostTraits::PROXMOX_VE
    },
    open: |site| Arc::new(MemoryHostDriver(memory_host(&site.settings().state))),
    data_directory: None,
};

/// Returns the host of a state directory; opened again, it has the same guests.
pub fn memory_host(state: &std::path::Path) -> Arc<MemoryHost> {
    static ALL: Mutex<BTreeMap<PathBuf, Arc<MemoryHost>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(state.to_owned()).or_default().clone()
}

/// A host with its guests.
#[derive(Default)]
pub struct MemoryHost {
    guests: Mutex<BTreeMap<GuestId, ObservedGuest>>,
    /// Names of guests that do not start.
    held: watch::Sender<BTreeSet<String>>,
    /// Names of guests that were asked to start meanwhile.
    waiting: watch::Sender<BTreeSet<String>>,
}

impl MemoryHost {
    fn guests(&self) -> MutexGuard<'_, BTreeMap<GuestId, ObservedGuest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps guests from starting.
    pub fn hold(&self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned());
        self.held.send_replace(names.collect());
    }

    /// Waits until these guests were asked to start.
    pub async fn wait_for_starts(&self, names: &[&str]) {
        let mut waiting = self.waiting.subscribe();
        let all = |waiting: &BTreeSet<String>| names.iter().all(|name| waiting.contains(*name));
        waiting.wait_for(all).await.unwrap();
    }

    /// Returns names and ids of guests, and whether they run.
    pub fn list(&self) -> Vec<(String, String, bool)> {
        let guests = self.guests();
        let facts = |guest: &ObservedGuest| {
            let runs = guest.power == PowerState::Running;
            (guest.name.clone(), guest.vmid.to_string(), runs)
        };
        guests.values().map(facts).collect()
    }

    fn change(&self, guest: &GuestRef, how: impl Fn(&mut ObservedGuest)) -> Result<(), PortError> {
        let mut guests = self.guests();
        let there = guests.values_mut().find(|there| is(there, guest));
        there.map(how).ok_or_else(|| PortError {
            class: ErrorClass::Missing,
            ..PortError::refused("change a guest", format!("there is no {guest}"), "")
        })
    }
}

fn is(there: &ObservedGuest, guest: &GuestRef) -> bool {
    there.uuid.as_ref() == Some(&guest.uuid) && guest.vmid.is_none_or(|id| id == there.vmid)
}

#[async_trait]
impl Provider for MemoryHost {
    async fn capabilities(&self) -> Result<Capabilities, PortError> {
        Ok(Capabilities {
            product: "MemoryHost".to_owned(),
            writable: true,
        })
    }

    async fn observe(&self) -> Result<Inventory, PortError> {
        Ok(Inventory {
            hosts: vec![ObservedHost {
                name: HOST.to_owned(),
                online: true,
                cores: None,
                memory: None,
            }],
            guests: self.guests().values().cloned().collect(),
            storages: Vec::new(),
            requests: 1,
        })
    }

    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        let guests = self.guests();
        Ok(guests.values().find(|there| is(there, guest)).cloned())
    }

    async fn lease(
        &self,
        _: &GuestUuid,
        _: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        Ok(None)
    }

    async fn create(&self, new: &NewGuest) -> Result<GuestRef, PortError> {
        let lacks = [&new.storage, &new.image_storage, &new.nic.bridge];
        if lacks.iter().any(|name| name.is_some()) || new.nic.vlan.is_some() {
            let detail = "there are no storages, bridges and VLANs";
            return Err(PortError::refused("create a guest", detail, ""));
        }
        let mut guests = self.guests();
        let mut known = guests.values();
        let known = known.find(|guest| guest.uuid.as_ref() == Some(&new.uuid));
        let mut free = IDS.iter().filter_map(|id| GuestId::new(id));
        let id = match (known, new.vmid) {
            (Some(guest), _) => guest.vmid,
            (None, Some(asked)) => {
                let detail = format!("`{asked}` was asked for, and ids are not chosen");
                return Err(PortError::refused("create a guest", detail, ""));
            }
            (None, None) => free
                .find(|id| !guests.contains_key(id))
                .ok_or_else(|| PortError::refused("create a guest", "no id is left", ""))?,
        };
        guests.entry(id).or_insert_with(|| ObservedGuest {
            kind: new.kind,
            vmid: id,
            host: HOST.to_owned(),
            name: new.name.clone(),
            uuid: Some(new.uuid.clone()),
            site: Some(new.site.clone()),
            manifest: Some(new.manifest.clone()),
            created_as: Some(id),
            run: Some(new.run.clone()),
            contested: None,
            is_unrelated: false,
            power: PowerState::Stopped,
            template: false,
            lock: None,
            cores: Some(new.cores),
            memory: Some(new.memory.into()),
            disk: Some(new.disk.into()),
            tags: Vec::new(),
        });
        Ok(GuestRef {
            uuid: new.uuid.clone(),
            kind: new.kind,
            vmid: Some(id),
            host: HOST.to_owned(),
        })
    }

    async fn start(&self, guest: &GuestRef) -> Result<(), PortError> {
        let name = self
            .guests()
            .values()
            .find(|there| is(there, guest))
            .map(|it| it.name.clone());
        if let Some(name) = name {
            let mut held = self.held.subscribe();
            if held.borrow().contains(&name) {
                self.waiting
                    .send_modify(|waiting| _ = waiting.insert(name.clone()));
            }
            held.wait_for(|held| !held.contains(&name)).await.unwrap();
        }
        self.change(guest, |there| there.power = PowerState::Running)
    }

    async fn address(&self, _: &GuestRef) -> Result<GuestAddress, PortError> {
        Ok(GuestAddress::At(IpAddr::from([192, 0, 2, 7])))
    }

    async fn discard_seed(&self, _: &GuestRef) -> Result<(), PortError> {
        Ok(())
    }

    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError> {
        self.change(guest, |there| there.disk = Some(size.into()))
    }

    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError> {
        self.change(guest, |there| {
            there.cores = Some(cores);
            there.memory = Some(memory.into());
        })
    }

    async fn stop(&self, guest: &GuestRef, _: StopMode) -> Result<(), PortError> {
        self.change(guest, |there| there.power = PowerState::Stopped)
    }

    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError> {
        // Nothing is stored for a guest beside itself.
        if let Some(id) = guest.vmid {
            self.guests()
                .retain(|at, there| *at != id || !is(there, guest));
        }
        Ok(())
    }

    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError> {
        self.change(guest, |there| {
            there.uuid = Some(to.uuid.clone());
            there.site = Some(to.site.clone());
            there.manifest = Some(to.manifest.clone());
        })
    }

    async fn has_image(&self, image: &ImageRequest) -> Result<bool, PortError> {
        Ok(image.storage.is_none())
    }

    async fn ensure_image(&self, image: &ImageRequest) -> Result<(), PortError> {
        let detail = format!("`{}` does not exist", image.file);
        Err(PortError::refused("transfer an image", detail, ""))
    }
}

struct MemoryHostDriver(Arc<MemoryHost>);

#[async_trait]
impl HostDriver for MemoryHostDriver {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        if name == UNREACHABLE {
            return Err(PortError::unreachable("open the host", "no answer", ""));
        }
        Ok(self.0.clone())
    }

    async fn inside(&self, _: &str, node: &str, _: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        let doing = format!("open `{node}`");
        Err(PortError::refused(
            &doing,
            "guests cannot run inside a guest",
            "",
        ))
    }

    async fn ssh_answers(&self, _: IpAddr, _: &[u16]) -> Result<bool, PortError> {
        Ok(true)
    }

    async fn check(&self, _: &str, _: Option<&Plan>) -> Result<Vec<Finding>, DriverError> {
        Ok(vec![Finding {
            severity: FindingSeverity::Good,
            check: HOST,
            detail: "there is enough space".to_owned(),
            fix: String::new(),
        }])
    }

    async fn show(&self, name: &str, _: bool) -> Result<HostDetail, DriverError> {
        Ok(HostDetail::Other(OtherHost {
            name: name.to_owned(),
            host_kind: HOST.to_owned(),
        }))
    }
}
