//! The durations of simulated operations.

use std::collections::BTreeMap;
use std::time::Duration;

/// Speeds and durations. The defaults were measured on a small real installation.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Timing {
    /// Duration of a call that only reads.
    pub read: Duration,
    /// Duration of a call that changes something.
    pub write: Duration,
    /// From the start of a task to its first action.
    pub fork: Duration,
    /// Copy speed of a storage in bytes per second, shared by its running copies.
    pub copy_speed: u64,
    /// Creating an empty disk.
    pub allocate: Duration,
    /// Starting a virtual machine, until its process runs.
    pub vm_start: Duration,
    /// Starting a container.
    pub ct_start: Duration,
    /// Speed of unpacking a container archive, in bytes per second.
    pub unpack_speed: u64,
    /// From the start of a virtual machine to its address. Default: five seconds, but no later than
    /// the agent.
    #[serde(default)]
    pub address: Option<Duration>,
    /// From start to the guest agent's first answer.
    pub boot: Duration,
    /// From the start of a virtual machine to SSH. Default: same as the agent.
    #[serde(default)]
    pub ssh: Option<Duration>,
    /// Boot stages of individual virtual machines, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, BootStages>,
    /// From a shutdown request to the guest being off.
    pub shutdown: Duration,
    /// Interval of the status daemon.
    pub sweep: Duration,
    /// Timeout of a configuration lock.
    pub config_lock: Duration,
    /// Delay of the answer to a failed login.
    pub refusal: Duration,
    /// Share of a copy that counts against a rate limit; runs of zeros are skipped.
    pub limited_share: f64,
}

/// From the start of a virtual machine to its address, in seconds.
const ADDRESS: f64 = 5.0;

/// The boot stages of a virtual machine, in seconds from its start. Absent stages keep their
/// duration.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootStages {
    /// The name of the machine; all machines if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// When it gets its address.
    #[serde(default)]
    pub address: Option<f64>,
    /// When its agent answers.
    #[serde(default)]
    pub agent: Option<f64>,
    /// When SSH answers.
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
    /// Returns the seconds from the start of a virtual machine to its address, agent and SSH.
    /// `jitter` is a factor for the agent.
    pub(crate) fn stages_of(&self, name: &str, jitter: f64) -> (f64, f64, f64) {
        let own = self.stages.get(name).cloned().unwrap_or_default();
        let usual = self.boot.as_secs_f64() * jitter;
        let agent = own.agent.unwrap_or(usual);
        let address = self.address.map(|address| address.as_secs_f64());
        let address = own.address.or(address).unwrap_or(ADDRESS.min(agent));
        let ssh = self.ssh.map_or(agent, |ssh| ssh.as_secs_f64());
        (address, agent, own.ssh.unwrap_or(ssh))
    }

    /// Returns the duration of a copy while `sharing` copies run. `limit` is in KiB per second.
    pub(crate) fn copy(&self, bytes: u64, limit: Option<u64>, sharing: u32) -> Duration {
        let bytes = bytes as f64;
        let free = bytes * f64::from(sharing.max(1)) / self.copy_speed.max(1) as f64;
        let limited = limit.filter(|limit| *limit > 0).map_or(0.0, |limit| {
            bytes * self.limited_share / (limit as f64 * 1024.0)
        });
        Duration::from_secs_f64(free.max(limited))
    }
}
