//! Network settings of a node: address, gateway, name servers, bridge. Precedence of addresses: node,
//! spec, preset, DHCP.

use std::net::IpAddr;

use crate::doc::address::{Address, Cidr};
use crate::doc::manifest::Node;
use crate::doc::preset::Preset;
use crate::doc::site::{Defaults, Network, Site};
use crate::doc::spec::SpecNetwork;
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::origin::{Origin, WithOrigin};
use super::reference::dangling;

/// Prefix assumed for an IPv4 address without one outside every named network.
const ASSUMED_V4: u8 = 24;
/// Prefix assumed for an IPv6 address without one outside every named network.
const ASSUMED_V6: u8 = 64;

/// Network settings of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Networking {
    /// Name of the network, if it is one of the site.
    pub network: Option<WithOrigin<String>>,
    /// Static address with its prefix, or `None` for DHCP.
    pub address: WithOrigin<Option<Cidr>>,
    /// Gateway.
    pub gateway: Option<WithOrigin<IpAddr>>,
    /// Name servers.
    pub dns: WithOrigin<Vec<IpAddr>>,
    /// Bridge of the host.
    pub bridge: WithOrigin<String>,
    /// VLAN tag.
    pub vlan: Option<WithOrigin<i64>>,
}

/// The documents that network settings are resolved from.
pub(super) struct NetworkInputs<'a> {
    pub(super) node: &'a Node,
    pub(super) spec: Option<&'a SpecNetwork>,
    pub(super) preset: Option<&'a Preset>,
    pub(super) site: Option<&'a Site>,
}

