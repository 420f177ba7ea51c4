//! What the agent reports of the machine it runs on.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::converge;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{Change, ChangedSince, Danger, Handling};
use super::resource::Resource;

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

/// What exists because of a spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Managed {
    /// Packages that were not installed before.
    pub packages: BTreeSet<String>,
    /// Users, and whether they can log in because of a spec.
    pub users: BTreeMap<String, bool>,
    /// Keys of users, without comments.
    pub keys: BTreeMap<String, BTreeSet<String>>,
    /// Units that did not run before.
    pub services: BTreeSet<String>,
    /// Files that did not exist before.
    pub files: BTreeSet<String>,
}

impl From<converge::Managed> for Managed {
    fn from(managed: converge::Managed) -> Self {
        Self {
            packages: managed.packages,
            users: managed.users,
            keys: managed.keys,
            services: managed.services,
            files: managed.files,
        }
    }
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
    pub mended: Vec<String>,
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
    pub drift: Drift,
}

/// A marker as it was written, perhaps by an earlier version of the agent: `phase`, `status`,
/// `spec`, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Marker(pub serde_json::Value);

/// Drift, and what was done about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// When the machine was last checked.
    pub looked: Option<Timestamp>,
    /// How often it was checked.
    pub looks: u64,
    /// Why nothing is corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// What is not corrected: why, by the id of the difference.
    pub refused: BTreeMap<String, String>,
    /// The id of the boot that uptimes refer to.
    pub boot: String,
    /// What differs now, by id.
    pub open: BTreeMap<String, OpenDrift>,
    /// What was corrected, newest last.
    pub recent: Vec<CorrectedDrift>,
    /// Fields that were corrected or could not be, by id.
    pub again: BTreeMap<String, RepeatedDrift>,
}

/// A difference that exists now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpenDrift {
    /// When it was first seen.
    pub seen: Timestamp,
    /// What has changed since the spec was last applied.
    pub since: ChangedSince,
    /// What the spec says.
    pub expected: String,
    /// What the machine has.
    pub found: String,
    /// What is done about it.
    pub handling: Handling,
    /// How a mistake here could cut the machine off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub danger: Option<Danger>,
    /// Why it was not corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A difference that was corrected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CorrectedDrift {
    /// Resource and field.
    pub id: String,
    /// When it was first seen.
    pub seen: Timestamp,
    /// When it was corrected.
    pub mended: Timestamp,
    /// What it is again.
    pub expected: String,
    /// What it had been changed to.
    pub found: String,
}

/// A field that was corrected or could not be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RepeatedDrift {
    /// When it was corrected, as uptimes in milliseconds.
    pub mended_at: Vec<u64>,
    /// How often in a row it could not be corrected.
    pub failed: u32,
    /// How often in a row something changed it back.
    pub fights: u32,
    /// Until when it is only reported, as an uptime in milliseconds.
    pub held_until: Option<u64>,
}

impl From<&converge::DriftState> for Drift {
    fn from(drift: &converge::DriftState) -> Self {
        let open = |open: &converge::OpenDrift| OpenDrift {
            seen: open.first_seen,
            since: open.cause.into(),
            expected: open.expected.clone(),
            found: open.found.clone(),
            handling: open.handling.into(),
            danger: open.danger.map(Danger::from),
            why: open.error.clone(),
        };
        let corrected = |mended: &converge::CorrectedDrift| CorrectedDrift {
            id: mended.id.clone(),
            seen: mended.first_seen,
            mended: mended.corrected,
            expected: mended.expected.clone(),
            found: mended.found.clone(),
        };
        let repeated = |again: &converge::FieldBackoff| RepeatedDrift {
            mended_at: again.corrected_at.clone(),
            failed: again.n_failures,
            fights: again.n_flaps,
            held_until: again.held_until,
        };
        Self {
            looked: drift.last_check,
            looks: drift.n_checks,
            trouble: drift.error.clone(),
            refused: drift.refused.clone(),
            boot: drift.boot_id.clone(),
            open: (drift.open.iter())
                .map(|(id, one)| (id.clone(), open(one)))
                .collect(),
            recent: drift.recent.iter().map(corrected).collect(),
            again: (drift.backoff.iter())
                .map(|(id, one)| (id.clone(), repeated(one)))
                .collect(),
        }
    }
}
