//! Events of a node that converges, one JSON object per line. They are numbered, so that a driver
//! that lost its connection can continue where it was.
//!
//! They are stored and printed in the same form. `R` is the type of the result at their end, which
//! `homestak_api::v1::AgentEvent` names and this crate does not know.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::Change;
use crate::foreign::ForeignText;

/// An event with its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumberedEvent<R = Value> {
    /// Starts at 1.
    pub n: u64,
    /// The event.
    #[serde(flatten)]
    pub event: Event<R>,
}

/// Something that happened while a node converges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<R = Value> {
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
        result: R,
    },
}
