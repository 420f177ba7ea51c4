//! The network of the local host: a bridge in its own namespace, a veth pair to it, and NAT for
//! packages. Other links, namespaces and rules are not changed, and existing networks of the
//! machine are not overlapped.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use homestak_api::durable::{self, Access};
use homestak_core::doc::timeouts::{Limit, Timeouts};
use homestak_engine::ports::PortError;
use serde::{Deserialize, Serialize};

use super::error;
use super::instance::{BRIDGE, Instance};
use super::lock::Lock;
use crate::process::{ProgramError, run, run_with};

/// Bits of the network's own part.
const PREFIX: u8 = 20;
/// The TCP ports of this machine that nodes reach: names, package mirrors, and the server of specs.
pub const OPEN_PORTS: [u16; 4] = [53, 80, 443, 44_443];
/// What all local hosts of a machine share.
const SHARED: &str = "/run/homestak";
const IPV6: &str = "/proc/sys/net/ipv6/conf";
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
const NEIGHBOURS: &str = "/proc/sys/net/ipv4/neigh";
/// How often the machine asks for a node's hardware address, in milliseconds. A node that boots is
/// reached that soon after it has its address; the kernel's own second is for slower networks.
const ASK: &str = "100";

/// The addresses of the local host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Network {
    base: Ipv4Addr,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{PREFIX}", self.base)
    }
}

impl Network {
    pub(super) const fn new(base: Ipv4Addr) -> Self {
        Self { base }
    }

    pub(super) fn prefix(&self) -> u8 {
        PREFIX
    }

    /// Returns the machine's own address on the bridge.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) + 1)
    }

    /// Returns the number of assignable addresses.
    pub(super) fn capacity(&self) -> u32 {
        (1 << (32 - u32::from(PREFIX))) - 3
    }

    /// Returns the address at an index.
    pub(super) fn address_at(&self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) + 2 + index)
    }

    /// Returns whether a node can have an address.
    pub(super) fn is_assignable(&self, address: Ipv4Addr) -> bool {
        let (low, high) = (self.address_at(0), self.address_at(self.capacity() - 1));
        (low..=high).contains(&address)
    }

    fn overlaps(&self, address: Ipv4Addr, prefix: u8) -> bool {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(prefix.min(PREFIX)))
            .unwrap_or(0);
        u32::from(self.base) & mask == u32::from(address) & mask
    }
}

/// Returns the network of an instance, if it was chosen.
pub(super) fn chosen(instance: &Instance) -> Option<Network> {
    serde_json::from_slice(&fs_err::read(instance.network()).ok()?).ok()
}

/// Chooses a network that the machine does not use, once. The caller holds the instance lock.
pub(super) fn choose(instance: &Instance) -> Result<Network, PortError> {
    if let Some(network) = chosen(instance) {
        return Ok(network);
    }
    let doing = "choose a network";
    // Concurrent local hosts must see each other's choice.
    let _turn = shared_lock(doing)?;
    let network = free(doing)?;
    let text = serde_json::to_vec(&network).map_err(|error| PortError::bug(doing, &error))?;
    durable::write(&instance.network(), &text, Access::PUBLIC)
        .map_err(|error| error::io(doing, &error))?;
    Ok(network)
}

/// Returns the network of an instance, or the one that would be chosen now.
pub(super) fn expected(instance: &Instance) -> Result<Network, PortError> {
    chosen(instance).map_or_else(|| free("find a network"), Ok)
}

/// Returns the first network that the machine does not use.
fn free(doing: &str) -> Result<Network, PortError> {
    let routes = run("ip", &["-4", "-o", "route", "show", "table", "all"])
        .map_err(|error| error::program(doing, &error))?;
    let taken = networks(&routes);
    let free = |network: &Network| {
        let clash = |(address, prefix): &(Ipv4Addr, u8)| network.overlaps(*address, *prefix);
        !taken.iter().any(clash)
    };
    // 10.77 first, then on through 10.64 to 10.127.
    let mut candidates = (0..64).map(|n| Network::new(Ipv4Addr::new(10, 64 + (13 + n) % 64, 0, 0)));
    candidates.find(free).ok_or_else(|| {
        PortError::refused(
            doing,
            "the machine has routes to every network between 10.64.0.0 and 10.127.0.0",
            "`ip route` shows them",
        )
    })
}

