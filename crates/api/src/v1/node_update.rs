//! Jobs that the driver submitted, and staged updates of the nodes of a manifest, as commands print
//! them.

use homestak_core::doc::manifest::Mode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::node_job::{JobStatus, PackageUpdate, UpdateScope};
use super::string_enum::string_enum;

string_enum! {
    /// How a job reaches its node.
    JobRoute {
        /// Through the server, from which the node takes it.
        Server = "server",
        /// Over SSH.
        Ssh = "ssh",
    }
}

/// A job that was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeJob {
    /// The job. It is not flattened: it has a `kind` of its own.
    pub job: JobStatus,
    /// How it reached the node.
    pub route: JobRoute,
    /// What it printed, as far as it was followed.
    pub output: String,
    /// Whether output was dropped because there was too much.
    pub truncated: bool,
}

/// A job that the server knows, with its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShownJob {
    /// The job.
    pub job: JobStatus,
    /// Its output.
    pub output: String,
    /// Whether later output was dropped because there was too much.
    pub truncated: bool,
}

/// A job that was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelledJob {
    /// The job.
    pub job: JobStatus,
}

string_enum! {
    /// How the update of a node ended.
    NodeUpdateState {
        /// It would be updated.
        Planned = "planned",
        /// It has nothing to update.
        UpToDate = "up-to-date",
        /// It is left out.
        Skipped = "skipped",
        /// It was updated, and is healthy.
        Updated = "updated",
        /// Its update failed.
        Failed = "failed",
        /// It refused the update, and changed nothing.
        Refused = "refused",
        /// It was updated, and did not come back healthy in time.
        Unhealthy = "unhealthy",
        /// What it did is not known.
        Unknown = "unknown",
        /// It was not started, since the update stopped before.
        NotStarted = "not-started",
    }
}

impl NodeUpdateState {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::UpToDate => "up-to-date",
            Self::Skipped => "skipped",
            Self::Updated => "updated",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Unhealthy => "unhealthy",
            Self::Unknown => "unknown",
            Self::NotStarted => "not-started",
        }
    }
}

/// A node in a staged update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeUpdateEntry {
    /// Its name.
    pub node: String,
    /// The host it is on.
    pub host: String,
    /// Its outcome.
    pub state: NodeUpdateState,
    /// Why, where it is not obvious.
    pub message: Option<String>,
    /// The number of its batch, from 1; none if it is not updated.
    pub batch: Option<u32>,
    /// Who starts its configuration.
    pub mode: Option<Mode>,
    /// How jobs reach it.
    pub route: Option<JobRoute>,
    /// Which packages are updated.
    pub scope: UpdateScope,
    /// When updates and restarts are allowed, in the node's time zone; always if it is empty.
    pub window: Vec<String>,
    /// Packages that are updated, by the node's own account.
    pub packages: Vec<PackageUpdate>,
    /// Whether it must be restarted for an update to take effect.
    pub reboot_needed: Option<bool>,
    /// Whether it was restarted.
    pub rebooted: Option<bool>,
    /// The id of its job.
    pub job: Option<String>,
}

/// A staged update of the nodes of a manifest, or its plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeUpdate {
    /// The manifest.
    pub manifest: String,
    /// Whether this is only the plan.
    pub dry_run: bool,
    /// How many nodes are updated at the same time.
    pub at_once: u32,
    /// Why it stopped before its end.
    pub stopped: Option<String>,
    /// In the order in which they are updated; those that are left out come last.
    pub nodes: Vec<NodeUpdateEntry>,
}
