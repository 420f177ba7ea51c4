//! `nodes/*.yaml`: Proxmox VE hosts and how their API is reached.
//!
//! In: a tree. Out: [`PveNode`], everything optional as written.
//! Never: the token itself; only its id in `secrets.yaml`.

use std::net::IpAddr;

use super::declare::document;
use super::scalar::{Name, Url, UserName, Version};

document! {
    /// A Proxmox VE host.
    #[derive(Debug, PartialEq)]
    PveNode as "the node" {
        /// Always 1.
        schema_version: Version<1>,
        /// What kind of host it is.
        kind default "\"pve\"": Name,
        /// Name of the node in Proxmox VE; the file's name when left out.
        node: Name,
        /// The physical machine; a name from `hosts/`.
        host: Name,
        /// The host it is nested in; a name from `nodes/`.
        parent_node: Name,
        /// Address of the API.
        api_endpoint = required: Url,
        /// Token, an id under `api_tokens` in `secrets.yaml`; the file's name when left out.
        api_token: String,
        /// Storage for disks of guests; the site's when left out.
        datastore: String,
        /// Address of the machine.
        ip: IpAddr,
        /// User for SSH, instead of the site's.
        host_user old "ssh_user": UserName,
        /// SHA-256 fingerprint of the API's certificate; `homestak host trust` records it.
        fingerprint: String,
        /// File with the authority that signed the API's certificate, relative to the site.
        ca: String,
    }
}
