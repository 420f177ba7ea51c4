//! The address of a guest's first network card, as its agent or the container's host reports it.
//! Other cards, bridges inside the guest and link-local addresses are ignored.

use std::net::IpAddr;

use homestak_engine::ports::{GuestAddress, GuestKind, GuestRef};
use serde_json::Value;

use super::boot::SOON;
use super::client::{Pve, by_kind};
use super::error::{PveError, Reason};
use super::locate::SearchResult;
use super::quirks::text_of;
use super::requests::{CT_INTERFACES, VM_INTERFACES};

impl Pve {
    /// Looks once for the address of a guest's first network card.
    pub(super) async fn find_address(&self, guest: &GuestRef) -> Result<GuestAddress, PveError> {
        // A container is asked through its host, which answers at once.
        if guest.kind == GuestKind::Ct {
            return self.ask_address(guest).await;
        }
        let question = loop {
            let now = self.clock.now();
            match self.boots.ask(&guest.host, &guest.uuid, now).await {
                Ok(question) => break question,
                Err(left) if left <= SOON => self.clock.sleep(left).await,
                Err(_) => return Ok(GuestAddress::NoAgent),
            }
        };
        let found = self.ask_address(guest).await;
        // An unreachable host gives no information about the guest.
        if let Ok(found) = &found {
            question.record(*found != GuestAddress::NoAgent, self.clock.now());
        }
        found
    }

    async fn ask_address(&self, guest: &GuestRef) -> Result<GuestAddress, PveError> {
        let SearchResult::Ours(located) = self.find(guest).await? else {
            return Ok(GuestAddress::NoAddress);
        };
        let Some(mac) = located.config.mac() else {
            return Ok(GuestAddress::NoAddress);
        };
        let call = by_kind(located.kind, &VM_INTERFACES, &CT_INTERFACES)
            .at("node", &located.node)
            .at("vmid", located.vmid);
        match self.ask_once(&call).await {
            Ok(data) => Ok(address_of(located.kind, &data, &mac).into()),
            // Not yet: off, or its agent has not started.
            Err(error) if matches!(error.reason, Reason::NoAgent | Reason::NotRunning) => {
                Ok(GuestAddress::NoAgent)
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads the address: IPv4 before IPv6.
pub fn address_of(kind: GuestKind, data: &Value, mac: &str) -> Option<IpAddr> {
    if mac.is_empty() {
        return None;
    }
    let interfaces = match kind {
        GuestKind::Vm => data.get("result").unwrap_or(data),
        GuestKind::Ct => data,
    };
    let mut addresses: Vec<IpAddr> = interfaces
        .as_array()?
        .iter()
        .filter(|interface| {
            ["hardware-address", "hwaddr"]
                .iter()
                .any(|field| text_of(interface, field).eq_ignore_ascii_case(mac))
        })
        .flat_map(|interface| {
            let listed = interface.get("ip-addresses").and_then(Value::as_array);
            let listed = listed.map(Vec::as_slice).unwrap_or_default();
            let mut texts: Vec<String> = listed
                .iter()
                .map(|row| text_of(row, "ip-address"))
                .collect();
            // Older versions report it here only, with the prefix.
            texts.extend(["inet", "inet6"].map(|field| text_of(interface, field)));
            texts
        })
        .filter_map(|text| text.split('/').next().and_then(|text| text.parse().ok()))
        .filter(is_usable)
        .collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.into_iter().next()
}

fn is_usable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !address.is_loopback() && !address.is_link_local() && !address.is_unspecified()
        }
        IpAddr::V6(address) => {
            !address.is_loopback() && !address.is_unicast_link_local() && !address.is_unspecified()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_addresses_of_the_interface_with_the_mac_are_used() {
        let data = json!({"result": [
            {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1", "prefix": 8, "ip-address-type": "ipv4"}]},
            {"name": "docker0", "hardware-address": "02:42:00:00:00:01", "ip-addresses": [{"ip-address": "172.17.0.1"}]},
            {"name": "wait0", "hardware-address": "BC:24:11:00:00:02"},
            {"name": "eth0", "hardware-address": "BC:24:11:00:00:01", "ip-addresses": [
                {"ip-address": "fe80::1"}, {"ip-address": "2001:db8::5"}, {"ip-address": "10.0.12.5"}]},
        ]});
        let found = address_of(GuestKind::Vm, &data, "bc:24:11:00:00:01");
        assert_eq!(found, "10.0.12.5".parse().ok());
        assert_eq!(address_of(GuestKind::Vm, &data, "bc:24:11:00:00:02"), None);
        assert_eq!(
            address_of(GuestKind::Vm, &json!({"result": null}), "x"),
            None
        );
    }

    #[test]
    fn containers_report_addresses_in_another_format() {
        let data = json!([{"hwaddr": "bc:24:11:d8:db:cb", "name": "eth0", "inet": "10.77.0.231/24",
            "ip-addresses": [{"prefix": "24", "ip-address-type": "inet", "ip-address": "10.77.0.231"}]}]);
        let found = address_of(GuestKind::Ct, &data, "BC:24:11:D8:DB:CB");
        assert_eq!(found, "10.77.0.231".parse().ok());
        assert_eq!(
            address_of(GuestKind::Ct, &Value::Null, "BC:24:11:D8:DB:CB"),
            None
        );
    }
}
