//! Runs: what they did, and which ones there were.

use std::net::IpAddr;

use homestak_core::observed::GuestId;
use homestak_core::plan::StepKind;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::string_enum::string_enum;

string_enum! {
    /// The command that a run belongs to.
    RunVerb {
        /// `manifest apply`
        Apply = "apply",
        /// `manifest configure`
        Configure = "configure",
        /// `manifest destroy`
        Destroy = "destroy",
        /// `manifest test`
        Test = "test",
        /// `manifest resume`
        Resume = "resume",
        /// `manifest rollback`
        Rollback = "rollback",
        /// `manifest reidentify`
        Reidentify = "reidentify",
    }
}

impl RunVerb {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Configure => "configure",
            Self::Destroy => "destroy",
            Self::Test => "test",
            Self::Resume => "resume",
            Self::Rollback => "rollback",
            Self::Reidentify => "reidentify",
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// The command.
    pub verb: RunVerb,
    /// Whether it succeeded.
    pub success: bool,
    /// How long it took, in seconds.
    pub duration_seconds: f64,
    /// The nodes.
    pub nodes: Vec<NodeResult>,
    /// The images that were downloaded, or could not be.
    pub images: Vec<ImageResult>,
    /// The number of the run; none when there was nothing to do.
    pub run: Option<i64>,
    /// How it ended; none when it was aborted.
    pub ending: Option<RunEnding>,
    /// The phases of a test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<TestPhase>>,
    /// The files with the report of a test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports: Option<Vec<String>>,
    /// What could not be reverted, when the run was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_undone: Option<Vec<NotReverted>>,
}

/// What a run did to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeResult {
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: ProgressStatus,
    /// The id of its guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_id: Option<GuestId>,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The outcome of its configuration; none without a spec, and while it is not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigState>,
    /// How long its steps took, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

string_enum! {
    /// The outcome of the configuration of a node.
    ConfigState {
        /// It matches its spec.
        Configured = "configured",
        /// Its host is simulated, and nothing was configured.
        Simulated = "simulated",
    }
}

/// What a run did to an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageResult {
    /// Its name, with its host.
    pub name: String,
    /// Its state.
    pub status: ProgressStatus,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

string_enum! {
    /// The state of a node or an image in a run.
    ProgressStatus {
        /// Nothing was started.
        Pending = "pending",
        /// A step is in progress.
        Running = "running",
        /// The run ended during a step.
        Interrupted = "interrupted",
        /// Everything is done.
        Completed = "completed",
        /// A step failed.
        Failed = "failed",
        /// It was destroyed.
        Destroyed = "destroyed",
        /// It did not exist, and nothing was done.
        Absent = "absent",
        /// What was done was reverted; its guest existed before the run, and is kept.
        Kept = "kept",
        /// Its removal was marked as resolved; whether it exists is not known.
        Settled = "settled",
        /// It could not be reverted.
        Stuck = "stuck",
    }
}

string_enum! {
    /// How a run ended.
    RunEnding {
        /// Everything is done.
        Done = "done",
        /// A step failed; the run can be resumed.
        Failed = "failed",
        /// It was stopped between steps; it can be resumed.
        Stopped = "stopped",
        /// Everything it did was reverted.
        RolledBack = "rolled-back",
        /// Reverting it failed.
        Stuck = "stuck",
        /// A later run took over.
        Superseded = "superseded",
    }
}

/// One phase of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TestPhase {
    /// Its name.
    pub name: String,
    /// What it checks.
    pub description: String,
    /// Its result.
    pub status: TestStatus,
    /// What went wrong, and notices; may be empty.
    pub message: String,
    /// How long it took, in seconds.
    pub duration: f64,
}

string_enum! {
    /// The result of a phase of a test.
    TestStatus {
        /// It passed.
        Passed = "passed",
        /// It failed.
        Failed = "failed",
        /// It was skipped.
        Skipped = "skipped",
    }
}

/// The report of a test, in the file that `manifest test` writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TestReport {
    /// The manifest.
    pub scenario: String,
    /// The hosts, separated by commas.
    pub host: String,
    /// The machine that ran the test.
    pub hostname: String,
    /// Whether no phase failed.
    pub success: bool,
    /// When it started.
    pub started_at: Timestamp,
    /// When it finished.
    pub finished_at: Timestamp,
    /// How long it took, in seconds.
    pub duration: f64,
    /// Its phases.
    pub phases: Vec<TestPhase>,
    /// The nodes.
    pub nodes: Vec<NodeResult>,
}

/// Something that could not be reverted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NotReverted {
    /// The node or image.
    pub name: String,
    /// What remains.
    pub text: String,
}

/// The result of a rollback, or what it would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RollbackOutput {
    /// What it did.
    Run(RunResult),
    /// What it would do, or that there is nothing to do.
    Preview(RollbackPreview),
}

/// What rolling a run back would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackPreview {
    /// Always `rollback`.
    pub verb: RunVerb,
    /// The number of the run.
    pub run: i64,
    /// Its manifest.
    pub manifest: String,
    /// Its hosts.
    pub hosts: Vec<String>,
    /// The effects of the run, and what the rollback does with each.
    pub undo: Vec<RollbackItem>,
    /// `true` when there is nothing to do; not present in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
}

/// An effect of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackItem {
    /// The node or image.
    pub name: String,
    /// What the rollback does with it.
    pub effect: RollbackEffect,
    /// The same as text.
    pub text: String,
}

string_enum! {
    /// What a rollback does with an effect of a run.
    RollbackEffect {
        /// It is reverted.
        Undone = "undo",
        /// It is kept on purpose.
        Stays = "stays",
        /// It cannot be reverted.
        Lost = "lost",
    }
}

/// A recorded run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// Its number.
    pub run: i64,
    /// The id of the site.
    pub site: Option<String>,
    /// The manifest.
    pub manifest: String,
    /// The hosts of the site that it touched.
    pub hosts: Vec<String>,
    /// The command.
    pub verb: String,
    /// When it started.
    pub started_at: Timestamp,
    /// When it finished; none while it runs, and when it was killed.
    pub finished_at: Option<Timestamp>,
    /// How long it took, in seconds.
    pub duration: Option<f64>,
    /// How it ended.
    pub ending: Option<RunEnding>,
    /// Whether it can be resumed.
    pub resumable: bool,
}

/// Recorded runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunHistory {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Whether there are older ones.
    pub more: bool,
}

/// What happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunReport {
    /// The run.
    #[serde(flatten)]
    pub run: RunSummary,
    /// The nodes.
    pub nodes: Vec<NodeResult>,
    /// The images that were downloaded, or could not be.
    pub images: Vec<ImageResult>,
    /// The steps, with their durations.
    pub phases: Vec<RunPhase>,
}

/// A step of a run, with its duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunPhase {
    /// The node or image.
    pub subject: String,
    /// The step.
    pub phase: StepKind,
    /// How long it took, in seconds.
    pub duration: f64,
}

/// The result of `manifest unlock`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestUnlock {
    /// Always `true`.
    pub success: bool,
    /// The manifest.
    pub manifest: String,
    /// The host.
    pub host: String,
    /// The process that held the lock; none when it was not locked.
    pub held_by: Option<String>,
    /// Since when it was locked.
    pub since: Option<Timestamp>,
    /// The last heartbeat of that process.
    pub heartbeat: Option<Timestamp>,
}

/// A node whose record was removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestForget {
    /// Always `true`.
    pub success: bool,
    /// The node.
    pub node: String,
    /// Whether there was a record.
    pub forgotten: bool,
}