/// Sets up the network, as far as needed. The caller holds the instance lock.
pub(super) fn up(instance: &Instance) -> Result<Network, PortError> {
    let network = choose(instance)?;
    let doing = "set up the network of the local host";
    let (netns, uplink, table) = (instance.netns(), instance.uplink(), instance.table());
    let program = |error| error::program(doing, &error);
    if !has_namespace(&netns) {
        run("ip", &["netns", "add", &netns]).map_err(program)?;
        run("ip", &["-n", &netns, "link", "set", "lo", "up"]).map_err(program)?;
    }
    let inside = links(Some(&netns)).map_err(program)?;
    match inside.iter().find(|link| link.name == BRIDGE) {
        Some(link) if link.kind == "bridge" => {}
        Some(link) => {
            return Err(PortError::refused(
                doing,
                format!(
                    "the namespace `{netns}` has a link `{BRIDGE}` that is not a bridge ({})",
                    link.kind
                ),
                format!("ip -n {netns} link delete {BRIDGE}"),
            ));
        }
        None => {
            run(
                "ip",
                &["-n", &netns, "link", "add", BRIDGE, "type", "bridge"],
            )
            .map_err(program)?;
        }
    }
    run("ip", &["-n", &netns, "link", "set", BRIDGE, "up"]).map_err(program)?;
    let leads_in = inside.iter().any(|link| link.name == "up0");
    if Path::new("/sys/class/net").join(&uplink).exists() && !leads_in {
        if alias(&uplink) != mark(instance) {
            return Err(PortError::refused(
                doing,
                format!("the machine already has a link `{uplink}` that homestak did not create"),
                "rename or remove it (ip link), or set HOMESTAK_LOCAL_ROOT to another path",
            ));
        }
        // Left over from a pair whose other end was removed.
        run("ip", &["link", "delete", &uplink]).map_err(program)?;
    }
    if !leads_in {
        let add = [
            "link", "add", &uplink, "type", "veth", "peer", "name", "up0", "netns", &netns,
        ];
        run("ip", &add).map_err(program)?;
    }
    run("ip", &["link", "set", &uplink, "alias", &mark(instance)]).map_err(program)?;
    // Nodes have no IPv6, and the machine would accept router advertisements of theirs.
    let without = format!("{IPV6}/{uplink}/disable_ipv6");
    if Path::new(&without).exists() {
        fs_err::write(without, "1").map_err(|error| error::io(doing, &error))?;
    }
    // Where it cannot be set, nodes are reached later.
    let _ = fs_err::write(format!("{NEIGHBOURS}/{uplink}/retrans_time_ms"), ASK);
    run(
        "ip",
        &["-n", &netns, "link", "set", "up0", "master", BRIDGE, "up"],
    )
    .map_err(program)?;
    let own = format!("{}/{PREFIX}", network.gateway());
    run("ip", &["address", "replace", &own, "dev", &uplink]).map_err(program)?;
    run("ip", &["link", "set", &uplink, "up"]).map_err(program)?;
    let mut rules = rules(&table, &uplink, &network);
    if Path::new(IPV6).exists() {
        rules += &rules_ipv6(&table, &uplink);
    }
    run_with("nft", &["-f", "-"], &rules).map_err(program)?;
    forward().map_err(|error| error::io(doing, &error))?;
    Ok(network)
}

/// Returns whether the links of the network exist; rules and addresses are not checked.
pub(super) fn is_linked(instance: &Instance) -> bool {
    has_namespace(&instance.netns()) && alias(&instance.uplink()) == mark(instance)
}

