//! `nodes/*.yaml`: Proxmox VE hosts and access to their API. The token itself is in `secrets.yaml`.

use std::net::IpAddr;

use super::declare::document;
use super::scalar::{Name, Url, UserName, Version};

document! {
    /// A Proxmox VE host.
    #[derive(Debug, PartialEq)]
    PveNode as "the node" {
        /// Always 1.
        schema_version: Version<1>,
        /// Kind of host.
        kind default "\"pve\"": Name,
        /// Name of the node in Proxmox VE; defaults to the file name.
        node: Name,
        /// The physical machine; a name from `hosts/`.
        host: Name,
        /// The host it runs on; a name from `nodes/`.
        parent_node: Name,
        /// URL of the API.
        api_endpoint = required: Url,
        /// Token; an id under `api_tokens` in `secrets.yaml`. Defaults to the file name.
        api_token: String,
        /// Storage for the disks of guests; defaults to that of the site.
        datastore: String,
        /// Address of the machine.
        ip: IpAddr,
        /// User for SSH; overrides the site default.
        host_user old "ssh_user": UserName,
        /// SHA-256 fingerprint of the API's certificate; `homestak host trust` records it.
        fingerprint: String,
        /// File with the CA certificate of the API, relative to the site.
        ca: String,
    }
}
