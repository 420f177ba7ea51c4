//! Hosts: what the site has, what they report of themselves, and whether they are ready.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::string_enum::string_enum;

/// Every host of the site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostList {
    /// By name.
    pub hosts: Vec<HostSummary>,
}

/// A host of the site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostSummary {
    /// Its name.
    pub name: String,
    /// What kind of host it is.
    pub kind: String,
    /// The URL of its API, or its address; may be empty.
    pub address: String,
    /// How its certificate is verified; empty for a host without an API.
    pub trust: String,
}

/// A host: what the site has of it and, unless `--offline`, what it reports of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HostDetail {
    /// A Proxmox VE host.
    Pve(PveHost),
    /// This machine.
    Local(LocalHost),
    /// The simulator.
    Sim(SimHost),
    /// A host that is reached over SSH only.
    Ssh(SshHost),
    /// A host of another kind.
    Other(OtherHost),
}

/// A Proxmox VE host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PveHost {
    /// Its name in the site.
    pub name: String,
    /// Its name in its cluster.
    pub node: String,
    /// The URL of its API.
    pub api_endpoint: Option<String>,
    /// The storage for disks.
    pub datastore: Option<String>,
    /// Its address.
    pub ip: Option<String>,
    /// The SHA-256 fingerprint of its certificate.
    pub fingerprint: Option<String>,
    /// What it reports of itself.
    #[serde(rename = "says", default, skip_serializing_if = "Option::is_none")]
    pub report: Option<PveReport>,
}

/// What a Proxmox VE host reports of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PveReport {
    /// Name and version, such as `Proxmox VE 9.1.7`.
    pub product: String,
    /// Whether changes are possible now; a cluster without quorum is read-only.
    pub writable: bool,
    /// The machines of its cluster.
    pub hosts: Vec<PveMember>,
    /// Its storages.
    pub storages: Vec<PveStorage>,
    /// How many guests it has, for a person.
    pub guests: String,
}

/// A machine of a Proxmox VE cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PveMember {
    /// Its name.
    pub name: String,
    /// Whether it is online.
    pub online: bool,
}

/// A storage of a Proxmox VE host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PveStorage {
    /// Its name.
    pub name: String,
    /// The machine it is on.
    pub host: String,
    /// What it can hold.
    pub content: Vec<String>,
    /// Whether it is usable now.
    pub active: bool,
}

/// This machine as a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalHost {
    /// Its name in the site.
    pub name: String,
    /// What kind of host it is.
    pub host_kind: String,
    /// The directory with its nodes and images.
    pub root: String,
    /// Whether it is ready.
    #[serde(rename = "says", default, skip_serializing_if = "Option::is_none")]
    pub report: Option<LocalReport>,
}

/// Whether this machine is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalReport {
    /// Whether nothing is missing.
    pub ready: bool,
    /// What is missing.
    pub lacks: Vec<String>,
}

/// The simulator as a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimHost {
    /// Its name in the site.
    pub name: String,
    /// What kind of host it is.
    pub host_kind: String,
    /// The directory with its state.
    pub directory: String,
    /// Whether it runs.
    #[serde(rename = "says", default, skip_serializing_if = "Option::is_none")]
    pub report: Option<SimReport>,
}

/// Whether the simulator runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimReport {
    /// Whether it runs.
    pub running: bool,
    /// The URL of its API while it runs.
    pub api_endpoint: Option<String>,
}

/// A host that is reached over SSH only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SshHost {
    /// Its name in the site.
    pub name: String,
    /// What kind of host it is.
    pub host_kind: String,
    /// Its address and port.
    pub address: Option<String>,
    /// Whether it answers.
    #[serde(rename = "says", default, skip_serializing_if = "Option::is_none")]
    pub report: Option<SshReport>,
}

/// Whether a host answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SshReport {
    /// Whether it accepts connections on its SSH port.
    pub ssh: bool,
}

/// A host of another kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherHost {
    /// Its name in the site.
    pub name: String,
    /// What kind of host it is.
    pub host_kind: String,
}

/// A certificate that is trusted from now on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostTrust {
    /// Always `true`.
    pub success: bool,
    /// The host.
    pub host: String,
    /// The SHA-256 fingerprint of its certificate.
    pub fingerprint: String,
    /// Whether another one, or none, was recorded before.
    pub changed: bool,
}

/// The commands that create the smallest sufficient role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostRole {
    /// The major version of Proxmox VE they are for.
    pub pve_version: u32,
    /// Whether they were tested on a real host of that version.
    pub verified: bool,
    /// The commands, for root on the host.
    pub commands: Vec<String>,
}

/// Whether a host is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostPreflight {
    /// Whether no check failed.
    pub success: bool,
    /// The host.
    pub host: String,
    /// The checks.
    pub findings: Vec<PreflightFinding>,
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PreflightFinding {
    /// What was checked.
    pub check: String,
    /// Its result.
    pub outcome: PreflightOutcome,
    /// What was found.
    pub detail: String,
    /// How to fix it, as commands where there are some; may be empty.
    pub fix: String,
}

string_enum! {
    /// The result of a check.
    PreflightOutcome {
        /// It passed.
        Good = "good",
        /// It could not be determined.
        Unknown = "unknown",
        /// Something may fail.
        Warning = "warning",
        /// It failed.
        Failure = "failure",
    }
}
