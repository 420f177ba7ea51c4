//! The server of a site.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A server that listens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerStart {
    /// Its URL on this machine.
    pub url: String,
    /// Its port.
    pub port: u16,
    /// SHA-256 of the certificate that its own one is issued from, or of the operator's own one.
    pub fingerprint: String,
    /// Names of specs that it serves.
    pub specs: Vec<String>,
    /// The process id of a server in the background.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whether it was started by this command.
    pub started: bool,
    /// The file with the certificate of the authority that clients such as curl and git verify the server
    /// with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority_file: Option<String>,
    /// The file with the token for repositories, if they are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_token_file: Option<String>,
    /// Repositories, with those that are not served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repos: Vec<ServerRepo>,
}

/// A repository.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerRepo {
    /// Its name.
    pub name: String,
    /// Whether it is served.
    pub state: RepoState,
    /// The commit of `_working`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether it has uncommitted changes.
    #[serde(default)]
    pub modified: bool,
    /// Its size in bytes, packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Why it could not be prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a repository is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RepoState {
    /// It is served.
    Served,
    /// It could not be prepared; an earlier copy may be served.
    Failed,
    /// It was not found.
    Missing,
    /// It is excluded.
    Excluded,
}

/// Whether a server runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerStatus {
    /// Whether its process runs.
    pub running: bool,
    /// Its process id.
    pub pid: Option<u32>,
    /// Whether it answers.
    pub healthy: bool,
    /// Its port.
    pub port: u16,
    /// Its URL for this driver.
    #[serde(default)]
    pub url: String,
    /// How many nodes have a published spec, if it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// Why it is not healthy, if something answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A server that was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerStop {
    /// Whether it ran.
    pub stopped: bool,
}

/// What a server changed when it was reloaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerReload {
    /// A line for each change.
    pub changes: Vec<String>,
}

/// The settings of a server, and what was published for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerCheck {
    /// Whether a server would start with them.
    pub valid: bool,
    /// The directory of what was published.
    pub published: String,
    /// Names of nodes with a published spec.
    pub nodes: Vec<String>,
    /// Files that would not be served, with the reason.
    pub problems: Vec<String>,
}

/// Specs that were published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerPublish {
    /// By node.
    pub specs: Vec<PublishedNode>,
}

/// Keys that were replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerRotateKey {
    /// What the keys are for: `site` or `token`.
    pub key: String,
    /// The id of the key that is used from now on.
    pub current: String,
    /// The id of the site key that signs once the current one is retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Ids of keys that are no longer accepted.
    pub retired: Vec<String>,
    /// How many specs were signed again.
    pub signed: usize,
    /// Nodes that do not know the keys yet, or must enrol again.
    pub behind: Vec<String>,
}

/// Certificates that nodes recognise servers by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerTrust {
    /// SHA-256 of the site's authority.
    pub authority: String,
    /// SHA-256 of certificates that the operator provides.
    pub certificates: Vec<String>,
    /// How many specs were signed again to announce a change.
    pub signed: usize,
    /// Nodes that do not know the certificates yet.
    pub behind: Vec<String>,
}

/// A spec that was published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedNode {
    /// The node.
    pub node: String,
    /// Its manifest.
    pub manifest: String,
    /// Its host.
    pub host: String,
    /// The generation of its spec.
    pub generation: u64,
    /// Whether it is new.
    pub changed: bool,
}
