//! What the driver is told by whoever starts it.
//!
//! In: nothing. Out: [`DriverSettings`], complete.
//! Never: read from the environment here.

use std::path::PathBuf;

use homestak_core::doc::timeouts::Timeouts;
use homestak_site::Candidates;

use crate::clock::Time;
use crate::hosts::Kind;
use crate::secrets::KeySources;

pub use homestak_providers::local::{ROOT as LOCAL_ROOT, VmEngine};

/// Everything that decides how the driver works.
#[derive(Clone)]
pub struct DriverSettings {
    /// Kinds of hosts that there are.
    pub kinds: Vec<&'static Kind>,
    /// Where a site may be.
    pub candidates: Candidates,
    /// Where state is kept.
    pub state: PathBuf,
    /// This program, which the simulator and hosts inside nodes are started with.
    pub program: PathBuf,
    /// Where the nodes of this machine are.
    pub local_root: PathBuf,
    /// What `vm` nodes of this machine run in.
    pub vm_engine: VmEngine,
    /// Whether nodes of this machine learn who they are from cloud-init.
    pub cloud_init: bool,
    /// Mirror that images are built from; apt's when there is none.
    pub debian_mirror: Option<String>,
    /// How many times faster time goes in the simulator.
    pub sim_speed: f64,
    /// The program that nodes get.
    pub agent: PathBuf,
    /// Time limits that come before those of manifests.
    pub timeouts: Timeouts,
    /// Configuration of `ssh`, instead of the person's own.
    pub ssh_config: Option<PathBuf>,
    /// Where keys that open sealed secrets are.
    pub keys: KeySources,
    /// The clock that everything waits by.
    pub time: Time,
    /// At which moment of a run the program ends itself; only tests set it.
    #[cfg(debug_assertions)]
    pub crash_at: Option<u64>,
}
