//! The simulator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A simulator that keeps its state in a directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimStatus {
    /// The directory.
    pub directory: String,
    /// Whether it runs.
    pub running: bool,
    /// How many guests it has; none before it first ran.
    pub guests: Option<usize>,
    /// The URL of its API while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The SHA-256 fingerprint of its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The id of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Simulated hosts inside its guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Vec<SimNested>>,
}

/// A simulated host inside a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimNested {
    /// Its name.
    pub name: String,
    /// Its address among the guests.
    pub address: Option<String>,
    /// The ids of the guests it is in, outermost first.
    pub guests: Vec<u32>,
    /// The URL of its API.
    pub url: String,
    /// The SHA-256 fingerprint of its certificate.
    pub fingerprint: String,
}

/// A simulator that serves until it is interrupted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimServe {
    /// The URL of its API.
    pub url: String,
    /// The SHA-256 fingerprint of its certificate.
    pub fingerprint: String,
    /// The directory with its state, when it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// A token that may do everything, when the state is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A user who may do everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The password of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// A simulator that was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimStop {
    /// Whether it ran.
    pub stopped: bool,
}

/// A simulator whose state was removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimReset {
    /// Whether it had any.
    pub forgotten: bool,
}

/// How well the simulator agrees with recordings of a real host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimReplay {
    /// The report, for a person.
    pub report: String,
}
