//! `manifests/*.yaml`, schema version 2: the machines of a deployment and their relations.

use super::address::Address;
use super::declare::{choice, document};
use super::decode::Spanned;
use super::scalar::{Int, Name, NodeName, Seconds, Url, Version, Vmid};
use super::timeouts::TimeoutSettings;
use std::net::IpAddr;

choice! {
    /// The shape of the graph.
    Pattern {
        /// Nodes side by side on one host.
        Flat = "flat",
        /// Nodes that run on other nodes: a tree.
        Tiered = "tiered",
        /// Peers, each with its own children if it is a hypervisor.
        Mesh = "mesh",
        /// One hub and its spokes.
        HubSpoke = "hub-spoke",
        /// Regions with links between them.
        Federated = "federated",
    }
}

choice! {
    /// Type of a node.
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

choice! {
    /// Who starts the configuration of a node. The result is the same.
    Mode {
        /// The driver copies the spec and runs the agent over SSH.
        Push = "push",
        /// The node fetches its spec on first boot.
        Pull = "pull",
        /// The driver triggers the node, which fetches its spec.
        Hybrid = "hybrid",
    }
}

choice! {
    /// What happens to the rest when a node fails.
    OnError {
        /// Stop and keep what was created.
        Stop = "stop",
        /// Remove what this run created, then stop.
        Rollback = "rollback",
        /// Continue with nodes that do not depend on the failed one.
        Continue = "continue",
    }
}

document! {
    /// A manifest: machines and their relations.
    #[derive(Debug, PartialEq)]
    Manifest as "the manifest" {
        /// Always 2.
        schema_version: Version<2>,
        /// Name of the manifest; must match the file name without `.yaml`.
        name: Name,
        /// One-line description.
        description: String,
        /// Shape of the graph. Derived if omitted, otherwise checked.
        pattern: Pattern,
        /// The hub of a hub-spoke manifest.
        hub: NodeName,
        /// Who starts the configuration of nodes.
        execution: Execution,
        /// How the manifest is applied.
        settings: Settings,
        /// The regions of a federated manifest.
        regions: Vec<Spanned<Region>>,
        /// Links between regions of a federated manifest.
        links: Vec<Spanned<Link>>,
        /// The machines.
        nodes = required: Vec<Spanned<Node>>,
    }
}

document! {
    /// The default mode of nodes.
    #[derive(Debug, PartialEq)]
    Execution as "execution" {
        /// Mode of nodes that set none.
        default_mode default "push": Mode,
    }
}

document! {
    /// How a manifest is applied.
    #[derive(Debug, PartialEq)]
    Settings as "settings" {
        /// Wait for SSH after boot, configure nodes over it, and check it in `manifest test`.
        verify_ssh default "true": bool,
        /// Remove what was created when a test fails.
        cleanup_on_failure default "true": bool,
        /// Seconds added to each wait per level of nesting.
        timeout_buffer default "60": Seconds,
        /// Time limits, in seconds. `--timeout` and `HOMESTAK_TIMEOUTS` override them.
        timeouts: TimeoutSettings,
        /// What happens to the rest when a node fails.
        on_error default "stop": OnError,
        /// Maximum number of nodes that are processed at the same time.
        parallelism default "4": Int<1, 64>,
        /// First vmid; a node without a `vmid` gets this plus its position in alphabetical order, from 0.
        vmid_base: Vmid,
        /// How the nodes are updated.
        updates: UpdateSettings,
    }
}

document! {
    /// How the nodes of a manifest are updated.
    #[derive(Debug, PartialEq)]
    UpdateSettings as "settings.updates" {
        /// Maximum number of nodes that are updated at the same time; the next ones follow when these are healthy.
        at_once default "1": Int<1, 1000>,
    }
}

document! {
    /// A region of a federated manifest.
    #[derive(Debug, PartialEq)]
    Region as "a region" {
        /// Name of the region.
        name = required: Name,
        /// One-line description.
        description: String,
        /// Host the region's nodes run on; a name from `nodes/`.
        host: Name,
    }
}

document! {
    /// A link between two regions.
    #[derive(Debug, PartialEq)]
    Link as "a link" {
        /// The two regions.
        between = required: Vec<Spanned<Name>>,
        /// One-line description.
        description: String,
    }
}

document! {
    /// One machine.
    #[derive(Debug, PartialEq)]
    Node as "the node" {
        /// Name and host name; unique in the manifest.
        name = required: NodeName,
        /// Type of node.
        kind ["type"] default "vm": NodeType,
        /// One-line description.
        description: String,
        /// Configuration; a name from `specs/`.
        spec: Name,
        /// Size; a name from `presets/`. Defaults to that of the site.
        preset: Name,
        /// Disk image of a `vm`, `pve` or `k3s` node; a name or alias from `images/`.
        image: Name,
        /// Template of a `ct` node; a name from `images/`, or a volume such as `local:vztmpl/x.tar.zst`.
        template: String,
        /// Whether a `ct` node is an unprivileged container.
        unprivileged default "true": bool,
        /// Id of the guest on its host.
        vmid: Vmid,
        /// Virtual CPUs; overrides the preset.
        cores: Int<1, 1024>,
        /// Memory in MiB; overrides the preset.
        memory: Int<16, 16777216>,
        /// Disk in GiB; overrides the preset.
        disk: Int<1, 131072>,
        /// The node it runs on; the host if omitted.
        parent: Name,
        /// Peers in a mesh; one side of each pair is enough.
        peers: Vec<Spanned<NodeName>>,
        /// Region of a federated manifest; children are in the region of their parent.
        region: Name,
        /// Host it runs on; a name from `nodes/`. Defaults to that of `-H`.
        host: Name,
        /// Who starts its configuration.
        execution: NodeExecution,
        /// Network it is attached to; a name from `networks` in `site.yaml`.
        network: Name,
        /// Address: `dhcp`, or a static one with or without a prefix.
        ip: Address,
        /// Gateway, for a static address.
        gateway: IpAddr,
        /// Name servers.
        dns: Vec<Spanned<IpAddr>>,
        /// Hardware requirements of a `pve` node. No effect in this version.
        hardware: Hardware,
        /// Access to a `pve` node.
        access: NodeAccess,
    }
}

document! {
    /// The mode of one node.
    #[derive(Debug, PartialEq)]
    NodeExecution as "execution" {
        /// Mode of this node.
        mode: Mode,
    }
}

document! {
    /// Hardware requirements of a `pve` node.
    #[derive(Debug, PartialEq)]
    Hardware as "hardware" {
        /// CPU cores.
        cpu_cores: Int<1, 4096>,
        /// Memory in GiB.
        memory_gb: Int<1, 65536>,
    }
}

document! {
    /// Access to a `pve` node.
    #[derive(Debug, PartialEq)]
    NodeAccess as "access" {
        /// Its API. No effect in this version: use `nodes/NAME.yaml`.
        api: ApiAccess,
    }
}

document! {
    /// The API of a `pve` node.
    #[derive(Debug, PartialEq)]
    ApiAccess as "access.api" {
        /// URL of the API.
        endpoint: Url,
        /// Token; an id under `api_tokens` in `secrets.yaml`.
        token: String,
        /// Storage for the disks of its guests.
        datastore: String,
    }
}
