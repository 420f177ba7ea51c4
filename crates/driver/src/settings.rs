//! Settings of the driver. The caller reads them from arguments and the environment, and sets every
//! field.

use std::path::PathBuf;

use homestak_core::doc::scalar::PublishTarget;
use homestak_core::doc::timeouts::Timeouts;
use homestak_site::Candidates;

use crate::clock::ProgramClock;
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
    /// Directory of process ids, when it is not the state directory.
    pub run_directory: Option<PathBuf>,
    /// Directory of logs, when it is not the state directory.
    pub log_directory: Option<PathBuf>,
    /// URL of the server, instead of that of the site.
    pub server: Option<String>,
    /// Directory that a permanent server reads, instead of that of the site.
    pub publish_to: Option<PublishTarget>,
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
    /// Sources of keys for encrypted secrets.
    pub keys: KeySources,
    /// The clock.
    pub time: ProgramClock,
    /// Step point at which the program kills itself; for tests.
    #[cfg(debug_assertions)]
    pub crash_at: Option<u64>,
}
