//! What nodes report to a server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a node is with its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReportState {
    /// It is fetching its spec.
    Fetching,
    /// It is applying its spec.
    Converging,
    /// It matches its spec.
    Converged,
    /// Its spec could not be fetched or applied.
    Failed,
}

impl ReportState {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fetching => "fetching",
            Self::Converging => "converging",
            Self::Converged => "converged",
            Self::Failed => "failed",
        }
    }
}

/// A report of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The run of the agent that it is about.
    pub run: String,
    /// How far the node is.
    pub state: ReportState,
    /// The generation of the spec, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// What is being done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Whether anything was changed, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether trying again would change nothing.
    #[serde(default)]
    pub permanent: bool,
    /// Differences that are reported and not corrected.
    #[serde(default)]
    pub drift: Vec<String>,
    /// The version of the agent.
    pub agent: String,
}

/// A report as the server keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReceivedReport {
    /// Its number; later reports have higher ones.
    pub id: i64,
    /// When it arrived, in seconds since 1970.
    pub received: i64,
    /// The report.
    #[serde(flatten)]
    pub report: Report,
}

/// Reports of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reports {
    /// Oldest first.
    pub reports: Vec<ReceivedReport>,
}
