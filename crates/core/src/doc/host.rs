//! `hosts/*.yaml`: physical machines that are reached over SSH.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::address::Cidr;
use super::declare::{choice, document};
use super::decode::Spanned;
use super::posture::{PermitRootLogin, YesNo};
use super::scalar::{Domain, Int, Name, Port, TimeZone, UserName, Version};
use super::spec::SshKeyId;

choice! {
    /// Type of a network interface.
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
        /// Kind of host, unless `nodes/` has a file of the same name.
        kind default "\"ssh\"": Name,
        /// Display name; the host is identified by its file name.
        host: String,
        /// DNS domain.
        domain: Domain,
        /// Address for SSH.
        ip: IpAddr,
        /// Network configuration.
        network: HostNetwork,
        /// Disks.
        storage: HostStorage,
        /// Hardware. No effect in this version.
        hardware: HostHardware,
        /// SSH access.
        access: HostAccess,
        /// Settings of its SSH server.
        ssh: HostSsh,
        /// Time zone; overrides the site default.
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
        /// Type of interface.
        kind ["type"]: InterfaceType,
        /// Member interfaces.
        ports: Vec<Spanned<String>>,
        /// Its address.
        address: Cidr,
        /// Its gateway.
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
    /// The hardware of a host.
    #[derive(Debug, PartialEq)]
    HostHardware as "hardware" {
        /// CPU cores.
        cpu_cores: Int<1, 4096>,
        /// Memory in GiB.
        memory_gb: Int<1, 65536>,
    }
}

document! {
    /// SSH access to a host.
    #[derive(Debug, PartialEq)]
    HostAccess as "access" {
        /// User for SSH.
        host_user old "ssh_user" default "\"root\"": UserName,
        /// Port for SSH.
        ssh_port default "22": Port,
        /// Authorized keys: ids under `ssh_keys` in `secrets.yaml`. No effect in this version.
        authorized_keys: Vec<Spanned<SshKeyId>>,
    }
}

document! {
    /// Settings of the SSH server of a host.
    #[derive(Debug, PartialEq)]
    HostSsh as "ssh" {
        /// Whether root may log in, as a quoted string.
        permit_root_login: PermitRootLogin,
        /// Whether passwords are accepted, as a quoted string.
        password_authentication: YesNo,
    }
}
