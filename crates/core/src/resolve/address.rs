//! Where a node is on the network: address, gateway, name servers, bridge.
//!
//! In: node, spec, preset and site. Out: [`Networking`], and what cannot be right.
//! Never: asking the network; precedence is node, spec, preset, DHCP.

use std::net::IpAddr;

use crate::doc::address::{Address, Cidr};
use crate::doc::manifest::Node;
use crate::doc::preset::Preset;
use crate::doc::site::{Defaults, Network, Site};
use crate::doc::spec::SpecNetwork;
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::origin::{Origin, Valued};
use super::reference::dangling;

/// Prefix assumed for a bare IPv4 address outside every named network, as the reference does.
const ASSUMED_V4: u8 = 24;
/// Prefix assumed for a bare IPv6 address outside every named network.
const ASSUMED_V6: u8 = 64;

/// Where a node is on the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Networking {
    /// Name of the network, when it is one of the site's.
    pub network: Option<Valued<String>>,
    /// A fixed address with its prefix, or `None` for DHCP.
    pub address: Valued<Option<Cidr>>,
    /// Gateway.
    pub gateway: Option<Valued<IpAddr>>,
    /// Name servers.
    pub dns: Valued<Vec<IpAddr>>,
    /// Bridge of the host.
    pub bridge: Valued<String>,
    /// VLAN tag.
    pub vlan: Option<Valued<i64>>,
}

/// What the decision is made from.
pub(super) struct Inputs<'a> {
    pub(super) node: &'a Node,
    pub(super) spec: Option<&'a SpecNetwork>,
    pub(super) preset: Option<&'a Preset>,
    pub(super) site: Option<&'a Site>,
}

/// Decides where a node is on the network.
pub(super) fn networking(inputs: &Inputs<'_>, faults: &mut Diagnostics) -> Networking {
    let defaults = inputs.site.and_then(|site| site.defaults.as_ref());
    let written = address(inputs);
    let (name, network) = network(inputs, written.as_ref(), faults);
    let own = inputs.node.ip.is_some();
    // A spec writes address and gateway together, so its gateway goes with its address only.
    let spec = inputs.spec.filter(|_| !own);
    let gateway = inputs
        .node
        .gateway
        .as_ref()
        .or_else(|| spec.and_then(|spec| spec.gateway.as_ref()))
        .or_else(|| network.and_then(|network| network.gateway.as_ref()))
        .map(Valued::from)
        .or_else(|| site_gateway(defaults, written.as_ref(), network));
    let dns = inputs
        .node
        .dns
        .as_ref()
        .or_else(|| inputs.spec.and_then(|spec| spec.dns.as_ref()))
        .or_else(|| network.and_then(|network| network.dns.as_ref()))
        .or_else(|| defaults.and_then(|defaults| defaults.dns_servers.as_ref()));
    let dns = dns.map_or_else(
        || Valued::built_in(Vec::new()),
        |dns| Valued::written(dns.iter().map(|ip| ip.value).collect(), dns.span),
    );
    let bridge = inputs
        .preset
        .and_then(|preset| preset.bridge.as_ref())
        .or_else(|| network.and_then(|network| network.bridge.as_ref()))
        .or_else(|| defaults.and_then(|defaults| defaults.bridge.as_ref()));
    let bridge = bridge.map_or_else(
        || Valued::built_in("vmbr0".to_owned()),
        |bridge| Valued::written(bridge.to_string(), bridge.span),
    );
    let vlan = network
        .and_then(|network| network.vlan.as_ref())
        .map(|vlan| Valued::written(vlan.0, vlan.span));
    let address = written.map_or_else(
        || Valued::built_in(None),
        |written| fixed(&written, network, gateway.as_ref(), faults),
    );
    Networking {
        network: name,
        address,
        gateway,
        dns,
        bridge,
        vlan,
    }
}

/// The site's gateway, unless the node has a fixed address that cannot reach it.
fn site_gateway(
    defaults: Option<&Spanned<Defaults>>,
    address: Option<&Spanned<Address>>,
    network: Option<&Network>,
) -> Option<Valued<IpAddr>> {
    let gateway = defaults?.gateway.as_ref()?;
    let reachable = match address.map(|address| address.value) {
        Some(Address::Static { ip, prefix }) => full(ip, prefix, network).contains(gateway.value),
        Some(Address::Dhcp) | None => true,
    };
    reachable.then(|| Valued::from(gateway))
}

