//! Names, time zone, network.
//!
//! In: what is wanted. Out: entries of the ledger.
//! Never: a network set up by something else than systemd-networkd changed; that is named only.

use super::change::{Danger, Handling};
use super::edit;
use super::facts::{FileFact, NetworkManager};
use super::ledger::Ledger;
use super::step::Step;

/// The host name.
pub(super) const HOSTNAME: &str = "/etc/hostname";
/// Names and addresses.
pub(super) const HOSTS: &str = "/etc/hosts";
/// The time zone, as a link.
pub(super) const LOCALTIME: &str = "/etc/localtime";
/// The time zone, as a word.
pub(super) const TIMEZONE: &str = "/etc/timezone";
/// The tz database.
pub(super) const ZONES: &str = "/usr/share/zoneinfo";
/// Our part of the network's configuration. The first file that matches a card counts.
pub(super) const NETWORK: &str = "/etc/systemd/network/05-homestak.network";
/// Name servers.
pub(super) const RESOLV: &str = "/etc/resolv.conf";
/// The pages of Proxmox VE that have the notice.
pub(super) const NOTICE: &str = "/usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js";

const ROOTS: (u32, &str, &str) = (0o644, "root", "root");

pub(super) fn hostname(id: &str, name: &str, ledger: &mut Ledger<'_>) {
    let found = ledger.facts.hostname.clone();
    if ledger.compare(id, "kernel", name, &found, None) {
        let name = name.to_owned();
        ledger.steps.insert(Step::Hostname { name });
    }
    ledger.put(id, HOSTNAME, format!("{name}\n"), ROOTS, Vec::new());
}

pub(super) fn hosts(id: &str, address: &str, names: &[String], ledger: &mut Ledger<'_>) {
    let text = if ledger.facts.files.contains_key(HOSTS) {
        ledger.text(HOSTS).unwrap_or_default()
    } else {
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
    };
    let text = text.to_owned();
    let right = edit::hosts(&text, address, names);
    let line = format!("{address} {}", names.join(" "));
    let found = if text == right {
        line.as_str()
    } else {
        "otherwise"
    };
    if ledger.compare(id, "line", &line, found, None) {
        ledger.need(HOSTS);
        ledger.edit(id, HOSTS, right, Vec::new());
    }
}

pub(super) fn timezone(id: &str, zone: &str, ledger: &mut Ledger<'_>) {
    let files = &ledger.facts.files;
    let target = format!("{ZONES}/{zone}");
    let known = files.contains_key(&target);
    let found = match files.get(LOCALTIME) {
        Some(FileFact::Link { target }) => target
            .split_once("zoneinfo/")
            .map_or_else(|| target.clone(), |(_, zone)| zone.to_owned()),
        Some(FileFact::Regular { .. } | FileFact::Directory { .. } | FileFact::Other) => {
            "no link".to_owned()
        }
        None => "absent".to_owned(),
    };
    if !known && ledger.facts.packages.contains_key("tzdata") && !ledger.ignores(id, "zone") {
        ledger.refuse(format!("there is no time zone `{zone}`"));
    }
    if ledger.compare(id, "zone", zone, &found, None) {
        let path = LOCALTIME.to_owned();
        ledger.steps.insert(Step::Link { path, target });
    }
    // Newer releases have no such file.
    if ledger.facts.files.contains_key(TIMEZONE) {
        ledger.put(id, TIMEZONE, format!("{zone}\n"), ROOTS, Vec::new());
    }
}

/// A fixed address that is wanted.
pub(super) struct WantedNetwork<'a> {
    pub(super) address: &'a str,
    pub(super) gateway: Option<&'a str>,
    pub(super) dns: &'a [String],
    pub(super) domain: Option<&'a str>,
}

pub(super) fn network(id: &str, wanted: &WantedNetwork<'_>, ledger: &mut Ledger<'_>) {
    let danger = Some(Danger::Network);
    let found = ledger.facts.network.clone();
    let addresses = found.addresses.join(", ");
    let gateway = found.gateway.as_deref().unwrap_or("none").to_owned();
    let wanted_gateway = wanted.gateway.unwrap_or("none").to_owned();
    if found.manager == NetworkManager::Other {
        for (field, expected, found) in [
            ("address", wanted.address, &addresses),
            ("gateway", &wanted_gateway, &gateway),
        ] {
            if ledger.ignores(id, field) {
                continue;
            }
            ledger
                .fields
                .insert(format!("{id}/{field}"), expected.to_owned());
            if expected != found {
                ledger.note(id, field, expected, found, danger, Handling::Report);
            }
        }
        return;
    }
    let interface = found.interface;
    let mut differs = ledger.compare(id, "address", wanted.address, &addresses, danger);
    differs |= ledger.compare(id, "gateway", &wanted_gateway, &gateway, danger);
    if differs {
        ledger.need(NETWORK);
        let interface = interface.clone();
        ledger.steps.insert(Step::Network { interface });
    }
    let mut lines = format!(
        "# Written by homestak.\n[Match]\nName={interface}\n\n[Network]\nAddress={}\n",
        wanted.address
    );
    for (key, value) in [("Gateway", wanted.gateway), ("Domains", wanted.domain)] {
        if let Some(value) = value {
            lines += &format!("{key}={value}\n");
        }
    }
    for server in wanted.dns {
        lines += &format!("DNS={server}\n");
    }
    ledger.put(id, NETWORK, lines, ROOTS, Vec::new());
    // A link leads to a resolver that takes name servers from the file above.
    if !wanted.dns.is_empty()
        && let Some(text) = ledger.text(RESOLV).map(str::to_owned)
    {
        let right = edit::resolv(&text, wanted.dns, wanted.domain);
        let servers = |text: &str| -> String {
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix("nameserver "));
            lines.map(str::trim).collect::<Vec<_>>().join(", ")
        };
        let (expected, found) = (servers(&right), servers(&text));
        let mended = ledger.compare(id, "dns", &expected, &found, danger);
        if mended {
            ledger.need(RESOLV);
        }
        let left = expected != found && !mended || ledger.ignores(id, "dns");
        if right != text && !left {
            ledger.edit(id, RESOLV, right, Vec::new());
        }
    }
}

pub(super) fn notice(id: &str, removed: bool, ledger: &mut Ledger<'_>) {
    if !removed {
        return;
    }
    let Some(text) = ledger.text(NOTICE) else {
        return;
    };
    let without = edit::notice(text);
    let found = if without == text { "absent" } else { "present" };
    if ledger.compare(id, "notice", "absent", found, None) {
        ledger.need(NOTICE);
        ledger.edit(id, NOTICE, without, Vec::new());
    }
}
