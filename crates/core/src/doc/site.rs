//! `site.yaml`: settings of the whole site.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::address::Cidr;
use super::declare::document;
use super::decode::Spanned;
use super::scalar::{
    Bridge, Domain, Int, Name, Package, PublishTarget, RepoPath, ServerAddress, SiteId, TimeZone,
    UserName, Versions,
};

document! {
    /// Settings of the whole site.
    #[derive(Debug, PartialEq)]
    Site as "the site" {
        /// 2 for a site with an `id`, which older versions do not support; otherwise 1.
        schema_version: Versions<1, 2>,
        /// Random id that identifies the guests of this site. Added when the first guests are
        /// created; changed only by `homestak site new-id`.
        id: SiteId,
        /// One-line description.
        description: String,
        /// Default values.
        defaults: Defaults,
        /// Networks of nodes, by name.
        networks: BTreeMap<String, Spanned<Network>>,
        /// Networks whose nodes may fetch their spec at first contact without a token, where the
        /// posture has `auth.method: network`. Loopback only when omitted.
        trusted_networks: Vec<Spanned<Cidr>>,
        /// Git repositories that `homestak server start --repos` serves, by name: absolute paths on
        /// the machine of the driver.
        repos: BTreeMap<String, Spanned<RepoPath>>,
    }
}

document! {
    /// Default values.
    #[derive(Debug, PartialEq)]
    Defaults as "defaults" {
        /// Gateway of nodes.
        gateway: IpAddr,
        /// Name servers of nodes.
        dns_servers: Vec<Spanned<IpAddr>>,
        /// DNS domain of nodes.
        domain: Domain,
        /// Time zone of nodes.
        timezone: TimeZone,
        /// User for SSH to hosts, in exports with `--compat legacy` only; defaults to the user who
        /// runs homestak.
        host_user old "ssh_user": UserName,
        /// User that is created on every node at first boot.
        vm_user old "automation_user" default "\"homestak\"": UserName,
        /// Packages on every node.
        packages: Vec<Spanned<Package>>,
        /// Bridge of the host for nodes.
        bridge default "\"vmbr0\"": Bridge,
        /// Network of nodes; a name under `networks`.
        network: Name,
        /// URL of the server, as nodes reach it. This machine's address towards each node, port
        /// 44443, when omitted.
        server_url old "spec_server": ServerUrl,
        /// Directory that a permanent server reads: an absolute path, or `USER@HOST:PATH` on
        /// another machine, over SSH. `HOMESTAK_PUBLISH_TO` overrides it.
        publish_to: PublishTarget,
        /// Release of images. No effect in this version.
        image_release old "packer_release" default "\"latest\"": String,
        /// Whether the subscription notice of hypervisors is removed.
        pve_remove_subscription_nag default "true": bool,
        /// Image of nodes that set none.
        image default "\"debian-12\"": Name,
        /// Template of containers that set none.
        template: String,
        /// Preset of nodes that set none.
        preset default "\"vm-small\"": Name,
        /// Storage of hosts that set none.
        datastore: String,
    }
}

document! {
    /// A network of nodes.
    #[derive(Debug, PartialEq)]
    Network as "the network" {
        /// One-line description.
        description: String,
        /// Address range.
        cidr = required: Cidr,
        /// Gateway.
        gateway: IpAddr,
        /// Name servers.
        dns: Vec<Spanned<IpAddr>>,
        /// Bridge of the host.
        bridge: Bridge,
        /// VLAN tag on that bridge.
        vlan: Int<1, 4094>,
    }
}

/// URL of the server; empty if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(pub Option<ServerAddress>);

impl super::Decode for ServerUrl {
    fn decode(value: &super::Value, cx: &mut super::Context<'_>) -> Option<Self> {
        if cx.text(value)?.is_empty() {
            return Some(Self(None));
        }
        ServerAddress::decode(value, cx).map(|url| Self(Some(url)))
    }
    fn schema(definitions: &mut super::schema::Definitions) -> serde_json::Value {
        serde_json::json!({ "anyOf": [ServerAddress::schema(definitions), { "const": "" }] })
    }
}
