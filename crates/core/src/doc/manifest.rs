//! `manifests/*.yaml`, schema version 2: which machines there are and how they hang together.
//!
//! In: a tree. Out: [`Manifest`], everything optional as written.
//! Never: looking beyond the document; references stay names.

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
        /// Nodes on nodes: a tree.
        Tiered = "tiered",
        /// Peers that know each other, each with nodes of its own if it hosts.
        Mesh = "mesh",
        /// One hub in the middle, spokes around it.
        HubSpoke = "hub-spoke",
        /// Regions with local tiers and links between them.
        Federated = "federated",
    }
}

choice! {
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

choice! {
    /// Who starts the configuration of a node. The end state is the same.
    Mode {
        /// The driver copies the spec and runs the agent over SSH.
        Push = "push",
        /// The node fetches its spec by itself on first boot.
        Pull = "pull",
        /// The driver triggers, the node does the rest.
        Hybrid = "hybrid",
    }
}

choice! {
    /// What happens to the rest when a node fails.
    OnError {
        /// Halt, leave what is there.
        Stop = "stop",
        /// Remove what this run created, then halt.
        Rollback = "rollback",
        /// Go on with nodes that do not depend on the failed one.
        Continue = "continue",
    }
}

document! {
    /// A manifest: machines and their relations.
    #[derive(Debug, PartialEq)]
    Manifest as "the manifest" {
        /// Always 2.
        schema_version: Version<2>,
        /// Name of the manifest; the file's name without `.yaml`.
        name: Name,
        /// One line for people.
        description: String,
        /// Shape of the graph. Derived when left out; checked when written.
        pattern: Pattern,
        /// The node in the middle of a hub-spoke manifest.
        hub: NodeName,
        /// Who starts the configuration of nodes.
        execution: Execution,
        /// How the manifest is carried out.
        settings: Settings,
        /// The regions of a federated manifest.
        regions: Vec<Spanned<Region>>,
        /// Which regions of a federated manifest are joined.
        links: Vec<Spanned<Link>>,
        /// The machines.
        nodes = required: Vec<Spanned<Node>>,
    }
}

document! {
    /// The mode of nodes that do not name one.
    #[derive(Debug, PartialEq)]
    Execution as "execution" {
        /// Mode of all nodes without one of their own.
        default_mode default "push": Mode,
    }
}

document! {
    /// How a manifest is carried out.
    #[derive(Debug, PartialEq)]
    Settings as "settings" {
        /// Wait for SSH after boot, configure nodes over it, and check it in `manifest test`.
        verify_ssh default "true": bool,
        /// Remove what was created when a test fails.
        cleanup_on_failure default "true": bool,
        /// Seconds added to each wait per level of nesting.
        timeout_buffer default "60": Seconds,
        /// Time limits, in seconds. `--timeout` and `HOMESTAK_TIMEOUTS` come before them.
        timeouts: TimeoutSettings,
        /// What happens to the rest when a node fails.
        on_error default "stop": OnError,
        /// How many nodes are worked on at once.
        parallelism default "4": Int<1, 64>,
        /// First vmid; each node without its own gets this plus its rank by name.
        vmid_base: Vmid,
    }
}

document! {
    /// A region of a federated manifest.
    #[derive(Debug, PartialEq)]
    Region as "a region" {
        /// Name of the region.
        name = required: Name,
        /// One line for people.
        description: String,
        /// Host the region's nodes run on; a name from `nodes/`.
        host: Name,
    }
}

document! {
    /// A link between two regions.
    #[derive(Debug, PartialEq)]
    Link as "a link" {
        /// The two regions that are joined.
        between = required: Vec<Spanned<Name>>,
        /// One line for people.
        description: String,
    }
}

document! {
    /// One machine.
    #[derive(Debug, PartialEq)]
    Node as "the node" {
        /// Identity and host name; unique in the manifest.
        name = required: NodeName,
        /// What it is.
        kind ["type"] default "vm": NodeType,
        /// One line for people.
        description: String,
        /// What it becomes; a name from `specs/`.
        spec: Name,
        /// How big it is; a name from `presets/`. Defaults to the site's.
        preset: Name,
        /// Disk image of a `vm`, `pve` or `k3s` node; a name or alias from `images/`.
        image: Name,
        /// Template of a `ct` node; a name from `images/`, or a volume such as `local:vztmpl/x.tar.zst`.
        template: String,
        /// Whether a `ct` node runs without privileges.
        unprivileged default "true": bool,
        /// Id of the guest on its host.
        vmid: Vmid,
        /// Virtual CPUs, instead of the preset's.
        cores: Int<1, 1024>,
        /// Memory in MiB, instead of the preset's.
        memory: Int<16, 16777216>,
        /// Disk in GiB, instead of the preset's.
        disk: Int<1, 131072>,
        /// The node it runs on; without one it runs on the host.
        parent: Name,
        /// Nodes of a mesh that it belongs together with; naming one side is enough.
        peers: Vec<Spanned<NodeName>>,
        /// Region of a federated manifest; children live in their parent's.
        region: Name,
        /// Host it runs on, a name from `nodes/`; the one of `-H` when left out.
        host: Name,
        /// Who starts its configuration.
        execution: NodeExecution,
        /// Network it is attached to; a name from `networks` in `site.yaml`.
        network: Name,
        /// Address: `dhcp`, or a fixed one with or without a prefix.
        ip: Address,
        /// Gateway, for a fixed address.
        gateway: IpAddr,
        /// Name servers.
        dns: Vec<Spanned<IpAddr>>,
        /// What a `pve` node must have under it. Without effect in this version.
        hardware: Hardware,
        /// How a `pve` node is reached.
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
    /// What a `pve` node must have under it.
    #[derive(Debug, PartialEq)]
    Hardware as "hardware" {
        /// CPU cores.
        cpu_cores: Int<1, 4096>,
        /// Memory in GiB.
        memory_gb: Int<1, 65536>,
    }
}

document! {
    /// How a `pve` node is reached.
    #[derive(Debug, PartialEq)]
    NodeAccess as "access" {
        /// Its API. Without effect in this version: a host is described by `nodes/NAME.yaml`.
        api: ApiAccess,
    }
}

document! {
    /// The API of a `pve` node.
    #[derive(Debug, PartialEq)]
    ApiAccess as "access.api" {
        /// Address of the API.
        endpoint: Url,
        /// Token, an id under `api_tokens` in `secrets.yaml`.
        token: String,
        /// Storage for disks of its guests.
        datastore: String,
    }
}
