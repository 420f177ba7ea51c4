//! Kinds of hosts, as far as documents and plans ask: which there are, and what hosts of a kind
//! are like. How they are reached is the driver's.

/// What hosts of a kind have and do, where kinds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Whether guests can be created on it.
    pub creates_guests: bool,
    /// Whether there is nothing inside its nodes: no SSH, no spec.
    pub is_simulated: bool,
    /// Whether containers are told who they are on first boot, as machines are.
    pub seeds_containers: bool,
    /// Whether nodes of type `pve` on it are configured by their spec.
    pub configures_hypervisors: bool,
    /// Whether its nodes are entered from here without SSH.
    pub is_entered: bool,
    /// Whether guests have numbers that a manifest may choose; otherwise the host gives each an id
    /// of its own.
    pub numbers_guests: bool,
    /// Whether disks and images are in storages with names.
    pub has_storages: bool,
    /// Whether guests are attached to bridges and VLANs that documents name.
    pub has_bridges: bool,
}

impl Traits {
    /// What Proxmox VE is like. Other kinds say where they differ.
    pub const PROXMOX_VE: Self = Self {
        creates_guests: true,
        is_simulated: false,
        seeds_containers: false,
        configures_hypervisors: true,
        is_entered: false,
        numbers_guests: true,
        has_storages: true,
        has_bridges: true,
    };
}

/// A kind of host that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownKind {
    /// Its word.
    pub word: &'static str,
    /// What its hosts are called in lists, such as `Proxmox VE`.
    pub label: &'static str,
    /// Whether it has one host that needs no document, called as the kind.
    pub is_built_in: bool,
    /// What its hosts are like.
    pub traits: Traits,
}
