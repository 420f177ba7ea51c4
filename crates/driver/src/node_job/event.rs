//! What happens while a job is submitted and followed.

use std::sync::Arc;

use homestak_api::v1::node_job::JobState;
use homestak_api::v1::node_update::JobRoute;

/// An event of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// It was submitted, or is started over SSH.
    Submitted {
        /// Its id.
        id: String,
        /// How it reaches the node.
        route: JobRoute,
    },
    /// It has another state.
    State(JobState),
    /// Output of the node, as it is. It may end within a line.
    Output(String),
    /// The node has not taken it so far.
    NotTaken {
        /// When the node last contacted the server, in seconds since 1970.
        last_contact: Option<i64>,
    },
    /// What is waited for.
    Waiting(String),
}

/// Receives the events of a job.
pub type JobObserver = Arc<dyn Fn(JobEvent) + Send + Sync>;
