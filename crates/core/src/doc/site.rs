//! `site.yaml`: what holds for the whole site.
//!
//! In: a tree. Out: [`Site`], everything optional as written.
//! Never: secrets; those are in `secrets.yaml`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::address::Cidr;
use super::declare::document;
use super::decode::Spanned;
use super::scalar::{
    Bridge, Domain, Int, Name, Package, SiteId, TimeZone, Url, UserName, Versions,
};

document! {
    /// What holds for the whole site.
    #[derive(Debug, PartialEq)]
    Site as "the site" {
        /// 2 for a site with an `id`, which older programs would not respect; 1 before that.
        schema_version: Versions<1, 2>,
        /// Tells this site's guests from those of others. Random; `homestak` adds it when it first
        /// creates guests, and only `homestak site new-id` changes it.
        id: SiteId,
        /// One line for people.
        description: String,
        /// Values for documents that do not write their own.
        defaults: Defaults,
        /// Networks that nodes can be attached to, by name.
        networks: BTreeMap<String, Spanned<Network>>,
    }
}

document! {
    /// Values for documents that do not write their own.
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
        /// User for SSH to hosts; the user who runs the driver when left out.
        host_user old "ssh_user": UserName,
        /// User that exists on every node from first boot.
        vm_user old "automation_user" default "\"homestak\"": UserName,
        /// Packages on every node.
        packages: Vec<Spanned<Package>>,
        /// Bridge of the host that nodes are attached to.
        bridge default "\"vmbr0\"": Bridge,
        /// Network that nodes are attached to; a name under `networks`.
        network: Name,
        /// Address of the server; without one, nodes cannot pull.
        server_url old "spec_server": ServerUrl,
        /// Release that images are taken from. Without effect in this version.
        image_release old "packer_release" default "\"latest\"": String,
        /// Whether the subscription notice of hypervisors is removed.
        pve_remove_subscription_nag default "true": bool,
        /// Image of nodes that name none.
        image default "\"debian-12\"": Name,
        /// Template of containers that name none.
        template: String,
        /// Preset of nodes that name none.
        preset default "\"vm-small\"": Name,
        /// Storage on hosts that name none.
        datastore: String,
    }
}

document! {
    /// A network that nodes can be attached to.
    #[derive(Debug, PartialEq)]
    Network as "the network" {
        /// One line for people.
        description: String,
        /// Its addresses.
        cidr = required: Cidr,
        /// Its gateway.
        gateway: IpAddr,
        /// Its name servers.
        dns: Vec<Spanned<IpAddr>>,
        /// Bridge of the host that leads to it.
        bridge: Bridge,
        /// VLAN tag on that bridge.
        vlan: Int<1, 4094>,
    }
}

/// Address of the server; empty means that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(pub Option<Url>);

impl super::Decode for ServerUrl {
    fn decode(value: &super::Value, cx: &mut super::Context<'_>) -> Option<Self> {
        if cx.text(value)?.is_empty() {
            return Some(Self(None));
        }
        Url::decode(value, cx).map(|url| Self(Some(url)))
    }
    fn schema(definitions: &mut super::schema::Definitions) -> serde_json::Value {
        serde_json::json!({ "anyOf": [Url::schema(definitions), { "const": "" }] })
    }
}
