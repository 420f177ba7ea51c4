//! The card that leads outside, its addresses and the gateway, without addresses of the link
//! alone.

use std::net::Ipv4Addr;

use homestak_core::converge::{NetworkFact, NetworkManager};
use serde_json::Value;

use crate::error::AgentError;
use crate::process;

/// Looks at the network. Who sets it up is for others to find out.
pub(crate) fn network() -> Result<NetworkFact, AgentError> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let routes = fs_err::read_to_string("/proc/net/route").unwrap_or_default();
    let (way_out, gateway) = default_route(&routes).unzip();
    let cards = ask(&["ip", "-json", "address", "show", "up"])?;
    let mut cards = cards.as_array().cloned().unwrap_or_default();
    cards.retain(|card| card["ifname"] != "lo");
    let first = cards.first().and_then(|card| text(&card["ifname"]));
    let interface = way_out.or(first).unwrap_or_default();
    let card = cards
        .iter()
        .find(|card| card["ifname"] == interface.as_str());
    let addresses = card
        .and_then(|card| card["addr_info"].as_array())
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

/// Finds the way out in the kernel's table of routes: the card, and the gateway when there is one.
fn default_route(table: &str) -> Option<(String, Option<String>)> {
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [card, to, gateway, flags, _, _, metric, mask, ..] = fields.as_slice() else {
            return None;
        };
        let up = u32::from_str_radix(flags, 16).ok()? & 1 == 1;
        let everywhere = *to == "00000000" && *mask == "00000000";
        // Written as a number of this machine, whose bytes are those of the network.
        let gateway = u32::from_str_radix(gateway, 16).ok()?;
        let gateway = (gateway != 0).then(|| Ipv4Addr::from(gateway.to_ne_bytes()).to_string());
        let metric: u32 = metric.parse().ok()?;
        (up && everywhere).then(|| (metric, (*card).to_owned(), gateway))
    });
    let (_, card, gateway) = routes.min_by_key(|(metric, ..)| *metric)?;
    Some((card, gateway))
}

fn ask(words: &[&str]) -> Result<Value, AgentError> {
    let text = process::must(words)?;
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    serde_json::from_str(&text).map_err(AgentError::look("the network"))
}

#[cfg(test)]
mod tests {
    use super::default_route;

    const HEAD: &str =
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_way_out_is_the_default_route_with_the_smallest_metric() {
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
