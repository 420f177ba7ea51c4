//! What the agent reports of the machine it runs on.

use std::collections::BTreeMap;

use homestak_core::converge::{Change, DriftState, Managed, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a command of the agent prints: its result, or why it failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AgentOutput<T> {
    /// The result.
    Result(T),
    /// Why it failed.
    Failure(AgentFailure),
}

/// Why a command of the agent failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentFailure {
    /// `config`, for a job that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Always `false`.
    pub success: bool,
    /// What kind of error it is.
    pub error: String,
    /// What happened, and what to do about it.
    pub message: String,
    /// The exit code, for a job that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
}

/// How the machine differs from its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigCheck {
    /// The spec.
    pub spec: String,
    /// Whether applying it would change nothing.
    pub settled: bool,
    /// The differences.
    pub changes: Vec<Change>,
    /// The ids of differences that are only reported.
    pub left: Vec<String>,
    /// Why nothing would be done.
    pub refusals: Vec<String>,
    /// What would not be corrected: why, by the id of the difference.
    pub refused: BTreeMap<String, String>,
    /// The job whose changes wait for confirmation.
    pub unconfirmed: Option<String>,
}

/// A spec that was applied, or what applying it would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ConfigApply {
    /// It was applied.
    Applied(ConfigApplied),
    /// What applying it would do.
    DryRun(AgentDryRun),
}

/// A spec that was applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigApplied {
    /// Always `config`.
    pub phase: String,
    /// Always `true`.
    pub success: bool,
    /// The spec.
    pub spec: String,
    /// How long it took, in seconds.
    pub duration_seconds: f64,
    /// The differences before.
    pub changes: Vec<Change>,
    /// What was done.
    pub steps: Vec<String>,
    /// How much the spec manages.
    #[serde(flatten)]
    pub counts: ResourceCounts,
}

/// How much a spec manages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceCounts {
    /// Packages.
    pub packages: usize,
    /// Units that are enabled and started.
    pub services_enabled: usize,
    /// Units that are disabled and stopped.
    pub services_disabled: usize,
    /// Users.
    pub users: usize,
}

/// What applying a spec would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentDryRun {
    /// The spec.
    pub spec: String,
    /// The file of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_path: Option<String>,
    /// Always `true`.
    pub dry_run: bool,
    /// The differences.
    pub changes: Vec<Change>,
    /// What would be done.
    pub steps: Vec<String>,
}

/// What the agent manages on the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDetail {
    /// The value of each field when the spec was last applied.
    pub fields: BTreeMap<String, String>,
    /// What exists because of a spec, and is removed with it.
    pub managed: Managed,
}

/// A spec that was fetched from a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecFetched {
    /// Always `true`.
    pub success: bool,
    /// The spec.
    pub spec: String,
    /// Where it was written to.
    pub path: String,
    /// How many resources it has.
    pub resources: usize,
}

/// A spec that was obtained from a server and applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentPull {
    /// Always `true`.
    pub success: bool,
    /// The spec.
    pub spec: String,
    /// The generation of the spec.
    pub generation: u64,
    /// Whether the server had a newer spec than the machine.
    pub fetched: bool,
    /// Whether anything was changed.
    pub changed: bool,
    /// Whether the server received the report.
    pub reported: bool,
}

/// A spec that is valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecValid {
    /// Always `true`.
    pub valid: bool,
    /// The spec.
    pub spec: String,
    /// What it asks of the machine.
    pub resources: Vec<Resource>,
}

/// What `homestak-agent run` corrected, or would correct.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AgentRun {
    /// What it corrected.
    Corrected(AgentCorrection),
    /// What it would correct.
    DryRun(AgentDryRun),
}

/// What `homestak-agent run` corrected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentCorrection {
    /// Always `true`.
    pub success: bool,
    /// The spec.
    pub spec: String,
    /// Whether nothing is left that would be corrected.
    pub settled: bool,
    /// The differences before.
    pub changes: Vec<Change>,
    /// The ids of the differences that were corrected.
    #[serde(rename = "mended")]
    pub corrected: Vec<String>,
    /// The differences that are left.
    pub left: Vec<Change>,
}

/// The state of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentStatus {
    /// `complete`, `differs`, `failed` or `unknown`.
    pub status: String,
    /// The marker of the last success.
    pub complete: Option<Marker>,
    /// The marker of the last failure, when nothing has succeeded since.
    pub failed: Option<Marker>,
    /// Whether a fetched spec waits to be applied.
    pub fetched: bool,
    /// Whether the agent watches the machine.
    pub watching: bool,
    /// Whether it corrects drift.
    pub enforcing: bool,
    /// Drift, and what was done about it.
    pub drift: DriftState,
}

/// A marker as it was written, perhaps by an earlier version of the agent: `phase`, `status`,
/// `spec`, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Marker(pub serde_json::Value);
