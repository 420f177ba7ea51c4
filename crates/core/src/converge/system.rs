//! Host name, time zone and network. A network that is not configured by systemd-networkd is only
//! reported.

use super::change::{Danger, Handling};
use super::decision_builder::DecisionBuilder;
use super::edit;
use super::facts::{FileFact, NetworkManager};
use super::step::ConvergeStep;

/// The host name file.
pub(super) const HOSTNAME: &str = "/etc/hostname";
/// The hosts file.
pub(super) const HOSTS: &str = "/etc/hosts";
/// The link to the time zone.
pub(super) const LOCALTIME: &str = "/etc/localtime";
/// The name of the time zone.
pub(super) const TIMEZONE: &str = "/etc/timezone";
/// The tz database.
pub(super) const ZONES: &str = "/usr/share/zoneinfo";
/// The managed network configuration. networkd uses the first file that matches an interface.
pub(super) const NETWORK: &str = "/etc/systemd/network/05-homestak.network";
/// The resolver configuration.
pub(super) const RESOLV: &str = "/etc/resolv.conf";
/// The script of Proxmox VE that shows the subscription notice.
pub(super) const NOTICE: &str = "/usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js";

const ROOT_FILE: (u32, &str, &str) = (0o644, "root", "root");

pub(super) fn hostname(id: &str, name: &str, builder: &mut DecisionBuilder<'_>) {
    let found = builder.facts.hostname.clone();
    if builder.compare(id, "kernel", name, &found, None) {
        let name = name.to_owned();
        builder.steps.insert(ConvergeStep::Hostname { name });
    }
    builder.put_file(id, HOSTNAME, format!("{name}\n"), ROOT_FILE, Vec::new());
}

pub(super) fn hosts(id: &str, address: &str, names: &[String], builder: &mut DecisionBuilder<'_>) {
    let text = if builder.facts.files.contains_key(HOSTS) {
        builder.text(HOSTS).unwrap_or_default()
    } else {
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
    };
    let text = text.to_owned();
    let right = edit::hosts(&text, address, names);
    let line = format!("{address} {}", names.join(" "));
    let found = if text == right {
        line.as_str()
    } else {
        "different"
    };
    if builder.compare(id, "line", &line, found, None) {
        builder.require(HOSTS);
        builder.edit_file(id, HOSTS, right, Vec::new());
    }
}

pub(super) fn timezone(id: &str, zone: &str, builder: &mut DecisionBuilder<'_>) {
    let files = &builder.facts.files;
    let target = format!("{ZONES}/{zone}");
    let known = files.contains_key(&target);
    let found = match files.get(LOCALTIME) {
        Some(FileFact::Link { target }) => target
            .split_once("zoneinfo/")
            .map_or_else(|| target.clone(), |(_, zone)| zone.to_owned()),
        Some(FileFact::Regular { .. } | FileFact::Directory { .. } | FileFact::Other) => {
            "not a link".to_owned()
        }
        None => "absent".to_owned(),
    };
    if !known && builder.facts.packages.contains_key("tzdata") && !builder.ignores(id, "zone") {
        builder.refuse(format!("time zone `{zone}` does not exist on this node"));
    }
    if builder.compare(id, "zone", zone, &found, None) {
        let path = LOCALTIME.to_owned();
        builder.steps.insert(ConvergeStep::Link { path, target });
    }
    // Newer releases have no such file.
    if builder.facts.files.contains_key(TIMEZONE) {
        builder.put_file(id, TIMEZONE, format!("{zone}\n"), ROOT_FILE, Vec::new());
    }
}

/// A desired static address.
pub(super) struct DesiredNetwork<'a> {
    pub(super) address: &'a str,
    pub(super) gateway: Option<&'a str>,
    pub(super) dns: &'a [String],
    pub(super) domain: Option<&'a str>,
}

pub(super) fn network(id: &str, desired: &DesiredNetwork<'_>, builder: &mut DecisionBuilder<'_>) {
    let danger = Some(Danger::Network);
    let found = builder.facts.network.clone();
    let addresses = found.addresses.join(", ");
    let gateway = found.gateway.as_deref().unwrap_or("none").to_owned();
    let desired_gateway = desired.gateway.unwrap_or("none").to_owned();
    if found.manager == NetworkManager::Other {
        for (field, expected, found) in [
            ("address", desired.address, &addresses),
            ("gateway", &desired_gateway, &gateway),
        ] {
            if builder.ignores(id, field) {
                continue;
            }
            builder
                .fields
                .insert(format!("{id}/{field}"), expected.to_owned());
            if expected != found {
                builder.report(id, field, expected, found, danger, Handling::Report);
            }
        }
        return;
    }
    let interface = found.interface;
    let mut differs = builder.compare(id, "address", desired.address, &addresses, danger);
    differs |= builder.compare(id, "gateway", &desired_gateway, &gateway, danger);
    if differs {
        builder.require(NETWORK);
        let interface = interface.clone();
        builder.steps.insert(ConvergeStep::Network { interface });
    }
    let mut lines = format!(
        "# Written by homestak.\n[Match]\nName={interface}\n\n[Network]\nAddress={}\n",
        desired.address
    );
    for (key, value) in [("Gateway", desired.gateway), ("Domains", desired.domain)] {
        if let Some(value) = value {
            lines += &format!("{key}={value}\n");
        }
    }
    for server in desired.dns {
        lines += &format!("DNS={server}\n");
    }
    builder.put_file(id, NETWORK, lines, ROOT_FILE, Vec::new());
    // If it is a link, a local resolver takes name servers from the file above.
    if !desired.dns.is_empty()
        && let Some(text) = builder.text(RESOLV).map(str::to_owned)
    {
        let right = edit::resolv(&text, desired.dns, desired.domain);
        let servers = |text: &str| -> String {
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix("nameserver "));
            lines.map(str::trim).collect::<Vec<_>>().join(", ")
        };
        let (expected, found) = (servers(&right), servers(&text));
        let corrected = builder.compare(id, "dns", &expected, &found, danger);
        if corrected {
            builder.require(RESOLV);
        }
        let stays = expected != found && !corrected || builder.ignores(id, "dns");
        if right != text && !stays {
            builder.edit_file(id, RESOLV, right, Vec::new());
        }
    }
}

pub(super) fn notice(id: &str, removed: bool, builder: &mut DecisionBuilder<'_>) {
    if !removed {
        return;
    }
    let Some(text) = builder.text(NOTICE) else {
        return;
    };
    let without = edit::without_subscription_notice(text);
    let found = if without == text { "absent" } else { "present" };
    if builder.compare(id, "notice", "absent", found, None) {
        builder.require(NOTICE);
        builder.edit_file(id, NOTICE, without, Vec::new());
    }
}
