//! Records of nodes, restored from the hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use homestak_core::observed::GuestId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Records of nodes that were restored from the hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StateRebuild {
    /// Whether everything was recorded.
    pub success: bool,
    /// Whether nothing was written.
    pub dry_run: bool,
    /// The restored records.
    pub restored: Vec<RestoredNode>,
    /// How many nodes were on record before.
    pub known: usize,
    /// What was not recorded.
    pub refused: Vec<RefusedNode>,
    /// Nodes that this driver cannot log in to yet.
    pub without_keys: Vec<LockedNode>,
    /// Why hosts could not be reached, by host.
    pub unreachable: BTreeMap<String, String>,
    /// Other sites whose guests carry the name of a manifest of this site.
    pub other_sites: Vec<OtherSite>,
}

/// A node whose record was restored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RestoredNode {
    /// Its manifest.
    pub manifest: String,
    /// The host of the site it is on.
    pub host: String,
    /// Its name.
    pub node: String,
    /// The id of its guest.
    pub vmid: Option<GuestId>,
    /// Its address.
    pub address: Option<IpAddr>,
}

/// A node that was not recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedNode {
    /// Its manifest; may be empty.
    pub manifest: String,
    /// Its name, when it is about one node.
    pub node: Option<String>,
    /// Why.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
}

/// A node that this driver cannot log in to yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LockedNode {
    /// Its name.
    pub node: String,
    /// The host of the site it is on.
    pub host: String,
    /// The commands that let the driver in, for root on its console.
    pub commands: Vec<String>,
}

/// Another site with manifests of the same names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherSite {
    /// Its id.
    pub site: String,
    /// The manifests.
    pub manifests: BTreeSet<String>,
}
