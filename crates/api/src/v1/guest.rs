//! Guests: as they should be, as they were found, and what is on record of them.

use std::net::IpAddr;

use homestak_core::{observed, plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;

/// Where a guest is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GuestLocation {
    /// On a host of the site.
    Host(String),
    /// Inside a node of the manifest.
    Inside(String),
}

impl From<&plan::NodeLocation> for GuestLocation {
    fn from(location: &plan::NodeLocation) -> Self {
        match location {
            plan::NodeLocation::Host(name) => Self::Host(name.clone()),
            plan::NodeLocation::Inside(name) => Self::Inside(name.clone()),
        }
    }
}

/// The id that a provider gives a guest: a number where the provider numbers its guests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum GuestId {
    /// A number.
    Number(u32),
    /// A name.
    Name(String),
}

impl From<observed::GuestId> for GuestId {
    fn from(id: observed::GuestId) -> Self {
        match id.number() {
            Some(number) => Self::Number(number),
            None => Self::Name(id.as_str().to_owned()),
        }
    }
}

/// A guest as it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WantedGuest {
    /// Its identity.
    pub uuid: String,
    /// What it is.
    pub kind: GuestKind,
    /// The machine it is created on, by the name that the provider has for it.
    pub host: String,
    /// Its id; none when the provider chooses one.
    pub vmid: Option<GuestId>,
    /// Virtual CPUs.
    pub cores: u32,
    /// Memory in MiB.
    pub memory: u64,
    /// Disk in GiB.
    pub disk: u64,
    /// The storage of its disk, where there are storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// The storage of images and first-boot data, where there are storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_storage: Option<String>,
    /// Its MAC address.
    pub mac: String,
    /// The bridge of the host, where there are bridges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// The VLAN tag.
    pub vlan: Option<u16>,
    /// Its fixed address and the length of its prefix; none for DHCP.
    pub address: Option<(IpAddr, u8)>,
    /// The gateway.
    pub gateway: Option<IpAddr>,
    /// Whether a container is unprivileged.
    pub unprivileged: bool,
    /// Whether guests will run on it.
    pub hosts_guests: bool,
    /// What it is created from: the name of an image, or a volume.
    pub source: String,
    /// Index of the image in the plan; none for a volume that exists.
    pub image: Option<usize>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// The user that is created on first boot.
    pub user: String,
    /// The packages that are installed on first boot.
    pub packages: Vec<String>,
}

impl From<&plan::DesiredGuest> for WantedGuest {
    fn from(wanted: &plan::DesiredGuest) -> Self {
        let (guest, nic) = (&wanted.guest, &wanted.guest.nic);
        Self {
            uuid: guest.uuid.to_string(),
            kind: guest.kind.into(),
            host: guest.host.clone(),
            vmid: guest.vmid.map(GuestId::from),
            cores: guest.cores,
            memory: guest.memory.0,
            disk: guest.disk.0,
            storage: guest.storage.clone(),
            image_storage: guest.image_storage.clone(),
            mac: nic.mac.clone(),
            bridge: nic.bridge.clone(),
            vlan: nic.vlan,
            address: nic.address,
            gateway: nic.gateway,
            unprivileged: guest.unprivileged,
            hosts_guests: guest.hosts_guests,
            source: wanted.source.clone(),
            image: wanted.image,
            dns: wanted.dns.clone(),
            user: wanted.user.clone(),
            packages: wanted.packages.clone(),
        }
    }
}

/// A guest that exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FoundGuest {
    /// Which one it is.
    pub guest: GuestRef,
    /// Whether its identity was given before sites had an id.
    pub first_form: bool,
    /// Whether it runs.
    pub power: GuestPower,
    /// Whether it was created completely; none when nothing is on record.
    pub made: Option<bool>,
    /// Whether it was reached; none when that is not on record.
    pub ready: Option<bool>,
    /// Virtual CPUs, when known.
    pub cores: Option<u32>,
    /// Memory in MiB, when known.
    pub memory: Option<u64>,
    /// Disk in GiB, when known.
    pub disk: Option<u64>,
    /// Its address when it was last ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// How it was last configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<Configured>,
    /// Whether it was created for guests to run on it; none when nothing is on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_guests: Option<bool>,
}

impl From<&plan::ExistingGuest> for FoundGuest {
    fn from(found: &plan::ExistingGuest) -> Self {
        Self {
            guest: (&found.guest).into(),
            first_form: found.legacy_identity,
            power: found.power.into(),
            made: found.created,
            ready: found.ready,
            cores: found.cores,
            memory: found.memory.map(|memory| memory.0),
            disk: found.disk.map(|disk| disk.0),
            address: found.address,
            configured: found.configured.as_ref().map(Configured::from),
            hosts_guests: found.hosts_guests,
        }
    }
}

/// Which guest it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuestRef {
    /// Its identity.
    pub uuid: String,
    /// What it is.
    pub kind: GuestKind,
    /// Its id, when known.
    pub vmid: Option<GuestId>,
    /// The machine it is on, by the name that the provider has for it.
    pub host: String,
}

impl From<&observed::GuestRef> for GuestRef {
    fn from(guest: &observed::GuestRef) -> Self {
        Self {
            uuid: guest.uuid.to_string(),
            kind: guest.kind.into(),
            vmid: guest.vmid.map(GuestId::from),
            host: guest.host.clone(),
        }
    }
}

/// How a node was configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Configured {
    /// Its spec.
    pub spec: String,
    /// The digest of the resolved spec.
    pub digest: String,
    /// The port of its SSH server.
    pub port: u16,
}

impl From<&plan::AppliedSpec> for Configured {
    fn from(configured: &plan::AppliedSpec) -> Self {
        Self {
            spec: configured.spec.clone(),
            digest: configured.digest.clone(),
            port: configured.port,
        }
    }
}

/// What is on record of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// The host of the site it is on.
    pub host: String,
    /// Where its guest is.
    pub place: GuestLocation,
    /// The id of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// Its guest.
    pub guest: GuestRef,
    /// How far it is.
    pub status: RecordStatus,
    /// What it was created from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its address when it was last ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The user that was created on first boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// How it was last configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<Configured>,
    /// Whether it was created for guests to run on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_guests: Option<bool>,
}

impl From<&plan::NodeRecord> for NodeRecord {
    fn from(record: &plan::NodeRecord) -> Self {
        Self {
            name: record.name.clone(),
            host: record.host.clone(),
            place: (&record.location).into(),
            site: record.site.as_ref().map(ToString::to_string),
            guest: (&record.guest).into(),
            status: record.status.into(),
            source: record.source.clone(),
            address: record.address,
            user: record.user.clone(),
            configured: record.configured.as_ref().map(Configured::from),
            hosts_guests: record.hosts_guests,
        }
    }
}

words! {
    /// What a guest is.
    GuestKind from observed::GuestKind {
        /// A virtual machine.
        Vm = "vm",
        /// A container.
        Ct = "ct",
    }
}

words! {
    /// Whether a guest runs.
    GuestPower from observed::PowerState {
        /// It runs.
        Running = "Running",
        /// It is stopped.
        Stopped = "Stopped",
        /// That is not known.
        Unknown = "Unknown",
    }
}

words! {
    /// How far a node is.
    RecordStatus from plan::NodeStatus {
        /// Its guest is being created.
        Creating = "creating",
        /// Its guest was created.
        Created = "made",
        /// It was reached.
        Ready = "ready",
        /// It is being destroyed.
        Destroying = "destroying",
        /// It was destroyed.
        Destroyed = "destroyed",
    }
}