/// Removes the network; idempotent. The caller holds the instance lock.
pub(super) fn down(instance: &Instance) -> Result<(), PortError> {
    let doing = "take down the network of the local host";
    let program = |error| error::program(doing, &error);
    let (netns, uplink, table) = (instance.netns(), instance.uplink(), instance.table());
    for family in ["ip", "ip6"] {
        let _ = run("nft", &["delete", "table", family, &table]);
    }
    if Path::new("/sys/class/net").join(&uplink).exists() && alias(&uplink) == mark(instance) {
        run("ip", &["link", "delete", &uplink]).map_err(program)?;
    }
    if has_namespace(&netns) {
        run("ip", &["netns", "delete", &netns]).map_err(program)?;
    }
    remove_shared_lock()?;
    match fs_err::remove_file(instance.network()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error::io(doing, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Creates the network namespace of a node with a link to the bridge. `outer` is the bridge's own namespace;
/// none where the bridge is the machine's, as inside a node.
pub(super) fn plug(
    outer: Option<&str>,
    part: &str,
    link: &str,
    mac: &str,
) -> Result<(), PortError> {
    let doing = format!("connect `{part}` to the network");
    let program = |error| error::program(&doing, &error);
    unplug(part)?;
    run("ip", &["netns", "add", part]).map_err(program)?;
    run("ip", &["-n", part, "link", "set", "lo", "up"]).map_err(program)?;
    let outside = |arguments: &[&str]| {
        let namespace = outer.map_or_else(Vec::new, |outer| vec!["-n", outer]);
        run("ip", &[&namespace, arguments].concat()).map_err(program)
    };
    let pair = [
        "link", "add", link, "type", "veth", "peer", "name", "eth0", "address", mac, "netns", part,
    ];
    // The kernel deletes the pair of a deleted namespace some time after the namespace.
    if outside(&pair).is_err() {
        untap(outer, link)?;
        outside(&pair)?;
    }
    outside(&["link", "set", link, "master", BRIDGE, "up"])?;
    Ok(())
}

/// Deletes the namespace of a node, and with it both ends of its pair.
pub(super) fn unplug(part: &str) -> Result<(), PortError> {
    if !has_namespace(part) {
        return Ok(());
    }
    let doing = format!("disconnect `{part}` from the network");
    run("ip", &["netns", "delete", part])
        .map(|_| ())
        .map_err(|error| error::program(&doing, &error))
}

/// Creates the link of a virtual machine on the bridge. `outer` is the bridge's own namespace.
pub(super) fn tap(outer: Option<&str>, link: &str) -> Result<(), PortError> {
    let doing = format!("connect `{link}` to the network");
    untap(outer, link)?;
    let namespace = outer.map_or_else(Vec::new, |outer| vec!["-n", outer]);
    for words in [
        &["tuntap", "add", "dev", link, "mode", "tap"][..],
        &["link", "set", link, "master", BRIDGE, "up"][..],
    ] {
        run("ip", &[&namespace, words].concat()).map_err(|error| error::program(&doing, &error))?;
    }
    Ok(())
}

/// Deletes the link of a node on the bridge; idempotent.
pub(super) fn untap(outer: Option<&str>, link: &str) -> Result<(), PortError> {
    let doing = format!("disconnect `{link}` from the network");
    if outer.is_some_and(|outer| !has_namespace(outer)) {
        return Ok(());
    }
    let program = |error| error::program(&doing, &error);
    if !has_link(outer, link).map_err(program)? {
        return Ok(());
    }
    let namespace = outer.map_or_else(Vec::new, |outer| vec!["-n", outer]);
    match run("ip", &[&namespace, &["link", "delete", link][..]].concat()) {
        // The kernel may have deleted it in between.
        Err(error) if has_link(outer, link).map_err(program)? => Err(program(error)),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn has_link(outer: Option<&str>, link: &str) -> Result<bool, ProgramError> {
    Ok(links(outer)?.iter().any(|one| one.name == link))
}

/// Returns the links of virtual machines on the bridge.
pub(super) fn taps(outer: Option<&str>) -> Vec<String> {
    if outer.is_some_and(|outer| !has_namespace(outer)) {
        return Vec::new();
    }
    let links = links(outer).unwrap_or_default().into_iter();
    let ours = |name: &str| {
        let number = name.strip_prefix('v').unwrap_or_default();
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    };
    links
        .filter(|link| link.kind == "tun" && ours(&link.name))
        .map(|link| link.name)
        .collect()
}

/// Returns the namespaces whose name begins so.
pub(super) fn namespaces(prefix: &str) -> Vec<String> {
    let Ok(entries) = fs_err::read_dir("/run/netns") else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Returns whether any part of the network exists.
pub(super) fn is_there(instance: &Instance) -> bool {
    has_namespace(&instance.netns())
        || Path::new("/sys/class/net").join(instance.uplink()).exists()
        || run("nft", &["list", "table", "ip", &instance.table()]).is_ok()
}

/// Returns the machine's name servers, as far as others can ask them.
pub(super) fn name_servers() -> Vec<IpAddr> {
    // Where a resolver on the machine itself is named, it knows the real ones.
    for file in ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"] {
        let text = fs_err::read_to_string(file).unwrap_or_default();
        let named = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("nameserver"));
        let servers: Vec<IpAddr> = named
            .filter_map(|rest| rest.trim().parse().ok())
            .filter(|address: &IpAddr| !address.is_loopback() && address.is_ipv4())
            .collect();
        if !servers.is_empty() {
            return servers;
        }
    }
    Vec::new()
}

/// Nodes reach the outside for packages and name resolution, and are not reachable from there. They
/// reach the machine itself on the same ports: it may be a name server or a mirror. A packet is
/// attributed to a node by its source address: an answer to the machine, for example, is recognised
/// by its addresses and not by its link.
fn rules(table: &str, uplink: &str, network: &Network) -> String {
    let open = OPEN_PORTS.map(|port| port.to_string()).join(", ");
    format!(
        "table ip {table}\n\
         delete table ip {table}\n\
         table ip {table} {{\n\
           chain own {{\n\
             type filter hook prerouting priority raw; policy accept;\n\
             iifname \"{uplink}\" ip saddr != {network} drop\n\
           }}\n\
           chain out {{\n\
             type nat hook postrouting priority srcnat; policy accept;\n\
             ip saddr {network} oifname != \"{uplink}\" masquerade\n\
           }}\n\
           chain in {{\n\
             type filter hook input priority filter; policy accept;\n\
             iifname \"{uplink}\" ct state established,related accept\n\
             iifname \"{uplink}\" tcp dport {{ {open} }} accept\n\
             iifname \"{uplink}\" udp dport {{ 53, 123 }} accept\n\
             iifname \"{uplink}\" icmp type echo-request accept\n\
             iifname \"{uplink}\" reject\n\
           }}\n\
           chain through {{\n\
             type filter hook forward priority filter; policy accept;\n\
             iifname \"{uplink}\" oifname \"{uplink}\" accept\n\
             iifname \"{uplink}\" ct state established,related accept\n\
             iifname \"{uplink}\" tcp dport {{ 53, 80, 443 }} accept\n\
             iifname \"{uplink}\" udp dport {{ 53, 123 }} accept\n\
             iifname \"{uplink}\" icmp type echo-request accept\n\
             iifname \"{uplink}\" reject\n\
             oifname \"{uplink}\" ct state established,related accept\n\
             oifname \"{uplink}\" drop\n\
           }}\n\
         }}\n"
    )
}

/// Nothing of IPv6 comes in, also when a setting of the machine switches it on for all links.
fn rules_ipv6(table: &str, uplink: &str) -> String {
    format!(
        "table ip6 {table}\n\
         delete table ip6 {table}\n\
         table ip6 {table} {{\n\
           chain in {{\n\
             type filter hook prerouting priority raw; policy accept;\n\
             iifname \"{uplink}\" drop\n\
           }}\n\
         }}\n"
    )
}

struct Link {
    name: String,
    kind: String,
}

fn links(namespace: Option<&str>) -> Result<Vec<Link>, ProgramError> {
    let mut arguments = namespace.map_or_else(Vec::new, |name| vec!["-n", name]);
    arguments.extend(["-d", "-j", "link", "show"]);
    let text = run("ip", &arguments)?;
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Ok(rows
        .iter()
        .map(|row| Link {
            name: word(&row["ifname"]),
            kind: word(&row["linkinfo"]["info_kind"]),
        })
        .collect())
}

fn has_namespace(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

fn mark(instance: &Instance) -> String {
    format!("homestak {}", instance.root().display())
}

fn alias(link: &str) -> String {
    let path = Path::new("/sys/class/net").join(link).join("ifalias");
    let text = fs_err::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// Reads the networks in a list of routes.
fn networks(routes: &str) -> Vec<(Ipv4Addr, u8)> {
    let words = routes.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        // Such as `local 192.0.2.2 dev eth0`.
        let typed = [
            "local",
            "broadcast",
            "unreachable",
            "blackhole",
            "prohibit",
            "multicast",
        ];
        if typed.contains(&first) {
            words.next()
        } else {
            Some(first)
        }
    });
    words
        .filter_map(|word| match word.split_once('/') {
            Some((address, prefix)) => Some((address.parse().ok()?, prefix.parse().ok()?)),
            None => Some((word.parse().ok()?, 32)),
        })
        .filter(|(_, prefix)| *prefix > 0)
        .collect()
}

fn shared_lock(doing: &str) -> Result<Lock, PortError> {
    let patience = Timeouts::default().of(Limit::Lock);
    Lock::take(&Path::new(SHARED).join("lock"), patience).map_err(|error| error::io(doing, &error))
}

/// Lets the machine forward, when it does not. Answers come in on links that are not ours, so that
/// the setting of our own link is not enough. It stays after the last node is deleted: others may
/// rely on it by then.
fn forward() -> std::io::Result<()> {
    if fs_err::read_to_string(FORWARD)?.trim() == "0" {
        fs_err::write(FORWARD, "1")?;
    }
    Ok(())
}

/// Removes the lock that local hosts of the machine share; a waiting process creates another.
fn remove_shared_lock() -> Result<(), PortError> {
    let shared = Path::new(SHARED);
    if shared.exists() {
        let _turn = shared_lock("take down what local hosts share")?;
        let _ = fs_err::remove_file(shared.join("lock"));
        let _ = fs_err::remove_dir(shared);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_the_machine_are_read() {
        let text = "default via 192.0.2.1 dev eth0 \n10.0.0.0/8 dev vpn \nlocal 10.77.0.1 dev x table local\nbroadcast 10.1.2.255 dev y\n";
        let found = networks(text);
        let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        assert_eq!(
            found,
            [
                (address("10.0.0.0"), 8),
                (address("10.77.0.1"), 32),
                (address("10.1.2.255"), 32)
            ]
        );
    }

    #[test]
    fn overlapping_networks_are_detected() {
        let network = Network::new(Ipv4Addr::new(10, 77, 0, 0));
        let clash = |text: &str, prefix| network.overlaps(text.parse().expect("one"), prefix);
        assert!(clash("10.0.0.0", 8));
        assert!(clash("10.77.3.0", 24));
        assert!(clash("10.77.15.255", 32));
        assert!(!clash("10.77.16.0", 20));
        assert!(!clash("192.168.0.0", 16));
    }

    #[test]
    fn gateway_network_and_broadcast_addresses_are_not_assigned() {
        let network = Network::new(Ipv4Addr::new(10, 77, 0, 0));
        assert_eq!(network.address_at(0), Ipv4Addr::new(10, 77, 0, 2));
        assert_eq!(
            network.address_at(network.capacity() - 1),
            Ipv4Addr::new(10, 77, 15, 254)
        );
        assert!(!network.is_assignable(network.gateway()));
    }
}
