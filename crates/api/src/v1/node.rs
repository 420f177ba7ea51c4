//! Commands on nodes, and their logs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a command printed on several nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecResults {
    /// Whether it ended with 0 on every node.
    pub success: bool,
    /// Node by node.
    pub results: Vec<ExecResult>,
}

/// What a command printed on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecResult {
    /// The node.
    pub node: String,
    /// The exit code; none when it could not be run, or a signal ended it.
    pub exit: Option<i32>,
    /// What it printed on standard output.
    pub stdout: String,
    /// What it printed on standard error.
    pub stderr: String,
    /// Why it could not be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ExecError>,
}

/// Why a command could not be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecError {
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hints: Vec<String>,
}

/// The last lines of a node's console and of its journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeLogs {
    /// Lines of the console, where it can be read.
    pub console: Vec<String>,
    /// Lines of the journal.
    pub journal: Vec<String>,
}
