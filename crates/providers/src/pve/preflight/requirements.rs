//! What a run needs of a Proxmox VE host.

use std::net::{IpAddr, SocketAddr};

use homestak_engine::ports::Bytes;

use crate::pve::role::Abilities;

/// What a run will need.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    /// Hosts that guests are created on.
    pub hosts: Vec<String>,
    /// What the token must be able to do.
    pub abilities: Abilities,
    /// The memory of the largest guest by host.
    pub memory: Vec<(String, Bytes)>,
    /// Storages, and what they must hold.
    pub storages: Vec<StorageRequirement>,
    /// Files that must be there.
    pub images: Vec<FileRequirement>,
    /// Hosts whose guests have guests.
    pub nested: Vec<String>,
    /// Bridges by host.
    pub bridges: Vec<(String, String)>,
    /// Addresses where SSH must answer.
    pub ssh: Vec<SocketAddr>,
    /// The site's own settings; `None` when no guest is created.
    pub site: Option<SiteRequirements>,
}

/// A storage a run needs.
#[derive(Clone, Debug)]
pub struct StorageRequirement {
    /// The host.
    pub host: String,
    /// The storage.
    pub storage: String,
    /// Such as `images`, `iso`, `import`, `vztmpl`, `rootdir`.
    pub content: Vec<String>,
    /// How much of it will be used, if all new and grown disks are full.
    pub size: Bytes,
    /// The largest new disk.
    pub largest: Bytes,
}

/// A file a run needs.
#[derive(Clone, Debug)]
pub struct FileRequirement {
    /// The host.
    pub host: String,
    /// The storage.
    pub storage: String,
    /// `import` or `vztmpl`.
    pub content: String,
    /// Its name.
    pub file: String,
    /// Where the host fetches it from when it is missing.
    pub source: Option<String>,
}

/// Site settings that guests need for network and SSH access.
#[derive(Clone, Debug, Default)]
pub struct SiteRequirements {
    /// Whether guests with fixed addresses are created.
    pub fixed_addresses: bool,
    /// The default gateway.
    pub gateway: Option<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Domain.
    pub domain: Option<String>,
    /// How many SSH keys there are.
    pub ssh_keys: usize,
}