/// Completes an address with the prefix of its network, or the usual one.
fn full(ip: IpAddr, prefix: Option<u8>, network: Option<&Network>) -> Cidr {
    let assumed = if ip.is_ipv4() { ASSUMED_V4 } else { ASSUMED_V6 };
    let of_network = network
        .and_then(|network| network.cidr.as_ref())
        .map(|cidr| cidr.prefix);
    Cidr {
        ip,
        prefix: prefix.or(of_network).unwrap_or(assumed),
    }
}

/// Returns the address that was written, unless it is DHCP.
fn address(inputs: &Inputs<'_>) -> Option<Spanned<Address>> {
    let candidates = [
        inputs.node.ip.as_ref(),
        inputs.spec.and_then(|spec| spec.ip.as_ref()),
        inputs.preset.and_then(|preset| preset.ip.as_ref()),
    ];
    let first = candidates.into_iter().flatten().next();
    first
        .filter(|address| address.value != Address::Dhcp)
        .cloned()
}

/// Finds the site's network the node is on: named, or the one its address lies in.
fn network<'a>(
    inputs: &Inputs<'a>,
    address: Option<&Spanned<Address>>,
    faults: &mut Diagnostics,
) -> (Option<Valued<String>>, Option<&'a Network>) {
    let networks = inputs.site.and_then(|site| site.networks.as_ref());
    let defaults = inputs.site.and_then(|site| site.defaults.as_ref());
    if let Some(name) = &inputs.node.network {
        let found = networks.and_then(|networks| networks.get(name.as_str()));
        if found.is_none() {
            let known = networks
                .into_iter()
                .flat_map(|networks| networks.keys())
                .map(String::as_str);
            faults.push(dangling(
                Code::NoSuchNetwork,
                name.span,
                "network",
                name.as_str(),
                known,
            ));
        }
        return (
            Some(Valued::written(name.to_string(), name.span)),
            found.map(|network| &network.value),
        );
    }
    if let Some(Address::Static { ip, .. }) = address.map(|address| address.value) {
        let mut holding = networks
            .into_iter()
            .flat_map(|networks| &networks.value)
            .filter(|(_, network)| network.cidr.as_ref().is_some_and(|cidr| cidr.contains(ip)));
        if let (Some((name, network)), None) = (holding.next(), holding.next()) {
            let how = "the network that holds the address";
            return (
                Some(Valued::derived(name.clone(), how, Some(network.span))),
                Some(&network.value),
            );
        }
    }
    // A dangling default is reported with the site.
    let default = defaults.and_then(|defaults| defaults.network.as_ref());
    let found = default.and_then(|name| Some((name, networks?.get(name.as_str())?)));
    // The default network does not claim addresses that lie elsewhere.
    let outside = match (address.map(|address| address.value), found) {
        (Some(Address::Static { ip, .. }), Some((_, network))) => {
            !network.cidr.as_ref().is_some_and(|cidr| cidr.contains(ip))
        }
        (Some(Address::Dhcp) | None, _) | (Some(Address::Static { .. }), None) => false,
    };
    match found.filter(|_| !outside) {
        Some((name, network)) => (
            Some(Valued::written(name.to_string(), name.span)),
            Some(&network.value),
        ),
        None => (None, None),
    }
}

/// Completes a fixed address with its prefix and checks it.
fn fixed(
    written: &Spanned<Address>,
    network: Option<&Network>,
    gateway: Option<&Valued<IpAddr>>,
    faults: &mut Diagnostics,
) -> Valued<Option<Cidr>> {
    let Address::Static { ip, prefix } = written.value else {
        return Valued::built_in(None);
    };
    let span = written.span;
    let cidr = network.and_then(|network| network.cidr.as_ref());
    let full = full(ip, prefix, network);
    let origin = if prefix.is_none() && cidr.is_none() {
        Origin::Derived(
            format!("the prefix /{} is assumed", full.prefix),
            Some(span),
        )
    } else {
        Origin::Written(span)
    };
    if !check_usable(full, span, faults) {
        return Valued {
            value: Some(full),
            origin,
        };
    }
    if let Some(cidr) = cidr
        && (!cidr.contains(ip) || full.prefix != cidr.prefix)
    {
        let (message, hint) = if cidr.contains(ip) {
            (
                format!("{full} has another prefix than its network, {}", cidr.value),
                format!("write `{ip}/{}`, or leave the prefix out", cidr.prefix),
            )
        } else {
            (
                format!("{ip} does not lie in the network {}", cidr.value),
                format!(
                    "choose an address of {}, or another network",
                    cidr.network()
                ),
            )
        };
        faults.push(
            Diagnostic::error(Code::OutsideNetwork, span, message)
                .label(cidr.span, "the network is defined here")
                .hint(hint),
        );
        return Valued {
            value: Some(full),
            origin,
        };
    }
    match gateway {
        Some(gateway) if gateway.value == ip => faults.push(
            Diagnostic::error(
                Code::UnusableAddress,
                span,
                format!("{ip} is the gateway's address"),
            )
            .hint("choose another address"),
        ),
        Some(Valued {
            value,
            origin: Origin::Written(at),
            // A network's own gateway is judged with the network.
        }) if !full.contains(*value) && !is_gateway_of(network, *at) => faults.push(
            Diagnostic::error(
                Code::OutsideNetwork,
                *at,
                format!("the gateway {value} does not lie in {}", full.network()),
            )
            .label(span, "the address is written here")
            .hint("correct the gateway, or write the address with its prefix: `ADDRESS/PREFIX`"),
        ),
        Some(_) | None => {}
    }
    Valued {
        value: Some(full),
        origin,
    }
}

