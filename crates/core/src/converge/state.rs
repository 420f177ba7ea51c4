//! The state that a node stores from one run to the next: desired values, what is managed, and what
//! is unfinished. It holds no secrets; content of files is stored as a digest.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::step::ConvergeStep;

/// The stored state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The desired value of each field, by id.
    pub fields: BTreeMap<String, String>,
    /// What exists because of a spec, and is removed when no spec lists it.
    pub managed: Managed,
    /// Follow-up steps that had not run when the last run ended.
    pub pending: BTreeSet<ConvergeStep>,
    /// Whether packages were being installed when the last run ended.
    pub in_packages: bool,
}

/// What exists because of a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Managed {
    /// Packages that were not installed before.
    pub packages: BTreeSet<String>,
    /// Users, and whether only the spec lets them log in.
    pub users: BTreeMap<String, bool>,
    /// Keys of users, without comments.
    pub keys: BTreeMap<String, BTreeSet<String>>,
    /// Units that were not running before.
    pub services: BTreeSet<String>,
    /// Files that did not exist before.
    pub files: BTreeSet<String>,
}

impl Managed {
    /// Returns the union of both.
    pub fn with(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.packages.extend(other.packages.iter().cloned());
        for (user, created) in &other.users {
            let known = both.users.entry(user.clone()).or_insert(*created);
            *known = *known || *created;
        }
        for (user, keys) in &other.keys {
            let known = both.keys.entry(user.clone()).or_default();
            known.extend(keys.iter().cloned());
        }
        both.services.extend(other.services.iter().cloned());
        both.files.extend(other.files.iter().cloned());
        both
    }
}
