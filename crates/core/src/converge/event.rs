//! What a node says while it converges, one line of JSON each.
//!
//! In: changes, steps, results. Out: [`Event`]s, numbered, so that a driver that lost its
//! connection goes on where it was.
//! Never: content of files or secrets beyond what changes show.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::Change;
use crate::foreign::ForeignText;

/// A numbered event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbered {
    /// Counts from 1.
    pub n: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Something that happened while a node converges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Whoever follows a job is still there, and so is the node. It is not part of the job, and its
    /// number is 0.
    Alive,
    /// What differs, before anything is done.
    Changes {
        /// By id.
        changes: Vec<Change>,
    },
    /// A step begins.
    Step {
        /// What is done, for a person.
        words: ForeignText,
    },
    /// Someone must reach the node anew and say so, or everything is taken back.
    Confirm {
        /// How long that may take, in seconds.
        within: u64,
    },
    /// It was taken back.
    Reverted {
        /// Why.
        why: ForeignText,
    },
    /// It is over.
    End {
        /// Whether the node is as its spec says.
        success: bool,
        /// What `config apply --json-output` says: counts and times, or `error` and `message`.
        result: Value,
    },
}
