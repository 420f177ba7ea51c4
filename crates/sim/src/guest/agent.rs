//! The guest agent: when it answers, and which interfaces and addresses it reports.

use serde_json::{Value, json};

use crate::schema::property;
use crate::world::Kind;
use crate::world::state::Guest;

impl Guest {
    /// Whether the configuration enables the agent.
    pub(crate) fn agent_is_enabled(&self) -> bool {
        self.config.value("agent").is_some_and(|text| {
            property::split(text, "enabled")
                .iter()
                .any(|(key, value)| key == "enabled" && value == "1")
        })
    }

    /// Whether the agent answers now.
    pub(crate) fn agent_answers(&self, now: f64) -> bool {
        self.agent_is_enabled()
            && self
                .running
                .as_ref()
                .and_then(|running| running.agent_from)
                .is_some_and(|from| now >= from)
    }

    /// Returns name, hardware address and IP address of each network.
    fn networks(&self) -> Vec<(String, String, Option<String>)> {
        let mut found = Vec::new();
        for (number, text) in self.interfaces_configured() {
            let parts = property::split(text, "model");
            let mac = parts
                .iter()
                .map(|(_, value)| value)
                .find(|value| value.len() == 17 && value.matches(':').count() == 5)
                .cloned()
                .unwrap_or_else(|| "BC:24:11:00:00:00".to_owned());
            let name = property::part(&parts, "name")
                .map_or_else(|| format!("eth{number}"), ToOwned::to_owned);
            let address = self
                .fixed_address(number, text)
                // The lease of the simulated DHCP.
                .or_else(|| self.leases.get(&number).map(|ip| format!("{ip}/16")));
            found.push((name, mac.to_lowercase(), address));
        }
        found
    }

    /// Returns number and value of each `netN` key.
    fn interfaces_configured(&self) -> impl Iterator<Item = (u32, &str)> {
        self.config.values().iter().filter_map(|(key, text)| {
            let number = key.strip_prefix("net")?.parse().ok()?;
            Some((number, text.as_str()))
        })
    }

    /// Returns the static address of an interface.
    fn fixed_address(&self, number: u32, text: &str) -> Option<String> {
        let own = property::part(&property::split(text, "model"), "ip").map(ToOwned::to_owned);
        let configured = || {
            let text = self.config.value(&format!("ipconfig{number}"))?;
            property::part(&property::split(text, "ip"), "ip").map(ToOwned::to_owned)
        };
        own.or_else(configured).filter(|ip| ip.contains('/'))
    }

    /// Returns the interfaces that use DHCP and have no lease yet.
    pub(crate) fn interfaces_without_address(&self) -> Vec<u32> {
        self.interfaces_configured()
            .filter(|(number, text)| self.fixed_address(*number, text).is_none())
            .map(|(number, _)| number)
            .filter(|number| !self.leases.contains_key(number))
            .collect()
    }

    /// Returns the address of the first network.
    pub(crate) fn address_of(&self) -> Option<String> {
        let (_, _, address) = self.networks().into_iter().next()?;
        let address = address?;
        Some(address.split('/').next().unwrap_or("").to_owned())
    }

    /// Returns the interfaces, without addresses until the guest's network is up.
    pub(crate) fn interfaces_at(&self, now: f64) -> Value {
        let mut shown = self.interfaces();
        let up = self.running.as_ref();
        if up.is_none_or(|running| now < running.address_from) {
            let list = match self.kind {
                Kind::Qemu => &mut shown["result"],
                Kind::Lxc => &mut shown,
            };
            for entry in list.as_array_mut().into_iter().flatten().skip(1) {
                entry["ip-addresses"] = json!([]);
                if let Some(object) = entry.as_object_mut() {
                    object.remove("inet");
                    object.remove("inet6");
                }
            }
        }
        shown
    }

    /// Whether SSH answers at an address now.
    pub(crate) fn ssh_answers(&self, address: &str, now: f64) -> bool {
        let up = |from: Option<f64>| from.is_some_and(|from| now >= from);
        let running = self.running.as_ref();
        running.is_some_and(|running| up(Some(running.address_from)) && up(running.ssh_from))
            && self.address_of().as_deref() == Some(address)
    }

    /// Returns the interfaces in the format of the agent of a VM or of a container.
    pub(crate) fn interfaces(&self) -> Value {
        let mut list =
            vec![self.interface("lo", "00:00:00:00:00:00", Some("127.0.0.1/8"), "::1/128")];
        for (name, mac, address) in self.networks() {
            let local = format!("{}/64", link_local(&mac));
            list.push(self.interface(&name, &mac, address.as_deref(), &local));
        }
        match self.kind {
            Kind::Qemu => json!({ "result": list }),
            Kind::Lxc => json!(list),
        }
    }

    fn interface(&self, name: &str, mac: &str, v4: Option<&str>, v6: &str) -> Value {
        let addresses: Vec<Value> = [v4.map(|ip| (ip, 4)), Some((v6, 6))]
            .into_iter()
            .flatten()
            .map(|(ip, version)| self.address(ip, version))
            .collect();
        match self.kind {
            Kind::Qemu => json!({
                "name": name,
                "hardware-address": mac,
                "ip-addresses": addresses,
                "statistics": {
                    "rx-bytes": 0, "rx-packets": 0, "rx-errs": 0, "rx-dropped": 0,
                    "tx-bytes": 0, "tx-packets": 0, "tx-errs": 0, "tx-dropped": 0,
                },
            }),
            Kind::Lxc => {
                let mut shown = json!({
                    "name": name,
                    "hwaddr": mac,
                    "hardware-address": mac,
                    "ip-addresses": addresses,
                    "inet6": v6,
                });
                if let Some(v4) = v4 {
                    shown["inet"] = json!(v4);
                }
                shown
            }
        }
    }

    /// Renders an address, in which VMs and containers differ, even in the type of the prefix.
    fn address(&self, text: &str, version: u8) -> Value {
        let (ip, prefix) = text.split_once('/').unwrap_or((text, "32"));
        match self.kind {
            Kind::Qemu => json!({
                "ip-address": ip,
                "ip-address-type": format!("ipv{version}"),
                "prefix": prefix.parse::<u8>().unwrap_or(32),
            }),
            Kind::Lxc => json!({
                "ip-address": ip,
                "ip-address-type": if version == 4 { "inet" } else { "inet6" },
                "prefix": prefix,
            }),
        }
    }
}

/// Returns the IPv6 link-local address for a hardware address.
fn link_local(mac: &str) -> String {
    let bytes: Vec<u8> = mac
        .split(':')
        .filter_map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    let [a, b, c, d, e, f] = bytes[..] else {
        return "fe80::1".to_owned();
    };
    let join = |high: u8, low: u8| (u16::from(high) << 8) | u16::from(low);
    let address = std::net::Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        join(a ^ 2, b),
        join(c, 0xff),
        join(0xfe, d),
        join(e, f),
    );
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_local_address_is_derived_from_the_hardware_address() {
        assert_eq!(link_local("bc:24:11:00:04:60"), "fe80::be24:11ff:fe00:460");
    }
}
