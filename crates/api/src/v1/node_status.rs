//! Nodes and tokens, as operators see them.

use serde::{Deserialize, Serialize};

/// A node that a server knows. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// When it was last heard from.
    pub last_contact: Option<i64>,
}

/// Nodes that a server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// By name.
    pub nodes: Vec<NodeStatus>,
}

/// A request to revoke something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Revocation {
    /// Why.
    pub reason: String,
}

/// A provisioning token, without the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Provisioning tokens that a server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Oldest first.
    pub tokens: Vec<TokenStatus>,
}
