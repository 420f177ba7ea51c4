//! The interface with the default route, its global addresses and the gateway.

use std::net::Ipv4Addr;

use homestak_core::converge::{NetworkFact, NetworkManager};
use serde_json::Value;

use crate::error::AgentError;
use crate::process;

/// Observes the network, except its manager; the caller determines the manager.
pub(crate) fn network() -> Result<NetworkFact, AgentError> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let routes = fs_err::read_to_string("/proc/net/route").unwrap_or_default();
    let (default, gateway) = default_route(&routes).unzip();
    let interfaces = ip(&["ip", "-json", "address", "show", "up"])?;
    let mut interfaces = interfaces.as_array().cloned().unwrap_or_default();
    interfaces.retain(|one| one["ifname"] != "lo");
    let first = interfaces.first().and_then(|one| text(&one["ifname"]));
    let interface = default.or(first).unwrap_or_default();
    let current = interfaces
        .iter()
        .find(|one| one["ifname"] == interface.as_str());
    let addresses = current
        .and_then(|one| one["addr_info"].as_array())
        .into_iter()
        .flatten()
        .filter(|address| address["scope"] == "global")
        .filter_map(|address| {
            Some(format!(
                "{}/{}",
                text(&address["local"])?,
                address["prefixlen"]
            ))
        })
        .collect();
    Ok(NetworkFact {
        interface,
        addresses,
        gateway: gateway.flatten(),
        manager: NetworkManager::Other,
    })
}

/// Finds the default route in the kernel's routing table: its interface, and the gateway if any.
fn default_route(table: &str) -> Option<(String, Option<String>)> {
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, to, gateway, flags, _, _, metric, mask, ..] = fields.as_slice() else {
            return None;
        };
        let up = u32::from_str_radix(flags, 16).ok()? & 1 == 1;
        let everywhere = *to == "00000000" && *mask == "00000000";
        // Printed as a native-endian integer; its bytes in memory are in network order.
        let gateway = u32::from_str_radix(gateway, 16).ok()?;
        let gateway = (gateway != 0).then(|| Ipv4Addr::from(gateway.to_ne_bytes()).to_string());
        let metric: u32 = metric.parse().ok()?;
        (up && everywhere).then(|| (metric, (*interface).to_owned(), gateway))
    });
    let (_, interface, gateway) = routes.min_by_key(|(metric, ..)| *metric)?;
    Some((interface, gateway))
}

fn ip(words: &[&str]) -> Result<Value, AgentError> {
    let text = process::run_ok(words)?;
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    serde_json::from_str(&text).map_err(AgentError::observe("the network"))
}

#[cfg(test)]
mod tests {
    use super::default_route;

    const HEAD: &str =
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_default_route_with_the_smallest_metric_is_used() {
        let table = format!(
            "{HEAD}eth1\t00000000\t{:08X}\t0003\t0\t0\t600\t00000000\t0\t0\t0\neth0\t00000000\t{:08X}\t0003\t0\t0\t0\t00000000\t0\t0\t0\neth0\t{:08X}\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
            u32::from_ne_bytes([192, 168, 1, 1]),
            u32::from_ne_bytes([10, 78, 0, 1]),
            u32::from_ne_bytes([10, 78, 0, 0]),
        );
        let found = default_route(&table);
        assert_eq!(found, Some(("eth0".into(), Some("10.78.0.1".into()))));
        assert_eq!(default_route(HEAD), None);
    }
}
