//! Settings of the driver, without defaults left open. The environment is read by the caller.

use std::path::PathBuf;

use homestak_core::doc::timeouts::Timeouts;
use homestak_site::Candidates;

use crate::clock::Time;
use crate::hosts::HostKind;
use crate::secrets::KeySources;

pub use homestak_providers::local::{ROOT as LOCAL_ROOT, VmEngine};

/// Settings of the driver.
#[derive(Clone)]
pub struct DriverSettings {
    /// Supported kinds of hosts.
    pub kinds: Vec<&'static HostKind>,
    /// Where sites are searched.
    pub candidates: Candidates,
    /// The state directory.
    pub state: PathBuf,
    /// The path of this program, which starts simulators and runs inside nodes.
    pub program: PathBuf,
    /// Directory of the nodes of this machine.
    pub local_root: PathBuf,
    /// What runs `vm` nodes of this machine.
    pub vm_engine: VmEngine,
    /// Whether nodes of this machine use cloud-init.
    pub cloud_init: bool,
    /// Debian mirror for images; that of apt if `None`.
    pub debian_mirror: Option<String>,
    /// How many times faster than real time the simulator runs.
    pub sim_speed: f64,
    /// The agent program for nodes.
    pub agent: PathBuf,
    /// Time limits that override those of manifests.
    pub timeouts: Timeouts,
    /// Configuration file of `ssh`, instead of the user's.
    pub ssh_config: Option<PathBuf>,
    /// Sources of keys for sealed secrets.
    pub keys: KeySources,
    /// The clock.
    pub time: Time,
    /// Step point at which the program kills itself; for tests.
    #[cfg(debug_assertions)]
    pub crash_at: Option<u64>,
}
