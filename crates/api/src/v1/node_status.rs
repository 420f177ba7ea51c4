//! Nodes and tokens, as operators see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::node_job::JobStatus;
use super::report::{ReceivedReport, ReportState};

/// A node that a server knows. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ServedNode")]
pub struct NodeStatus {
    /// The guest's UUID.
    pub uuid: String,
    /// The node's name.
    pub name: String,
    /// Its manifest.
    pub manifest: String,
    /// The host it runs on.
    pub host: String,
    /// The generation of its spec that is published.
    pub generation: Option<u64>,
    /// When it enrolled.
    pub enrolled: Option<i64>,
    /// Until when its certificate is valid.
    pub certificate_expires: Option<i64>,
    /// When it was revoked.
    pub revoked: Option<i64>,
    /// Why it was revoked.
    pub revoke_reason: Option<String>,
    /// The address of its last request.
    pub address: Option<String>,
    /// The version of its agent.
    pub agent: Option<String>,
    /// When the server last received a request from it.
    pub last_contact: Option<i64>,
    /// When it last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<i64>,
    /// How far it was then, by its own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ReportState>,
    /// The generation of the spec that it last named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_generation: Option<u64>,
    /// How many differences it reported when it last converged or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<u64>,
    /// Why it failed, if it did when it last converged or failed; at most 500 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Nodes that a server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nodes {
    /// By name.
    pub nodes: Vec<NodeStatus>,
}

/// A node that a server knows, with what it reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeDetail {
    /// The node.
    #[serde(flatten)]
    pub node: NodeStatus,
    /// Its last reports, oldest first.
    pub reports: Vec<ReceivedReport>,
    /// Its last jobs that the server knows, newest first.
    #[serde(default)]
    pub jobs: Vec<JobStatus>,
}

/// A request to revoke something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Revocation {
    /// Why.
    pub reason: String,
}

/// A provisioning token, without the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenStatus {
    /// Its id.
    pub id: String,
    /// The node it is for.
    pub node: String,
    /// The guest it is for.
    pub uuid: String,
    /// When it was issued.
    pub issued: i64,
    /// When it expires.
    pub expires: Option<i64>,
    /// When it was used.
    pub used: Option<i64>,
    /// When it was revoked.
    pub revoked: Option<i64>,
}

/// What a server changed when it read everything again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reloaded {
    /// A line for each change.
    pub changes: Vec<String>,
}

/// Provisioning tokens that a server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// Oldest first.
    pub tokens: Vec<TokenStatus>,
}
