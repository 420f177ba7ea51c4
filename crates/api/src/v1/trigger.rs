//! Triggers: what starts runs of nodes through the server. Times are in seconds since 1970.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The answer to a request of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HookAnswer {
    /// How many jobs were queued: none for nodes that have one in the queue or have not enrolled.
    pub jobs: usize,
}

/// What starts runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Triggers {
    /// Webhooks, by name.
    pub webhooks: Vec<WebhookStatus>,
    /// Repositories, by address and branch.
    pub repositories: Vec<RepositoryStatus>,
}

/// A webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookStatus {
    /// Its name.
    pub name: String,
    /// How many nodes it starts runs of.
    pub nodes: usize,
    /// Whether the server has a usable secret; otherwise all requests are refused.
    pub has_secret: bool,
    /// When a request was last accepted, if that was within a day.
    pub accepted: Option<i64>,
}

/// A branch of a repository that is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepositoryStatus {
    /// The address.
    pub repo: String,
    /// The branch; none for the default one.
    pub branch: Option<String>,
    /// How many nodes it starts runs of.
    pub nodes: usize,
    /// Whether commits must be signed.
    pub signed: bool,
    /// The newest commit that started runs, or that was there at the first check.
    pub commit: Option<String>,
    /// When it was first seen.
    pub changed: Option<i64>,
    /// A newer commit that was refused.
    pub refused: Option<String>,
    /// Why it was refused.
    pub reason: Option<String>,
    /// When it was last checked.
    pub checked: Option<i64>,
    /// Why the last check failed.
    pub error: Option<String>,
}