fn is_gateway_of(network: Option<&Network>, at: Span) -> bool {
    let gateway = network.and_then(|network| network.gateway.as_ref());
    gateway.is_some_and(|gateway| gateway.span == at)
}

/// Says why no machine can have the address, if so.
fn unusable(address: Cidr) -> Option<(&'static str, String)> {
    let ip = address.ip;
    let network = address.network();
    let why = if ip.is_unspecified() {
        "stands for no address at all"
    } else if ip.is_multicast() {
        "is a multicast address, not that of a machine"
    } else if ip.is_loopback() {
        "is the machine's address for itself"
    } else if matches!(ip, IpAddr::V4(v4) if v4.is_broadcast()) {
        "stands for every machine"
    } else if !address.is_reserved(ip) {
        return None;
    } else if ip == network.ip {
        return Some(("is the network's own address", between(network)));
    } else {
        return Some(("is the network's broadcast address", between(network)));
    };
    let hint = "choose an address of the network the machine is on";
    Some((why, hint.to_owned()))
}

/// Names the addresses of a network that machines can have.
fn between(network: Cidr) -> String {
    match (network.ip, network.last()) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let inner = |ip: std::net::Ipv4Addr, by: i64| {
                u32::try_from(i64::from(u32::from(ip)) + by).map_or(ip, Into::into)
            };
            format!(
                "choose an address from {} to {}",
                inner(first, 1),
                inner(last, -1)
            )
        }
        _ => format!("choose another address of {network}"),
    }
}

/// Reports an address that no machine can have. Returns whether one can.
fn check_usable(address: Cidr, span: Span, faults: &mut Diagnostics) -> bool {
    let Some((why, hint)) = unusable(address) else {
        return true;
    };
    let message = format!("{} {why}", address.ip);
    faults.push(Diagnostic::error(Code::UnusableAddress, span, message).hint(hint));
    false
}

/// Checks the networks of a site on their own.
pub(super) fn check_networks(site: &Site, faults: &mut Diagnostics) {
    let networks = site.networks.iter().flat_map(|networks| &networks.value);
    for (name, network) in networks {
        if crate::doc::scalar::Name::new(name).is_none() {
            faults.push(
                Diagnostic::error(
                    Code::InvalidName,
                    network.span,
                    format!("`{name}` cannot name a network"),
                )
                .hint("use letters, digits, `.`, `_` and `-`"),
            );
        }
        let Some(cidr) = &network.cidr else { continue };
        if cidr.value != cidr.network() {
            faults.push(
                Diagnostic::error(
                    Code::Malformed,
                    cidr.span,
                    format!("{} is an address in a network, not a network", cidr.value),
                )
                .hint(format!("write `{}`", cidr.network())),
            );
        }
        if let Some(gateway) = network
            .gateway
            .as_ref()
            .filter(|gateway| cidr.contains(gateway.value))
        {
            let address = Cidr {
                ip: gateway.value,
                prefix: cidr.prefix,
            };
            check_usable(address, gateway.span, faults);
        } else if let Some(gateway) = &network.gateway {
            faults.push(
                Diagnostic::error(
                    Code::OutsideNetwork,
                    gateway.span,
                    format!(
                        "the gateway {} does not lie in {}",
                        gateway.value, cidr.value
                    ),
                )
                .hint(format!("choose an address of {}", cidr.network())),
            );
        }
    }
    let default = site
        .defaults
        .as_ref()
        .and_then(|defaults| defaults.network.as_ref());
    if let Some(default) = default {
        let known = site
            .networks
            .iter()
            .flat_map(|networks| networks.keys())
            .map(String::as_str);
        if !known.clone().any(|name| name == default.as_str()) {
            faults.push(dangling(
                Code::NoSuchNetwork,
                default.span,
                "network",
                default.as_str(),
                known,
            ));
        }
    }
}
