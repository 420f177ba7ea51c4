//! First-boot data: what a machine is told before anyone can reach it.
//!
//! In: what a node should be, its keys. Out: the three files of cloud-init's NoCloud.
//! Never: a first boot that differs between hosts; whoever hosts the node gives it the same.

use serde_json::{Value as Json, json};

use crate::plan::Wanted;

/// The three files of NoCloud. There is no `Debug`: user-data may hold secrets.
pub struct FirstBoot {
    /// Users, keys, packages.
    pub user_data: String,
    /// Who the machine is.
    pub meta_data: String,
    /// Where it is on the network.
    pub network_config: String,
}

/// Makes the first-boot data of a node.
pub fn first_boot(name: &str, wanted: &Wanted, keys: &[String]) -> FirstBoot {
    FirstBoot {
        user_data: format!("#cloud-config\n{}", text(&user_data(name, wanted, keys))),
        meta_data: text(&json!({
            // cloud-init boots for the first time whenever this is new.
            "instance-id": wanted.uuid.as_str(),
            "local-hostname": name,
        })),
        network_config: text(&network_config(wanted)),
    }
}

/// JSON is YAML, and has one way to write each value.
fn text(value: &Json) -> String {
    format!("{value:#}\n")
}

fn user_data(name: &str, wanted: &Wanted, keys: &[String]) -> Json {
    json!({
        "hostname": name,
        "manage_etc_hosts": true,
        "users": [{
            "name": wanted.user,
            "groups": "sudo",
            "shell": "/bin/bash",
            "sudo": "ALL=(ALL) NOPASSWD:ALL",
            "lock_passwd": true,
            "ssh_authorized_keys": keys,
        }],
        "ssh_pwauth": false,
        "package_update": true,
        "packages": wanted.packages,
        "runcmd": [["systemctl", "enable", "--now", "qemu-guest-agent"]],
    })
}

/// Matched by MAC, because names of network cards depend on the machine.
fn network_config(wanted: &Wanted) -> Json {
    let mut card = json!({ "match": { "macaddress": wanted.mac } });
    match wanted.address {
        Some((address, prefix)) => {
            card["addresses"] = json!([format!("{address}/{prefix}")]);
            if let Some(gateway) = wanted.gateway {
                card["routes"] = json!([{ "to": "default", "via": gateway.to_string() }]);
            }
        }
        None => card["dhcp4"] = true.into(),
    }
    if !wanted.dns.is_empty() {
        let dns: Vec<String> = wanted.dns.iter().map(ToString::to_string).collect();
        card["nameservers"] = json!({ "addresses": dns });
    }
    json!({ "version": 2, "ethernets": { "lan": card } })
}
