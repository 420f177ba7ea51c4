//! Specs of nodes.

use std::collections::BTreeMap;

use homestak_core::converge::Change;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::Diagnostic;

/// Every spec of the site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecList {
    /// By name.
    pub specs: Vec<SpecSummary>,
}

/// A spec of the site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecSummary {
    /// Its name.
    pub name: String,
    /// Its posture.
    pub posture: String,
    /// What it is for; may be empty.
    pub description: String,
}

/// A spec with its references resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecDetail {
    /// Its name.
    pub name: String,
    /// The spec.
    pub spec: ResolvedSpec,
    /// Where each value comes from, by its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origins: Option<Origins>,
}

/// A spec with its references resolved: the fields of `schema/spec.v1.json`, with values in place
/// of references.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResolvedSpec(pub serde_json::Map<String, serde_json::Value>);

/// Where values come from, by their paths such as `access.users[0].name`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Origins(
    #[schemars(with = "BTreeMap<String, String>")] pub serde_json::Map<String, serde_json::Value>,
);

/// Whether specs are valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecValidation {
    /// The specs that were checked.
    pub specs: Vec<String>,
    /// Whether there is no error.
    pub success: bool,
    /// Errors and notices.
    pub diagnostics: Vec<Diagnostic>,
}

/// How a node differs from its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecDiff {
    /// The node.
    pub node: String,
    /// Its spec.
    pub spec: String,
    /// The differences; empty when there are none.
    pub changes: Vec<Change>,
}
