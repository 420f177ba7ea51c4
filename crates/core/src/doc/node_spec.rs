//! A spec as delivered to a node: every reference is resolved. The posture is required, because a
//! node without one would not be secured.

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
    /// A spec as delivered to a node.
    #[derive(Debug, PartialEq)]
    NodeSpec as "the spec" {
        /// Always 1.
        schema_version = required: Version<1>,
        /// Host name and domain.
        identity = required: NodeIdentity,
        /// Static address; absent for DHCP.
        network: NodeNetwork,
        /// User accounts and security settings.
        access = required: NodeAccess,
        /// Packages and services.
        platform: Platform,
        /// System configuration.
        config: Config,
        /// Automatic runs.
        run: Run,
    }
}

document! {
    /// Host name and domain.
    #[derive(Debug, PartialEq)]
    NodeIdentity as "identity" {
        /// Host name.
        hostname = required: NodeName,
        /// DNS domain.
        domain: Domain,
    }
}

document! {
    /// Static address.
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
    /// User accounts and security settings.
    #[derive(Debug, PartialEq)]
    NodeAccess as "access" {
        /// Name of the posture.
        posture: Name,
        /// Users on the machine.
        users: Vec<Spanned<NodeUser>>,
        /// Settings of the posture.
        settings ["_posture"] = required: Posture,
        /// Access of the driver.
        driver ["_driver"]: NodeDriver,
    }
}

document! {
    /// Access of the driver. Whatever the posture, this user keeps its keys and sudo without a
    /// password; otherwise the machine could not be managed any more.
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
        /// Whether the user may use sudo.
        sudo default "false": bool,
        /// Authorized keys.
        ssh_keys: Vec<Spanned<PublicKey>>,
    }
}

/// Parses a spec. `None` if it has errors.
pub fn read(path: &str, text: &str, sources: &mut Sources) -> (Option<NodeSpec>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    // A spec may contain the content of private files.
    let source = Source::secret(path, text);
    let file = sources.add(source.clone());
    let spec = yaml::parse(file, &source, &mut diagnostics)
        .and_then(|value| NodeSpec::decode(&value, &mut Context::new(&mut diagnostics)));
    let spec = spec.filter(|_| diagnostics.errors() == 0);
    (spec, diagnostics)
}
