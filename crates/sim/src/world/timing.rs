//! How long things take.
//!
//! In: what is done. Out: a duration, before jitter and load.
//! Never: waiting; whoever asks waits.

use std::collections::BTreeMap;
use std::time::Duration;

/// Speeds and durations, as measured on a small real installation. All may be changed.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Timing {
    /// Time a worker spends on a call that only reads.
    pub read: Duration,
    /// Time a worker spends on a call that changes something.
    pub write: Duration,
    /// Time a task needs before it does anything.
    pub fork: Duration,
    /// Bytes per second a storage copies at, shared by the copies that run.
    pub copy_speed: u64,
    /// Making an empty disk.
    pub allocate: Duration,
    /// Starting a virtual machine, until its process runs.
    pub vm_start: Duration,
    /// Starting a container.
    pub ct_start: Duration,
    /// Bytes per second a container's archive is unpacked at.
    pub unpack_speed: u64,
    /// From the start of a virtual machine to its address; five seconds, and no later than the
    /// agent, when absent.
    #[serde(default)]
    pub address: Option<Duration>,
    /// From start to the guest agent's first answer.
    pub boot: Duration,
    /// From the start of a virtual machine to its SSH; with the agent when absent.
    #[serde(default)]
    pub ssh: Option<Duration>,
    /// Virtual machines by name whose stages take another time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, Stages>,
    /// From a request to shut down to the guest being off.
    pub shutdown: Duration,
    /// Between two sweeps of the status daemon.
    pub sweep: Duration,
    /// How long a config lock is waited for.
    pub config_lock: Duration,
    /// How long a failed login takes to be answered.
    pub refusal: Duration,
    /// How much of a rate-limited copy counts: runs of zeros are skipped.
    pub limited_share: f64,
}

/// From the start of a virtual machine to its address, in seconds.
const ADDRESS: f64 = 5.0;

/// In which stages a virtual machine boots: seconds from each of its starts. What is absent takes
/// as long as for any other.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// The name of the machine; every other one too when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// To its address.
    #[serde(default)]
    pub address: Option<f64>,
    /// To the first answer of its agent.
    #[serde(default)]
    pub agent: Option<f64>,
    /// To its SSH.
    #[serde(default)]
    pub ssh: Option<f64>,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            read: Duration::from_millis(8),
            write: Duration::from_millis(45),
            fork: Duration::from_millis(40),
            copy_speed: 2_600_000_000,
            allocate: Duration::from_millis(70),
            vm_start: Duration::from_millis(260),
            ct_start: Duration::from_millis(2_000),
            unpack_speed: 30_000_000,
            address: None,
            boot: Duration::from_secs(45),
            ssh: None,
            stages: BTreeMap::new(),
            shutdown: Duration::from_millis(4_000),
            sweep: Duration::from_secs(10),
            config_lock: Duration::from_secs(10),
            refusal: Duration::from_secs(3),
            limited_share: 0.8,
        }
    }
}

impl Timing {
    /// Returns when a virtual machine of that name has its address, agent and SSH, in seconds from
    /// its start. `jitter` varies the time of the agent.
    pub(crate) fn stages_of(&self, name: &str, jitter: f64) -> (f64, f64, f64) {
        let own = self.stages.get(name).cloned().unwrap_or_default();
        let usual = self.boot.as_secs_f64() * jitter;
        let agent = own.agent.unwrap_or(usual);
        let address = self.address.map(|address| address.as_secs_f64());
        let address = own.address.or(address).unwrap_or(ADDRESS.min(agent));
        let ssh = self.ssh.map_or(agent, |ssh| ssh.as_secs_f64());
        (address, agent, own.ssh.unwrap_or(ssh))
    }

    /// Returns how long a copy takes while `sharing` copies run. `limit` is in KiB per second.
    pub(crate) fn copy(&self, bytes: u64, limit: Option<u64>, sharing: u32) -> Duration {
        let bytes = bytes as f64;
        let free = bytes * f64::from(sharing.max(1)) / self.copy_speed.max(1) as f64;
        let limited = limit.filter(|limit| *limit > 0).map_or(0.0, |limit| {
            bytes * self.limited_share / (limit as f64 * 1024.0)
        });
        Duration::from_secs_f64(free.max(limited))
    }
}
