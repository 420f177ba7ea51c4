//! A spec as a node gets it: every reference resolved, the posture within.
//!
//! In: text. Out: [`NodeSpec`], or every fault with its place.
//! Never: a spec without its posture: the node would be left open.

use std::net::IpAddr;

use super::address::Address;
use super::declare::document;
use super::decode::{Context, Decode as _, Spanned};
use super::diagnostic::Diagnostics;
use super::node_config::PublicKey;
use super::posture::Posture;
use super::scalar::{Domain, Name, NodeName, UserName, Version};
use super::source::{Source, Sources};
use super::spec::{Config, Platform, Run};
use super::yaml;

document! {
    /// A spec as a node gets it.
    #[derive(Debug, PartialEq)]
    NodeSpec as "the spec" {
        /// Always 1.
        schema_version = required: Version<1>,
        /// Who the machine is.
        identity = required: NodeIdentity,
        /// A fixed address; absent for DHCP.
        network: NodeNetwork,
        /// Who may log in, and how.
        access = required: NodeAccess,
        /// Packages and services.
        platform: Platform,
        /// System configuration.
        config: Config,
        /// How the machine is kept in shape.
        run: Run,
    }
}

document! {
    /// Who the machine is.
    #[derive(Debug, PartialEq)]
    NodeIdentity as "identity" {
        /// Host name.
        hostname = required: NodeName,
        /// DNS domain.
        domain: Domain,
    }
}

document! {
    /// A fixed address.
    #[derive(Debug, PartialEq)]
    NodeNetwork as "network" {
        /// The address.
        ip = required: Address,
        /// The gateway.
        gateway: IpAddr,
        /// Name servers.
        dns: Vec<Spanned<IpAddr>>,
    }
}

document! {
    /// Who may log in, and how.
    #[derive(Debug, PartialEq)]
    NodeAccess as "access" {
        /// The posture's name.
        posture: Name,
        /// Users on the machine.
        users: Vec<Spanned<NodeUser>>,
        /// What the posture says.
        settings ["_posture"] = required: Posture,
        /// How whoever drives the machine gets in.
        driver ["_driver"]: NodeDriver,
    }
}

document! {
    /// How whoever drives the machine gets in. A posture is about people: this user keeps its keys
    /// and becomes root without a password, or nobody could ever change the machine again.
    #[derive(Debug, PartialEq)]
    NodeDriver as "the driver" {
        /// Login name.
        user = required: UserName,
        /// Keys of the driver.
        ssh_keys: Vec<Spanned<PublicKey>>,
    }
}

document! {
    /// A user on the machine.
    #[derive(Debug, PartialEq)]
    NodeUser as "the user" {
        /// Login name.
        name = required: UserName,
        /// Whether the user may become root.
        sudo default "false": bool,
        /// Keys that may log in.
        ssh_keys: Vec<Spanned<PublicKey>>,
    }
}

/// Reads a spec. `None` when it has errors, which are in the faults.
pub fn read(path: &str, text: &str, sources: &mut Sources) -> (Option<NodeSpec>, Diagnostics) {
    let mut faults = Diagnostics::default();
    // Its lines may hold content of files that are not for everyone.
    let source = Source::secret(path, text);
    let file = sources.add(source.clone());
    let spec = yaml::parse(file, &source, &mut faults)
        .and_then(|value| NodeSpec::decode(&value, &mut Context::new(&mut faults)));
    let spec = spec.filter(|_| faults.errors() == 0);
    (spec, faults)
}