/// Resolves the network settings of a node.
pub(super) fn networking(inputs: &NetworkInputs<'_>, diagnostics: &mut Diagnostics) -> Networking {
    let defaults = inputs.site.and_then(|site| site.defaults.as_ref());
    let written = address(inputs);
    let (name, network) = network(inputs, written.as_ref(), diagnostics);
    let own = inputs.node.ip.is_some();
    // The gateway of a spec is only used with the address of the spec.
    let spec = inputs.spec.filter(|_| !own);
    let gateway = inputs
        .node
        .gateway
        .as_ref()
        .or_else(|| spec.and_then(|spec| spec.gateway.as_ref()))
        .or_else(|| network.and_then(|network| network.gateway.as_ref()))
        .map(WithOrigin::from)
        .or_else(|| site_gateway(defaults, written.as_ref(), network));
    let dns = inputs
        .node
        .dns
        .as_ref()
        .or_else(|| inputs.spec.and_then(|spec| spec.dns.as_ref()))
        .or_else(|| network.and_then(|network| network.dns.as_ref()))
        .or_else(|| defaults.and_then(|defaults| defaults.dns_servers.as_ref()));
    let dns = dns.map_or_else(
        || WithOrigin::built_in(Vec::new()),
        |dns| WithOrigin::written(dns.iter().map(|ip| ip.value).collect(), dns.span),
    );
    let bridge = inputs
        .preset
        .and_then(|preset| preset.bridge.as_ref())
        .or_else(|| network.and_then(|network| network.bridge.as_ref()))
        .or_else(|| defaults.and_then(|defaults| defaults.bridge.as_ref()));
    let bridge = bridge.map_or_else(
        || WithOrigin::built_in("vmbr0".to_owned()),
        |bridge| WithOrigin::written(bridge.to_string(), bridge.span),
    );
    let vlan = network
        .and_then(|network| network.vlan.as_ref())
        .map(|vlan| WithOrigin::written(vlan.0, vlan.span));
    let address = written.map_or_else(
        || WithOrigin::built_in(None),
        |written| static_address(&written, network, gateway.as_ref(), diagnostics),
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

/// Returns the site's gateway, unless the node has a static address that cannot reach it.
fn site_gateway(
    defaults: Option<&Spanned<Defaults>>,
    address: Option<&Spanned<Address>>,
    network: Option<&Network>,
) -> Option<WithOrigin<IpAddr>> {
    let gateway = defaults?.gateway.as_ref()?;
    let reachable = match address.map(|address| address.value) {
        Some(Address::Static { ip, prefix }) => {
            with_prefix(ip, prefix, network).contains(gateway.value)
        }
        Some(Address::Dhcp) | None => true,
    };
    reachable.then(|| WithOrigin::from(gateway))
}

/// Completes an address with the prefix of its network, or the assumed one.
fn with_prefix(ip: IpAddr, prefix: Option<u8>, network: Option<&Network>) -> Cidr {
    let assumed = if ip.is_ipv4() { ASSUMED_V4 } else { ASSUMED_V6 };
    let of_network = network
        .and_then(|network| network.cidr.as_ref())
        .map(|cidr| cidr.prefix);
    Cidr {
        ip,
        prefix: prefix.or(of_network).unwrap_or(assumed),
    }
}

/// Returns the written address, unless it is DHCP.
fn address(inputs: &NetworkInputs<'_>) -> Option<Spanned<Address>> {
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

/// Finds the network of the node: the named one, the one that contains its address, or the default.
fn network<'a>(
    inputs: &NetworkInputs<'a>,
    address: Option<&Spanned<Address>>,
    diagnostics: &mut Diagnostics,
) -> (Option<WithOrigin<String>>, Option<&'a Network>) {
    let networks = inputs.site.and_then(|site| site.networks.as_ref());
    let defaults = inputs.site.and_then(|site| site.defaults.as_ref());
    if let Some(name) = &inputs.node.network {
        let found = networks.and_then(|networks| networks.get(name.as_str()));
        if found.is_none() {
            let known = networks
                .into_iter()
                .flat_map(|networks| networks.keys())
                .map(String::as_str);
            diagnostics.push(dangling(
                Code::NoSuchNetwork,
                name.span,
                "network",
                name.as_str(),
                known,
            ));
        }
        return (
            Some(WithOrigin::written(name.to_string(), name.span)),
            found.map(|network| &network.value),
        );
    }
    if let Some(Address::Static { ip, .. }) = address.map(|address| address.value) {
        let mut containing = networks
            .into_iter()
            .flat_map(|networks| &networks.value)
            .filter(|(_, network)| network.cidr.as_ref().is_some_and(|cidr| cidr.contains(ip)));
        if let (Some((name, network)), None) = (containing.next(), containing.next()) {
            let how = "the network that contains the address";
            return (
                Some(WithOrigin::derived(name.clone(), how, Some(network.span))),
                Some(&network.value),
            );
        }
    }
    // A dangling default network is reported with the site.
    let default = defaults.and_then(|defaults| defaults.network.as_ref());
    let found = default.and_then(|name| Some((name, networks?.get(name.as_str())?)));
    // The default network does not apply to addresses outside of it.
    let outside = match (address.map(|address| address.value), found) {
        (Some(Address::Static { ip, .. }), Some((_, network))) => {
            !network.cidr.as_ref().is_some_and(|cidr| cidr.contains(ip))
        }
        (Some(Address::Dhcp) | None, _) | (Some(Address::Static { .. }), None) => false,
    };
    match found.filter(|_| !outside) {
        Some((name, network)) => (
            Some(WithOrigin::written(name.to_string(), name.span)),
            Some(&network.value),
        ),
        None => (None, None),
    }
}

/// Completes a static address with its prefix and checks it.
fn static_address(
    written: &Spanned<Address>,
    network: Option<&Network>,
    gateway: Option<&WithOrigin<IpAddr>>,
    diagnostics: &mut Diagnostics,
) -> WithOrigin<Option<Cidr>> {
    let Address::Static { ip, prefix } = written.value else {
        return WithOrigin::built_in(None);
    };
    let span = written.span;
    let cidr = network.and_then(|network| network.cidr.as_ref());
    let full = with_prefix(ip, prefix, network);
    let origin = if prefix.is_none() && cidr.is_none() {
        Origin::Derived(
            format!("the prefix /{} is assumed", full.prefix),
            Some(span),
        )
    } else {
        Origin::Written(span)
    };
    if !check_usable(full, span, diagnostics) {
        return WithOrigin {
            value: Some(full),
            origin,
        };
    }
    if let Some(cidr) = cidr
        && (!cidr.contains(ip) || full.prefix != cidr.prefix)
    {
        let (message, hint) = if cidr.contains(ip) {
            (
                format!(
                    "the prefix of {full} differs from that of its network {}",
                    cidr.value
                ),
                format!("write `{ip}/{}`, or remove the prefix", cidr.prefix),
            )
        } else {
            (
                format!("{ip} is not in the network {}", cidr.value),
                format!(
                    "choose an address of {}, or another network",
                    cidr.network()
                ),
            )
        };
        diagnostics.push(
            Diagnostic::error(Code::OutsideNetwork, span, message)
                .label(cidr.span, "the network is defined here")
                .hint(hint),
        );
        return WithOrigin {
            value: Some(full),
            origin,
        };
    }
    match gateway {
        Some(gateway) if gateway.value == ip => diagnostics.push(
            Diagnostic::error(
                Code::UnusableAddress,
                span,
                format!("{ip} is the gateway's address"),
            )
            .hint("choose another address"),
        ),
        Some(WithOrigin {
            value,
            origin: Origin::Written(at),
            // The gateway of a network is checked with the network.
        }) if !full.contains(*value) && !is_gateway_of(network, *at) => diagnostics.push(
            Diagnostic::error(
                Code::OutsideNetwork,
                *at,
                format!("the gateway {value} is not in {}", full.network()),
            )
            .label(span, "the address is written here")
            .hint("fix the gateway, or write the address with its prefix: `ADDRESS/PREFIX`"),
        ),
        Some(_) | None => {}
    }
    WithOrigin {
        value: Some(full),
        origin,
    }
}

fn is_gateway_of(network: Option<&Network>, at: Span) -> bool {
    let gateway = network.and_then(|network| network.gateway.as_ref());
    gateway.is_some_and(|gateway| gateway.span == at)
}

/// Returns why no machine can have the address, if so.
fn unusable(address: Cidr) -> Option<(&'static str, String)> {
    let ip = address.ip;
    let network = address.network();
    let why = if ip.is_unspecified() {
        "is the unspecified address"
    } else if ip.is_multicast() {
        "is a multicast address"
    } else if ip.is_loopback() {
        "is a loopback address"
    } else if matches!(ip, IpAddr::V4(v4) if v4.is_broadcast()) {
        "is the broadcast address"
    } else if !address.is_reserved(ip) {
        return None;
    } else if ip == network.ip {
        return Some(("is the network address", usable_range(network)));
    } else {
        return Some(("is the network's broadcast address", usable_range(network)));
    };
    let hint = "choose an address of the machine's network";
    Some((why, hint.to_owned()))
}

/// Returns a hint with the usable addresses of a network.
fn usable_range(network: Cidr) -> String {
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

/// Reports an address that no machine can have, and returns whether it is usable.
fn check_usable(address: Cidr, span: Span, diagnostics: &mut Diagnostics) -> bool {
    let Some((why, hint)) = unusable(address) else {
        return true;
    };
    let message = format!("{} {why}", address.ip);
    diagnostics.push(Diagnostic::error(Code::UnusableAddress, span, message).hint(hint));
    false
}

/// Checks the networks of a site.
pub(super) fn check_networks(site: &Site, diagnostics: &mut Diagnostics) {
    let networks = site.networks.iter().flat_map(|networks| &networks.value);
    for (name, network) in networks {
        if crate::doc::scalar::Name::new(name).is_none() {
            diagnostics.push(
                Diagnostic::error(
                    Code::InvalidName,
                    network.span,
                    format!("`{name}` is not a valid name for a network"),
                )
                .hint("use letters, digits, `.`, `_` and `-`"),
            );
        }
        let Some(cidr) = &network.cidr else { continue };
        if cidr.value != cidr.network() {
            diagnostics.push(
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
            check_usable(address, gateway.span, diagnostics);
        } else if let Some(gateway) = &network.gateway {
            diagnostics.push(
                Diagnostic::error(
                    Code::OutsideNetwork,
                    gateway.span,
                    format!("the gateway {} is not in {}", gateway.value, cidr.value),
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
            diagnostics.push(dangling(
                Code::NoSuchNetwork,
                default.span,
                "network",
                default.as_str(),
                known,
            ));
        }
    }
}
