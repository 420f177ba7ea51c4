//! `hosts/*.yaml`: physical machines, reached over SSH.
//!
//! In: a tree. Out: [`Host`], everything optional as written.
//! Never: Proxmox VE's API; that is `nodes/*.yaml`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::address::Cidr;
use super::declare::{choice, document};
use super::decode::Spanned;
use super::posture::{PermitRootLogin, YesNo};
use super::scalar::{Domain, Int, Name, Port, TimeZone, UserName, Version};
use super::spec::SshKeyId;

choice! {
    /// What an interface is.
    InterfaceType {
        /// A bridge that guests are attached to.
        Bridge = "bridge",
        /// A physical interface.
        Ethernet = "ethernet",
        /// Several interfaces used as one.
        Bond = "bond",
        /// A VLAN of another interface.
        Vlan = "vlan",
    }
}

document! {
    /// A physical machine.
    #[derive(Debug, PartialEq)]
    Host as "the host" {
        /// Always 1.
        schema_version: Version<1>,
        /// What kind of host it is, unless `nodes/` has a file of the same name.
        kind default "\"ssh\"": Name,
        /// Its name, for people; the file's name counts.
        host: String,
        /// DNS domain.
        domain: Domain,
        /// Address for SSH; `vmbr0`'s when left out.
        ip: IpAddr,
        /// Its network.
        network: HostNetwork,
        /// Its disks.
        storage: HostStorage,
        /// What it is made of. Without effect in this version.
        hardware: HostHardware,
        /// How it is reached.
        access: HostAccess,
        /// Its SSH server, as found.
        ssh: HostSsh,
        /// Time zone, instead of the site's.
        timezone: TimeZone,
    }
}

document! {
    /// The network of a host.
    #[derive(Debug, PartialEq)]
    HostNetwork as "network" {
        /// Interfaces by name.
        interfaces: BTreeMap<String, Spanned<Interface>>,
    }
}

document! {
    /// An interface of a host.
    #[derive(Debug, PartialEq)]
    Interface as "the interface" {
        /// What it is.
        kind ["type"]: InterfaceType,
        /// Its members.
        ports: Vec<Spanned<String>>,
        /// Its address.
        address: Cidr,
        /// The gateway behind it.
        gateway: IpAddr,
    }
}

document! {
    /// The disks of a host.
    #[derive(Debug, PartialEq)]
    HostStorage as "storage" {
        /// ZFS pools.
        zfs_pools: Vec<Spanned<ZfsPool>>,
    }
}

document! {
    /// A ZFS pool.
    #[derive(Debug, PartialEq)]
    ZfsPool as "the pool" {
        /// Its name.
        name = required: String,
        /// Its devices.
        devices: Vec<Spanned<String>>,
    }
}

document! {
    /// What a host is made of.
    #[derive(Debug, PartialEq)]
    HostHardware as "hardware" {
        /// CPU cores.
        cpu_cores: Int<1, 4096>,
        /// Memory in GiB.
        memory_gb: Int<1, 65536>,
    }
}

document! {
    /// How a host is reached.
    #[derive(Debug, PartialEq)]
    HostAccess as "access" {
        /// User for SSH.
        host_user old "ssh_user" default "\"root\"": UserName,
        /// Port for SSH.
        ssh_port default "22": Port,
        /// Keys that may log in, ids under `ssh_keys` in `secrets.yaml`. Without effect in this version.
        authorized_keys: Vec<Spanned<SshKeyId>>,
    }
}

document! {
    /// The SSH server of a host, as found.
    #[derive(Debug, PartialEq)]
    HostSsh as "ssh" {
        /// Whether root may log in; quote the word.
        permit_root_login: PermitRootLogin,
        /// Whether passwords are accepted; quote the word.
        password_authentication: YesNo,
    }
}
