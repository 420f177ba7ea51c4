//! Plans: what a run would do, and why.

use homestak_core::doc::manifest::{Mode, OnError};
use homestak_core::plan::Plan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run would do. A file with it can be applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestPlan {
    /// The plan.
    #[serde(flatten)]
    pub plan: Plan,
    /// The options that the plan was made with.
    pub options: PlanOptions,
}

/// The options that a plan was made with, so that applying it makes the same plan again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanOptions {
    /// The manifest's file, when it is not one of the site.
    pub file: Option<String>,
    /// The manifest itself, as JSON, when it was passed as an argument.
    pub json: Option<String>,
    /// The host of nodes that name none.
    pub host: Option<String>,
    /// How nodes get their spec, instead of as in the manifest.
    pub mode: Option<Mode>,
    /// Whether guests that the manifest no longer names are destroyed.
    pub prune: bool,
    /// How many levels of nodes.
    pub depth: Option<usize>,
    /// What happens to the rest when a node fails.
    pub on_error: Option<OnError>,
    /// How many nodes are worked on at once.
    pub parallelism: Option<usize>,
    /// Whether the site had no id before, so that the plan's is new.
    pub site_is_new: bool,
}
