//! What is remembered from one converge to the next.
//!
//! In: decisions. Out: [`State`]: what was expected, what is ours to take away, what is unfinished.
//! Never: secrets; content of files is remembered as a digest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::step::Step;

/// What a node remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// What each field should have been, by the id of its change.
    pub fields: BTreeMap<String, String>,
    /// What is there because of an earlier spec, and goes with it.
    pub managed: Managed,
    /// Steps that follow from others, and were not done when the last run ended.
    pub pending: BTreeSet<Step>,
    /// Whether packages were being installed when the last run ended.
    pub in_packages: bool,
}

/// What is there because of a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Managed {
    /// Packages that were not there before.
    pub packages: BTreeSet<String>,
    /// Users, and whether they can log in because of us.
    pub users: BTreeMap<String, bool>,
    /// Keys of users, without comments.
    pub keys: BTreeMap<String, BTreeSet<String>>,
    /// Units that were not running before.
    pub services: BTreeSet<String>,
    /// Files that were not there before.
    pub files: BTreeSet<String>,
}

impl Managed {
    /// Adds what another has, so that both can be taken away.
    pub fn with(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.packages.extend(other.packages.iter().cloned());
        for (user, made) in &other.users {
            let known = both.users.entry(user.clone()).or_insert(*made);
            *known = *known || *made;
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
