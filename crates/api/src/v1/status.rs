//! The state of the nodes of a manifest.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guest::GuestId;
use super::run::{ImageResult, ProgressStatus, RunSummary};
use super::words::words;

/// The state of nodes, by the run that last changed them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestStatus {
    /// The runs.
    pub runs: Vec<StatusEntry>,
}

/// The nodes of a run, or only the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum StatusEntry {
    /// The run with its nodes.
    Detail(RunStatus),
    /// One of several runs, when none is selected.
    Summary(RunSummary),
}

/// A run with the state of its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunStatus {
    /// The run.
    #[serde(flatten)]
    pub run: RunSummary,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
    /// The images that were downloaded, or could not be.
    pub images: Vec<ImageResult>,
    /// Who carries it out.
    pub held_by: Option<String>,
    /// Whether hosts were not queried, because of `--offline`.
    pub offline: bool,
    /// Why hosts could not be queried.
    pub unknown: Option<String>,
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// How far the run, or the record, has it.
    pub status: ProgressStatus,
    /// The host of the site it is on.
    pub host: String,
    /// The id of its guest.
    pub vm_id: Option<GuestId>,
    /// Its address when it was last ready.
    pub ip: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// Whether it runs; none with `--offline`.
    pub power: Option<NodePower>,
    /// Whether it differs from its manifest and spec; none when that is not known.
    pub differs: Option<bool>,
    /// How it differs.
    pub differences: Option<Vec<String>>,
    /// When it was last reached.
    pub last_contact: Option<Timestamp>,
}

words! {
    /// Whether a node runs.
    NodePower {
        /// It runs.
        Running = "running",
        /// It is stopped.
        Stopped = "stopped",
        /// It does not exist.
        Absent = "absent",
        /// That is not known.
        Unknown = "unknown",
    }
}
