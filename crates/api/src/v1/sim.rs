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
    /// The number of its guests; none if it never ran.
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
    /// Its address in the simulated network.
    pub address: Option<String>,
    /// The ids of the guests it is in, outermost first.
    pub guests: Vec<u32>,
    /// The URL of its API.
    pub url: String,
    /// The SHA-256 fingerprint of its certificate.
    pub fingerprint: String,
}

/// The result of `sim serve`: a simulator that runs until it is interrupted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimServe {
    /// The URL of its API.
    pub url: String,
    /// The SHA-256 fingerprint of its certificate.
    pub fingerprint: String,
    /// The directory with its state, when it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// A token with all privileges; only when the state is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A user with all privileges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The password of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// The result of `sim stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimStop {
    /// Whether it was running, and was stopped.
    pub stopped: bool,
}

/// The result of `sim reset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimReset {
    /// Whether there was state to remove.
    pub forgotten: bool,
}

/// The result of `sim replay`: how well the simulator agrees with recordings of a real host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimReplay {
    /// The report, as text.
    pub report: String,
}

/// Where a simulator is served, in the file `endpoint.json` of its directory. Only its user may
/// read it: it has tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimEndpoint {
    /// The address of the API.
    pub url: String,
    /// The SHA-256 fingerprint of its certificate, as `AA:BB:...`.
    pub fingerprint: String,
    /// Its self-signed certificate.
    pub certificate: String,
    /// The token that may do everything, `user@realm!name=secret`.
    pub token: String,
    /// The process id of the server.
    pub pid: u32,
    /// Running nested hypervisors, each with its own API.
    pub inside: Vec<SimNestedEndpoint>,
}

/// A nested hypervisor and the address of its API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SimNestedEndpoint {
    /// Its simulated address, which clients connect to.
    pub address: Option<String>,
    /// Its name, also the name of its host.
    pub name: String,
    /// The ids of the guests that contain it, outermost first, its own last.
    pub guests: Vec<u32>,
    /// The real URL of its API.
    pub url: String,
    /// The SHA-256 fingerprint of the certificate.
    pub fingerprint: String,
    /// The certificate.
    pub certificate: String,
    /// A token with all privileges.
    pub token: String,
}
