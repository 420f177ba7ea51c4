//! Nodes on this machine.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::string_enum::string_enum;

/// The nodes on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalNodes {
    /// The directory with nodes and images.
    pub root: String,
    /// The network of the nodes; none before the first one is created.
    pub network: Option<String>,
    /// The nodes.
    pub nodes: Vec<LocalNode>,
}

/// A node on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalNode {
    /// Its name.
    pub name: String,
    /// The manifest it belongs to.
    pub manifest: String,
    /// Its id.
    pub id: u32,
    /// Its identity.
    pub uuid: String,
    /// The site it belongs to.
    pub site: Option<String>,
    /// Its address.
    pub address: IpAddr,
    /// What it runs in.
    pub engine: LocalEngine,
    /// Virtual CPUs.
    pub cores: u32,
    /// Memory in MiB.
    pub memory: u64,
    /// The name of its image.
    pub image: String,
    /// Whether root in it is not root on this machine.
    pub isolated: bool,
    /// Whether it runs.
    pub running: bool,
}

string_enum! {
    /// What a node on this machine runs in.
    LocalEngine {
        /// A container.
        Container = "container",
        /// A virtual machine.
        Machine = "machine",
    }
}

/// What was removed from this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalCleanup {
    /// How many nodes.
    pub nodes: usize,
    /// How many leftovers of interrupted runs.
    pub leftovers: usize,
}
