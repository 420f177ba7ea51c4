//! The card that leads outside, its addresses, the gateway.
//!
//! In: what `ip` says. Out: [`NetworkFact`].
//! Never: addresses of the link alone, which every card has.

use homestak_core::converge::{NetworkFact, NetworkManager};
use serde_json::Value;

use crate::error::AgentError;
use crate::process;

/// Looks at the network; `networkd` tells whether systemd-networkd sets it up.
pub(super) fn network(networkd: bool) -> Result<NetworkFact, AgentError> {
    let routes = ask(&["ip", "-json", "route", "show", "default"])?;
    let cards = ask(&["ip", "-json", "address", "show", "up"])?;
    let route = routes.as_array().and_then(|routes| routes.first());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let gateway = route.and_then(|route| text(&route["gateway"]));
    let mut cards = cards.as_array().cloned().unwrap_or_default();
    cards.retain(|card| card["ifname"] != "lo");
    let way_out = route.and_then(|route| text(&route["dev"]));
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
        gateway,
        manager: if networkd {
            NetworkManager::Networkd
        } else {
            NetworkManager::Other
        },
    })
}

fn ask(words: &[&str]) -> Result<Value, AgentError> {
    let text = process::must(words)?;
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    serde_json::from_str(&text).map_err(|source| AgentError::Look {
        what: "the network".to_owned(),
        source: source.into(),
    })
}
