//! Hosts.

use homestak_api::v1::{
    HostPreflight, HostSummary, LocalReport, PreflightFinding, PreflightOutcome, PveMember,
    PveReport, PveStorage,
};
use homestak_core::catalog::Catalog;
use homestak_engine::ports::{Capabilities, Inventory};
use homestak_providers::finding::{Finding, FindingSeverity};
use homestak_providers::pve::preflight::worst;

use crate::error::count;

/// Lists every host of the site, with how it is reached and how its certificate is verified.
pub fn list(catalog: &Catalog) -> Vec<HostSummary> {
    let host = |name: &str, address: String, trust: &str| HostSummary {
        name: name.to_owned(),
        kind: catalog.label_of(name).to_owned(),
        address,
        trust: trust.to_owned(),
    };
    let mut hosts = Vec::new();
    for (name, document) in &catalog.nodes {
        let node = document.value.as_ref();
        let endpoint = node.and_then(|node| node.api_endpoint.as_ref());
        let trust = if node.is_some_and(|node| node.fingerprint.is_some()) {
            "fingerprint"
        } else if node.is_some_and(|node| node.ca.is_some()) {
            "authority"
        } else {
            "public authorities"
        };
        let endpoint = endpoint.map(ToString::to_string);
        hosts.push(host(name, endpoint.unwrap_or_default(), trust));
    }
    let others = catalog.hosts.iter();
    for (name, document) in others.filter(|(name, _)| !catalog.nodes.contains_key(*name)) {
        let ip = document.value.as_ref().and_then(|host| host.ip.as_ref());
        let ip = ip.map(ToString::to_string);
        hosts.push(host(name, ip.unwrap_or_default(), ""));
    }
    let built_in = catalog.built_in_hosts();
    hosts.extend(built_in.map(|name| host(name, String::new(), "")));
    hosts
}

/// Converts what a Proxmox VE host reports of itself.
pub(crate) fn pve_report(capabilities: &Capabilities, observed: &Inventory) -> PveReport {
    let guests = observed.guests.iter();
    let ours = guests.filter(|guest| guest.uuid.is_some()).count();
    let hosts = observed.hosts.iter().map(|host| PveMember {
        name: host.name.clone(),
        online: host.online,
    });
    let storages = observed.storages.iter().map(|storage| PveStorage {
        name: storage.name.clone(),
        host: storage.host.clone(),
        content: storage.content.clone(),
        active: storage.active,
    });
    PveReport {
        product: capabilities.product.clone(),
        writable: capabilities.writable,
        hosts: hosts.collect(),
        storages: storages.collect(),
        guests: format!(
            "{}, {ours} of them ours",
            count(observed.guests.len(), "guest")
        ),
    }
}

/// Converts the checks of this machine.
pub(crate) fn local_report(findings: &[Finding]) -> LocalReport {
    let failures = findings.iter();
    let failures = failures.filter(|finding| finding.severity == FindingSeverity::Failure);
    let lacks: Vec<String> = failures.map(|finding| finding.detail.clone()).collect();
    LocalReport {
        ready: lacks.is_empty(),
        lacks,
    }
}

/// Converts the checks of a host.
pub fn preflight(host: &str, findings: &[Finding]) -> HostPreflight {
    let finding = |finding: &Finding| PreflightFinding {
        check: finding.check.to_owned(),
        outcome: match finding.severity {
            FindingSeverity::Good => PreflightOutcome::Good,
            FindingSeverity::Unknown => PreflightOutcome::Unknown,
            FindingSeverity::Warning => PreflightOutcome::Warning,
            FindingSeverity::Failure => PreflightOutcome::Failure,
        },
        detail: finding.detail.clone(),
        fix: finding.fix.clone(),
    };
    HostPreflight {
        success: worst(findings) != FindingSeverity::Failure,
        host: host.to_owned(),
        findings: findings.iter().map(finding).collect(),
    }
}
