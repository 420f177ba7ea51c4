//! The state of the nodes of a manifest.

use homestak_core::observed::GuestId;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::report::ReportState;
use super::run::{ConfigState, ImageResult, ProgressStatus, RunSummary};
use super::string_enum::string_enum;

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
    /// Who executes it.
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
    /// The outcome of its configuration; none without a spec, while it is not applied, and with
    /// `--offline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigState>,
    /// Whether it differs from its manifest and spec; none when that is not known.
    pub differs: Option<bool>,
    /// How it differs.
    pub differences: Option<Vec<String>>,
    /// When it was last reached, or contacted the server.
    pub last_contact: Option<Timestamp>,
    /// What it last reported to the server; none for nodes that do not report, with `--offline`, and
    /// when it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<NodeReport>,
}

/// What a node that fetches its spec last reported to the server: its own account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeReport {
    /// How far it was; none if it has not reported.
    pub state: Option<ReportState>,
    /// The generation of the spec that it last named.
    pub generation: Option<u64>,
    /// The generation that is published.
    pub published: Option<u64>,
    /// Whether it has an older spec than the published one; none when that is not known.
    pub behind: Option<bool>,
    /// How many differences it had when it last converged or failed.
    pub drift: Option<u64>,
    /// Why it failed, if it did then.
    pub error: Option<String>,
    /// Whether it has not contacted the server for longer than three of its intervals.
    pub silent: bool,
}

string_enum! {
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
