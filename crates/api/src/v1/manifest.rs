//! Manifests of the site.

use std::collections::BTreeMap;

use homestak_core::doc::manifest::{Mode, OnError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use serde_json::Value;

use super::diagnostic::Diagnostic;
use super::spec::{Origins, ResolvedSpec};
use super::string_enum::string_enum;

/// Every manifest of the site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestList {
    /// By name.
    pub manifests: Vec<ManifestSummary>,
}

/// A manifest of the site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestSummary {
    /// Its name.
    pub name: String,
    /// Its pattern; empty when it could not be read.
    pub pattern: String,
    /// How many nodes it has.
    pub nodes: usize,
    /// Whether it has no error.
    pub valid: bool,
    /// What it is for; may be empty.
    pub description: String,
}

/// Whether manifests are valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestValidation {
    /// The manifests that were checked.
    pub manifests: Vec<ValidatedManifest>,
    /// Whether there is no error.
    pub success: bool,
    /// Errors and notices.
    pub diagnostics: Vec<Diagnostic>,
}

/// Whether a manifest is valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidatedManifest {
    /// Its name.
    pub name: String,
    /// Whether it has no error.
    pub valid: bool,
    /// How many nodes it has.
    pub nodes: usize,
    /// Its pattern; empty when it could not be read.
    pub pattern: String,
}

/// A drawing of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestGraph {
    /// The manifest.
    pub name: String,
    /// The format.
    pub format: GraphFormat,
    /// The drawing.
    pub graph: String,
    /// The file it was written to.
    pub out: Option<String>,
}

string_enum! {
    /// The format of a drawing.
    GraphFormat {
        /// Text.
        Tree = "tree",
        /// SVG.
        Svg = "svg",
        /// Graphviz DOT.
        Dot = "dot",
        /// Mermaid.
        Mermaid = "mermaid",
    }
}

/// A manifest of version 1 as version 2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestMigration {
    /// Always `true`.
    pub success: bool,
    /// The manifest, as `schema/manifest.v2.json` describes it.
    pub manifest: MigratedManifest,
    /// Notices.
    pub diagnostics: Vec<Diagnostic>,
}

/// A manifest as `schema/manifest.v2.json` describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MigratedManifest(pub Value);

/// A manifest with its references resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestDetail {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its pattern.
    pub pattern: String,
    /// The hub, for the pattern `hub-spoke`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// The regions, for the pattern `federated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<Vec<Region>>,
    /// The links between regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<RegionLink>>,
    /// Its settings.
    pub settings: ManifestSettings,
    /// Its nodes.
    pub nodes: Vec<ResolvedNode>,
}

/// A region of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Its host.
    pub host: Option<String>,
}

/// A link between two regions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionLink {
    /// Their names.
    pub between: (String, String),
}

/// The settings of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestSettings {
    /// Whether a node is ready only when its SSH server answers.
    pub verify_ssh: bool,
    /// Whether `manifest test` destroys what it created when it fails.
    pub cleanup_on_failure: bool,
    /// Seconds added to each wait per level of nesting.
    pub timeout_buffer: u64,
    /// Time limits, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<BTreeMap<String, u64>>,
    /// What happens to the rest when a node fails.
    pub on_error: OnError,
    /// How many nodes are worked on at once.
    pub parallelism: u64,
}

/// A node of a manifest with its references resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResolvedNode {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    pub node_type: NodeType,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The host of the site it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The node it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its peers, for the pattern `mesh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<String>>,
    /// Its region, for the pattern `federated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// How many nodes it is nested in.
    pub depth: usize,
    /// Whether nodes can run on it.
    pub can_host: bool,
    /// How it gets its spec.
    pub mode: Mode,
    /// Its spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// Its preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u64>,
    /// Memory in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Disk in GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
    /// The image of a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The template of a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Whether a container is unprivileged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unprivileged: Option<bool>,
    /// Its id; none when the provider chooses one.
    pub vmid: Option<u32>,
    /// Its network.
    pub network: ResolvedNetwork,
    /// The packages that are installed on first boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<Vec<String>>,
    /// The hardware of a machine that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
    /// How a machine that exists is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<ResolvedAccess>,
    /// Its spec with references resolved; none without a spec.
    pub resolved_spec: Option<ResolvedSpec>,
    /// Where its values come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origins: Option<Origins>,
    /// Where the values of its spec come from.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub spec_origins: Option<Option<Origins>>,
}

/// Reads a field that may be null when it is present.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

string_enum! {
    /// What a node is.
    NodeType {
        /// A virtual machine.
        Vm = "vm",
        /// A container.
        Ct = "ct",
        /// A Proxmox VE hypervisor.
        Pve = "pve",
        /// A Kubernetes node.
        K3s = "k3s",
    }
}

/// The network of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResolvedNetwork {
    /// The name of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its address with prefix, or `dhcp`.
    pub address: String,
    /// The gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Name servers.
    pub dns: Vec<String>,
    /// The bridge of the host.
    pub bridge: String,
    /// The VLAN tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

/// The hardware of a machine that exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hardware {
    /// CPU cores.
    pub cpu_cores: Value,
    /// Memory in GB.
    pub memory_gb: Value,
}

/// How a machine that exists is reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResolvedAccess {
    /// Its API.
    pub api: ResolvedApi,
}

/// The API of a machine that exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResolvedApi {
    /// Its URL.
    pub endpoint: Option<String>,
    /// The name of its token among the secrets.
    pub token: Option<String>,
    /// The storage for disks.
    pub datastore: Option<String>,
}
