//! Renders the files of the cloud-init drive that Proxmox VE generates for a VM.

use std::net::Ipv4Addr;

use percent_encoding::percent_decode_str;

use crate::schema::property;
use crate::world::state::Guest;

impl Guest {
    /// Renders one of the files of the drive.
    pub(crate) fn cloudinit_dump(&self, which: &str, dns: &str) -> String {
        match which {
            "network" => self.network_data(dns),
            "meta" => format!("instance-id: {}\n", &self.config.digest()),
            _ => self.user_data(),
        }
    }

    fn user_data(&self) -> String {
        let name = self.name();
        let mut text =
            format!("#cloud-config\nhostname: {name}\nmanage_etc_hosts: true\nfqdn: {name}\n");
        if let Some(user) = self.config.value("ciuser") {
            text.push_str(&format!("user: {user}\n"));
        }
        if let Some(password) = self.config.value("cipassword") {
            text.push_str(&format!("password: {password}\n"));
        }
        if let Some(keys) = self.config.value("sshkeys") {
            text.push_str("ssh_authorized_keys:\n");
            let keys = percent_decode_str(keys).decode_utf8_lossy();
            for key in keys.lines().filter(|line| !line.trim().is_empty()) {
                text.push_str(&format!("  - {key}\n"));
            }
        }
        text.push_str("chpasswd:\n  expire: False\nusers:\n  - default\n");
        let upgrade = self.config.value("ciupgrade") != Some("0");
        text.push_str(&format!("package_upgrade: {upgrade}\n"));
        text
    }

    fn network_data(&self, dns: &str) -> String {
        let mut text = String::from("version: 1\nconfig:\n");
        for (key, value) in self.config.values() {
            let Some(number) = key.strip_prefix("net").and_then(|n| n.parse::<u32>().ok()) else {
                continue;
            };
            let mac = value
                .split([',', '='])
                .find(|part| part.matches(':').count() == 5)
                .unwrap_or("")
                .to_lowercase();
            text.push_str(&format!(
                "    - type: physical\n      name: eth{number}\n      mac_address: '{mac}'\n"
            ));
            let Some(address) = self.config.value(&format!("ipconfig{number}")) else {
                continue;
            };
            text.push_str("      subnets:\n");
            text.push_str(&subnet(address));
        }
        text.push_str(&format!(
            "    - type: nameserver\n      address:\n      - '{dns}'\n"
        ));
        text
    }
}

fn subnet(text: &str) -> String {
    let parts = property::split(text, "ip");
    let ip = property::part(&parts, "ip").unwrap_or("dhcp");
    let Some((address, bits)) = ip.split_once('/') else {
        return "      - type: dhcp4\n".to_owned();
    };
    let bits = bits.parse::<u32>().unwrap_or(24).min(32);
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    let mut text = format!(
        "      - type: static\n        address: '{address}'\n        netmask: '{}'\n",
        Ipv4Addr::from(mask)
    );
    if let Some(gateway) = property::part(&parts, "gw") {
        text.push_str(&format!("        gateway: '{gateway}'\n"));
    }
    text
}
