//! Jobs of nodes: what an operator has a node do, and the outcome. Times are in seconds since
//! 1970.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::string_enum::string_enum;

string_enum! {
    /// What a job does.
    JobKind {
        /// Fetches the newest spec and applies it, also if nothing changed.
        Converge = "converge",
        /// Compares the node with its spec, and changes nothing.
        Check = "check",
        /// Installs newer versions of packages.
        Update = "update",
        /// Restarts the node.
        Reboot = "reboot",
        /// Returns the node's state, facts and last journal lines.
        Collect = "collect",
    }
}

string_enum! {
    /// Which packages an update installs.
    UpdateScope {
        /// None.
        None = "none",
        /// Those of security suites.
        Security = "security",
        /// All that have a newer version.
        All = "all",
    }
}

string_enum! {
    /// How far a job is.
    JobState {
        /// The node has not taken it yet.
        Queued = "queued",
        /// The node has taken it, and has not reported its end.
        Taken = "taken",
        /// It succeeded.
        Succeeded = "succeeded",
        /// It failed.
        Failed = "failed",
        /// The node refused it, and did nothing.
        Refused = "refused",
        /// It was cancelled before the node took it.
        Cancelled = "cancelled",
        /// The node did not take it in time.
        Expired = "expired",
        /// The node took it and did not report its end in time: what it did is unknown.
        Lost = "lost",
    }
}

impl JobKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Converge,
        Self::Check,
        Self::Update,
        Self::Reboot,
        Self::Collect,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Converge => "converge",
            Self::Check => "check",
            Self::Update => "update",
            Self::Reboot => "reboot",
            Self::Collect => "collect",
        }
    }
}

impl UpdateScope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::None, Self::Security, Self::All];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Security => "security",
            Self::All => "all",
        }
    }
}

impl JobState {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Taken => "taken",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Lost => "lost",
        }
    }

    /// Returns whether it has ended, as far as is known: a job that is lost may still be reported.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Queued | Self::Taken => false,
            Self::Succeeded
            | Self::Failed
            | Self::Refused
            | Self::Cancelled
            | Self::Expired
            | Self::Lost => true,
        }
    }
}

/// How a job is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JobOptions {
    /// Whether it is carried out outside the node's window, and above the limit of restarts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Whether an update is only simulated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Whether an update leaves out the restart that it needs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_reboot: bool,
    /// Which packages an update installs, instead of those in the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<UpdateScope>,
}

/// A job that an operator submits to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobSubmission {
    /// The signed job.
    pub statement: String,
}

/// A job as a server offers it to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobOffer {
    /// Its id.
    pub id: String,
    /// The signed job; none when a trigger of the node's spec started it, which can only converge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// What started it, such as `webhook deploy` or `git`, with the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
}

/// Jobs that a node has not taken yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobOffers {
    /// Oldest first.
    pub jobs: Vec<JobOffer>,
}

/// What a node reports of a job that it took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobReport {
    /// How many bytes of the output were sent before.
    pub offset: u64,
    /// More output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<JobOutcome>,
}

/// How a job ended. It is the node's own account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobOutcome {
    /// `succeeded`, `failed` or `refused`.
    pub state: JobState,
    /// Why it failed or was refused, or why an update that was simulated would be refused now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What it found or did.
    pub result: JobResult,
}

/// What a job found or did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JobResult {
    /// Whether it changed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
    /// The generation of the spec that was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Fields that differ from the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// Packages that were updated, or would be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageUpdate>,
    /// Whether an earlier installation of packages is not complete: an update would complete it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<bool>,
    /// Whether the node must be restarted for an update to take effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboot_needed: Option<bool>,
    /// Whether the node was restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebooted: Option<bool>,
    /// What `collect` returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<Collected>,
}

/// A package with a newer version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PackageUpdate {
    /// Its name.
    pub name: String,
    /// The version that was installed.
    pub from: String,
    /// The newer version.
    pub to: String,
    /// Whether it is from a security suite.
    pub security: bool,
}

/// What a node is and reports of itself; no contents of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Collected {
    /// As `homestak status` prints: `complete`, `differs`, `failed` or `unknown`.
    pub status: String,
    /// The version of the agent.
    pub agent: String,
    /// Facts by name, such as `kernel`, `uptime` and `disk`.
    pub facts: std::collections::BTreeMap<String, String>,
    /// Fields that differ from the spec, as of the last check.
    pub drift: Vec<String>,
    /// The last journal lines of homestak's own units.
    pub journal: Vec<String>,
    /// Whether anything was left out because of its size.
    pub truncated: bool,
}

/// A job as the server records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobStatus {
    /// Its id.
    pub id: String,
    /// The node's name.
    pub node: String,
    /// The guest's UUID.
    pub uuid: String,
    /// What it does.
    pub kind: JobKind,
    /// Who or what started it.
    pub origin: String,
    /// How far it is.
    pub state: JobState,
    /// When it was issued.
    pub issued: i64,
    /// Until when the node may take it.
    pub expires: i64,
    /// How many seconds it may take.
    pub time_limit: u64,
    /// When the node took it.
    pub taken: Option<i64>,
    /// When it ended or was cancelled.
    pub ended: Option<i64>,
    /// How it ended, by the node's own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<JobOutcome>,
}

/// Jobs, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Jobs {
    /// Newest first.
    pub jobs: Vec<JobStatus>,
}

/// A job with its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: JobStatus,
    /// Its output from the requested byte on.
    pub output: String,
    /// The byte after the end of `output`, to request what follows.
    pub next: u64,
    /// Whether later output was dropped because there was too much.
    #[serde(default)]
    pub truncated: bool,
}
