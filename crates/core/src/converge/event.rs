//! Events of a node that converges, one JSON object per line. They are numbered, so that a driver
//! that lost its connection can continue where it was.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::Change;
use crate::foreign::ForeignText;

/// An event with its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberedEvent {
    /// Starts at 1.
    pub n: u64,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// Something that happened while a node converges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The connection still works. Not part of the job; its number is 0.
    #[serde(rename = "alive")]
    Heartbeat,
    /// The differences, before the first step.
    Changes {
        /// By id.
        changes: Vec<Change>,
    },
    /// A step begins.
    Step {
        /// Description of the step, for display.
        #[serde(rename = "words")]
        description: ForeignText,
    },
    /// The changes must be confirmed over a new connection, or they are reverted.
    Confirm {
        /// Time limit, in seconds.
        within: u64,
    },
    /// The changes were reverted.
    Reverted {
        /// Why.
        #[serde(rename = "why")]
        reason: ForeignText,
    },
    /// The job has ended.
    End {
        /// Whether the node matches its spec.
        success: bool,
        /// The output of `config apply --json-output`: counts and times, or `error` and `message`.
        result: Value,
    },
}
