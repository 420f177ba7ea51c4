//! The site: where it is, and what is in it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::Diagnostic;

/// The site that is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteDetail {
    /// Its directory, or `stock` for the built-in one.
    pub site: String,
    /// What named the directory.
    pub chosen_by: String,
    /// The search path.
    pub looked_at: Vec<SiteCandidate>,
    /// How many documents of each kind it has.
    #[schemars(with = "BTreeMap<String, usize>")]
    pub documents: serde_json::Map<String, serde_json::Value>,
    /// The state of its secrets: `none`, `plain`, `sealed` or `cannot be opened`.
    pub secrets: String,
    /// The state directory.
    pub state: String,
    /// Its id, once it has one.
    pub id: Option<String>,
    /// Why its id is not known.
    pub id_error: Option<String>,
}

/// One entry of the search path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteCandidate {
    /// What named it, such as `$HOMESTAK_SITE_CONFIG`.
    pub by: String,
    /// The directory, when one is named.
    pub path: Option<String>,
    /// What was found there.
    pub outcome: String,
}

/// A new site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteInit {
    /// Always `true`.
    pub success: bool,
    /// Its directory.
    pub site: String,
    /// The files that were written.
    pub files: Vec<String>,
}

/// Whether the documents of a site are valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteValidation {
    /// How many documents it has.
    pub documents: usize,
    /// Whether there is no error.
    pub success: bool,
    /// Errors and notices.
    pub diagnostics: Vec<Diagnostic>,
}

/// Another id of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteNewId {
    /// Always `true`.
    pub success: bool,
    /// The id it has now.
    pub id: String,
    /// The id it had before.
    pub before: Option<String>,
    /// The file it was written to; none when nothing was changed.
    pub file: Option<String>,
}
