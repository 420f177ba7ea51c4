//! Differences between a node and its spec.

use homestak_core::converge;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;

/// One field of one resource that is not as the spec says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Resource and field: the same in every run and on every node.
    pub id: String,
    /// The resource, such as `user:ops`.
    pub resource: String,
    /// The property that differs.
    pub field: String,
    /// What the spec says. The same as `found` where neither is shown.
    pub expected: String,
    /// What the node has.
    pub found: String,
    /// What has changed since the node was last configured.
    pub since: ChangedSince,
    /// How a mistake here could cut the node off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub danger: Option<Danger>,
    /// What is done about it.
    pub handling: Handling,
}

impl From<&converge::Change> for Change {
    fn from(change: &converge::Change) -> Self {
        Self {
            id: change.id.clone(),
            resource: change.resource.clone(),
            field: change.field.clone(),
            expected: change.expected.to_string(),
            found: change.found.to_string(),
            since: change.cause.into(),
            danger: change.danger.map(Danger::from),
            handling: change.handling.into(),
        }
    }
}

/// Converts changes.
pub fn changes<'a>(changes: impl IntoIterator<Item = &'a converge::Change>) -> Vec<Change> {
    changes.into_iter().map(Change::from).collect()
}

words! {
    /// What has changed since a node was last configured.
    ChangedSince from converge::ChangeCause {
        /// It was never configured.
        FirstRun = "first",
        /// The spec.
        Spec = "spec",
        /// The node.
        Node = "node",
    }
}

words! {
    /// How a mistake could cut a node off.
    Danger from converge::Danger {
        /// Address, gateway or name servers.
        Network = "network",
        /// The SSH server.
        Sshd = "sshd",
        /// Becoming root.
        Sudo = "sudo",
        /// Who may log in.
        Users = "users",
    }
}

words! {
    /// What is done about a difference.
    Handling from converge::Handling {
        /// It is corrected.
        Enforce = "enforce",
        /// It is reported.
        Report = "report",
        /// It is ignored.
        Ignore = "ignore",
    }
}
