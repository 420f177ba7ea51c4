//! Kinds of hosts and their traits, as far as documents and plans need them. How hosts are reached is
//! up to the driver.

use crate::doc::DocumentKind;

/// The traits of a kind of host, where kinds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTraits {
    /// Whether guests can be created on it.
    pub creates_guests: bool,
    /// Whether its nodes are simulated: without SSH and without a spec.
    pub is_simulated: bool,
    /// Whether containers get first-boot data, as virtual machines do.
    pub seeds_containers: bool,
    /// Whether nodes of type `pve` on it are configured by their spec.
    pub configures_hypervisors: bool,
    /// Whether the driver can run commands in its nodes without SSH.
    pub has_direct_shell: bool,
    /// Whether its nodes run on the machine of the driver, so that their gateway is an address of it.
    pub is_this_machine: bool,
    /// Whether guests have numbers that a manifest may choose; otherwise the host assigns ids.
    pub numbers_guests: bool,
    /// Whether disks and images are in named storages.
    pub has_storages: bool,
    /// Whether guests are attached to bridges and VLANs that documents name.
    pub has_bridges: bool,
    /// Whether guests can be containers.
    pub runs_containers: bool,
    /// The commands on the host that open the console of a guest, before its id.
    pub console: Option<ConsoleCommands>,
}

/// Commands that open the console of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsoleCommands {
    /// For virtual machines.
    pub vm: &'static str,
    /// For containers.
    pub ct: &'static str,
}

impl HostTraits {
    /// The traits of Proxmox VE. Other kinds state their differences.
    pub const PROXMOX_VE: Self = Self {
        creates_guests: true,
        is_simulated: false,
        seeds_containers: false,
        configures_hypervisors: true,
        has_direct_shell: false,
        is_this_machine: false,
        numbers_guests: true,
        has_storages: true,
        has_bridges: true,
        runs_containers: true,
        console: Some(ConsoleCommands {
            vm: "qm terminal",
            ct: "pct enter",
        }),
    };
}

/// A registered kind of host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostKindInfo {
    /// Its name in documents.
    pub name: &'static str,
    /// Its label in lists, such as `Proxmox VE`.
    pub label: &'static str,
    /// Whether it has one host, of the same name, that needs no document.
    pub is_built_in: bool,
    /// The documents that are of this kind unless they name another; `None` for no documents.
    pub default_of: Option<DocumentKind>,
    /// Its traits.
    pub traits: HostTraits,
}
