//! Answers of a server that belong to no resource: its health, names of specs, refusals.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A server that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

/// The specs of a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecNames {
    /// Their names, sorted.
    pub specs: Vec<String>,
}

/// A refusal of an endpoint outside `/v1/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorDetail,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// The code of the error, such as `E301`.
    pub code: String,
    /// Why the request was refused.
    pub message: String,
}

/// A refusal of an endpoint below `/v1/` (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Always `about:blank`: the status identifies the problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The name of the status.
    pub title: String,
    /// The status.
    pub status: u16,
    /// Why the request was refused.
    pub detail: String,
    /// The code of the error, such as `E301`.
    pub code: String,
}

/// A report that was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportAccepted {
    /// Its number; later reports have higher ones.
    pub id: i64,
}
