//! Preflight checks of a Proxmox VE host; each failure names the command that fixes it.
//!
//! Evaluates [`Facts`] only: no I/O. Unknown never counts as good.

use std::net::SocketAddr;

use homestak_engine::ports::Bytes;

use super::capacity::{inactive_fix, too_large_for_host, too_large_for_storage};
use super::error::{PveError, Reason};
use super::facts::{Facts, Fetched, Privileges};
use super::role;
pub use crate::finding::{Finding, FindingSeverity};
pub use requirements::{FileRequirement, Requirements, SiteRequirements, StorageRequirement};

mod requirements;

/// Runs all checks, in the order in which problems are best fixed.
pub fn check(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let mut findings = vec![endpoint(facts)];
    if facts.version.known().is_some() {
        findings.push(version(facts));
        findings.extend(hosts(facts, wanted));
        findings.push(quorum(facts));
        findings.extend(privileges(facts, wanted));
        findings.extend(memory(facts, wanted));
        findings.extend(storages(facts, wanted));
        findings.extend(images(facts, wanted));
        findings.extend(bridges(facts, wanted));
        findings.extend(nested(facts, wanted));
    }
    findings.extend(ssh(facts));
    findings.extend(wanted.site.iter().flat_map(site));
    findings
}

/// Returns the worst outcome.
pub fn worst(findings: &[Finding]) -> FindingSeverity {
    let severities = findings.iter().map(|finding| finding.severity);
    severities.max().unwrap_or(FindingSeverity::Good)
}

fn finding(
    severity: FindingSeverity,
    check: &'static str,
    detail: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    Finding {
        severity,
        check,
        detail: detail.into(),
        fix: fix.into(),
    }
}

fn good(check: &'static str, detail: impl Into<String>) -> Finding {
    finding(FindingSeverity::Good, check, detail, "")
}

fn unknown(check: &'static str, error: Option<&PveError>, fix: impl Into<String>) -> Finding {
    let why = error.map_or("not queried", |error| error.detail.as_str());
    finding(
        FindingSeverity::Unknown,
        check,
        format!("unknown: {why}"),
        fix,
    )
}

fn endpoint(facts: &Facts) -> Finding {
    match &facts.version {
        Fetched::Known(_) => good("api", format!("reachable as {}", facts.user)),
        Fetched::NotAsked => unknown("api", None, ""),
        Fetched::Failed(error) => {
            let fix = match error.reason {
                Reason::Unauthenticated => {
                    let (user, token) = split_user(&facts.user);
                    format!("pveum user token list {user}   # does `{token}` exist, is it expired? recreate it: pveum user token remove {user} {token}; pveum user token add {user} {token} --privsep 1")
                }
                Reason::Certificate => "pvenode cert info   # on the host: compare the fingerprint with the recorded one".to_owned(),
                _ => "systemctl status pveproxy   # on the host: is it running, is port 8006 open?".to_owned(),
            };
            finding(FindingSeverity::Failure, "api", error.detail.as_str(), fix)
        }
    }
}

fn split_user(id: &str) -> (&str, &str) {
    id.split_once('!').unwrap_or((id, ""))
}

fn version(facts: &Facts) -> Finding {
    let Some(&(major, minor)) = facts.version.known() else {
        return unknown("version", None, "");
    };
    let text = format!("Proxmox VE {major}.{minor}");
    if role::is_verified(major) {
        good("version", text)
    } else if (major, minor) >= (8, 4) {
        finding(
            FindingSeverity::Warning,
            "version",
            format!("{text} is not tested"),
            "",
        )
    } else {
        let detail = format!("{text} cannot import images that were uploaded");
        finding(
            FindingSeverity::Failure,
            "version",
            detail,
            "upgrade to 8.4 or later (tested with 9)",
        )
    }
}

fn hosts(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let known = match &facts.hosts {
        Fetched::Known(hosts) => hosts,
        Fetched::Failed(error) => return vec![unknown("hosts", Some(error), "")],
        Fetched::NotAsked => return Vec::new(),
    };
    let check = |name: &String| match known.iter().find(|host| host.name == *name) {
        Some(host) if host.online => good("host", format!("{name} is online")),
        Some(_) => finding(
            FindingSeverity::Failure,
            "host",
            format!("{name} is offline"),
            format!("start {name}, or create the guests on another host"),
        ),
        None => {
            let names: Vec<&str> = known.iter().map(|host| host.name.as_str()).collect();
            let detail = format!(
                "host {name} does not exist; available: {}",
                names.join(", ")
            );
            finding(
                FindingSeverity::Failure,
                "host",
                detail,
                "use the host's own name, as `hostname` prints it there",
            )
        }
    };
    wanted.hosts.iter().map(check).collect()
}

fn quorum(facts: &Facts) -> Finding {
    match &facts.quorum {
        Fetched::Known(true) => good("quorum", "the cluster has quorum"),
        Fetched::Known(false) => finding(
            FindingSeverity::Failure,
            "quorum",
            "the cluster has no quorum: it is read-only",
            "pvecm status   # on a host: which votes are missing?",
        ),
        Fetched::Failed(error) => unknown("quorum", Some(error), ""),
        Fetched::NotAsked => unknown(
            "quorum",
            None,
            "pvecm status   # on a host; or grant Sys.Audit on /",
        ),
    }
}

/// Returns whether a privilege is granted on a path, directly or by propagation from a parent.
pub fn holds(privileges: &Privileges, path: &str, privilege: &str) -> bool {
    let has = |at: &str, here: bool| {
        let held = privileges.get(at).and_then(|held| held.get(privilege));
        held.is_some_and(|below| here || *below)
    };
    if privileges.contains_key(path) {
        return has(path, true);
    }
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/') {
        let at = if parent.is_empty() { "/" } else { parent };
        // The entry of a path replaces those of its parents.
        if privileges.contains_key(at) {
            return has(at, false);
        }
        above = parent;
    }
    false
}

fn privileges(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let held = match &facts.privileges {
        Fetched::Known(held) => held,
        Fetched::Failed(error) => return vec![unknown("privileges", Some(error), "")],
        Fetched::NotAsked => return Vec::new(),
    };
    let major = facts.version.known().map_or(9, |version| version.0);
    let (user, token) = split_user(&facts.user);
    let mut findings = Vec::new();
    let mut abilities = wanted.abilities.clone();
    let fetched = wanted
        .images
        .iter()
        .filter(|image| is_fetched(facts, image));
    abilities
        .downloads
        .extend(fetched.map(|image| image.host.clone()));
    abilities.downloads.sort();
    abilities.downloads.dedup();
    for grant in role::grants(major, &abilities) {
        let missing: Vec<&str> = grant
            .privileges
            .iter()
            .copied()
            .filter(|privilege| !holds(held, &grant.path, privilege))
            .collect();
        if missing.is_empty() {
            findings.push(good(
                "privileges",
                format!("all required privileges on {}", grant.path),
            ));
            continue;
        }
        let all: Vec<&str> = grant.privileges.iter().copied().collect();
        let fix = format!(
            "pveum role add {role} --privs {all} || pveum role modify {role} --append 1 --privs {all}\n{acl}",
            role = grant.role,
            all = all.join(","),
            acl = role::render_grant(&grant, user, token),
        );
        let detail = format!("missing on {}: {}", grant.path, missing.join(", "));
        findings.push(finding(FindingSeverity::Failure, "privileges", detail, fix));
    }
    findings
}

/// Reports guests that need more memory than a host has. Memory that it does not report is not
/// checked, and neither is memory of other guests, because it can be shared.
fn memory(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let check = |(name, largest): &(String, Bytes)| {
        let known = facts.hosts.known()?;
        let found = known.iter().find(|host| host.name == *name);
        too_large_for_host(name, found?.memory?, *largest)
    };
    let too_large = wanted.memory.iter().filter_map(check);
    too_large
        .map(|(detail, fix)| finding(FindingSeverity::Failure, "memory", detail, fix))
        .collect()
}

fn storages(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let known = match &facts.storages {
        Fetched::Known(storages) => storages,
        Fetched::Failed(error) => return vec![unknown("storage", Some(error), "")],
        Fetched::NotAsked => return Vec::new(),
    };
    let check = |need: &StorageRequirement| {
        let StorageRequirement { host, storage, .. } = need;
        let at = format!("{storage} on {host}");
        let Some(found) = known
            .iter()
            .find(|row| row.name == *storage && row.host == *host)
        else {
            return hidden_storage(facts, need);
        };
        let room = facts.storage_states.get(&(host.clone(), storage.clone()));
        if let Some(Fetched::Known(state)) = room
            && !state.active
        {
            let why = if state.enabled {
                "not active"
            } else {
                "disabled"
            };
            let fix = inactive_fix(host, storage, *state);
            return finding(
                FindingSeverity::Failure,
                "storage",
                format!("{at} is {why}"),
                fix,
            );
        }
        if !found.active {
            let fix = format!("pvesm status   # on {host}");
            let detail = format!("{at} is not active");
            return finding(FindingSeverity::Failure, "storage", detail, fix);
        }
        let missing: Vec<&str> = need
            .content
            .iter()
            .map(String::as_str)
            .filter(|kind| !found.content.iter().any(|held| held == kind))
            .collect();
        if !missing.is_empty() {
            let mut all: Vec<&str> = found.content.iter().map(String::as_str).collect();
            all.extend(&missing);
            let detail = format!("{at} does not allow content: {}", missing.join(", "));
            let fix = format!("pvesm set {storage} --content {}", all.join(","));
            return finding(FindingSeverity::Failure, "storage", detail, fix);
        }
        match room
            .and_then(Fetched::known)
            .and_then(|state| state.available)
        {
            Some(free) if free < need.largest => {
                let (detail, fix) = too_large_for_storage(&at, free, need.largest);
                finding(FindingSeverity::Failure, "storage", detail, fix)
            }
            // Disks grow as they fill, so it may still work for a while; the server does not check.
            Some(free) if free < need.size => {
                let detail = format!(
                    "{at} has {} free, up to {} may be needed",
                    free.whole_mib(),
                    need.size.whole_mib()
                );
                finding(
                    FindingSeverity::Warning,
                    "storage",
                    detail,
                    "free space, or use another storage",
                )
            }
            Some(_) => good("storage", format!("{at} is usable")),
            None => {
                let why = match room {
                    Some(Fetched::Failed(error)) => error.detail.as_str(),
                    _ => "not reported",
                };
                let detail = format!("{at} is usable; its free space is unknown: {why}");
                finding(FindingSeverity::Unknown, "storage", detail, "")
            }
        }
    };
    wanted.storages.iter().map(check).collect()
}

/// A storage that is not listed: missing, disabled, or not visible to the token.
fn hidden_storage(facts: &Facts, need: &StorageRequirement) -> Finding {
    let StorageRequirement { host, storage, .. } = need;
    let at = format!("{storage} on {host}");
    let audit = format!("Datastore.Audit on /storage/{storage}");
    let (detail, fix) = match facts.storage_states.get(&(host.clone(), storage.clone())) {
        Some(Fetched::Known(state)) if !state.enabled => (
            format!("{at} is disabled"),
            inactive_fix(host, storage, *state),
        ),
        Some(Fetched::Known(_)) => (
            format!("{at} exists but is not listed: the token lacks {audit}"),
            format!("grant {audit} to the token and to its user"),
        ),
        _ => (
            format!("{at} does not exist, or the token may not see it"),
            format!("pvesm status   # on {host}; it is listed with {audit}"),
        ),
    };
    finding(FindingSeverity::Failure, "storage", detail, fix)
}

fn key_of(image: &FileRequirement) -> (String, String, String) {
    let FileRequirement {
        host,
        storage,
        content,
        ..
    } = image;
    (host.clone(), storage.clone(), content.clone())
}

/// Returns whether a host has to fetch an image.
fn is_fetched(facts: &Facts, image: &FileRequirement) -> bool {
    let known = facts.files.get(&key_of(image)).and_then(Fetched::known);
    image.source.is_some() && known.is_none_or(|files| !files.contains(&image.file))
}

fn images(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let check = |image: &FileRequirement| {
        let FileRequirement {
            host,
            storage,
            content,
            file,
            source,
        } = image;
        match facts.files.get(&key_of(image)) {
            Some(Fetched::Known(files)) if files.contains(file) => {
                good("image", format!("{storage}:{content}/{file} is on {host}"))
            }
            Some(Fetched::Known(_)) if source.is_some() => {
                let detail = format!(
                    "{storage}:{content}/{file} is not on {host}; apply downloads it from {}",
                    source.as_deref().unwrap_or_default()
                );
                good("image", detail)
            }
            Some(Fetched::Known(_)) => {
                let fix = format!(
                    "pvesh create /nodes/{host}/storage/{storage}/download-url --content {content} --filename {file} --url <address>"
                );
                finding(
                    FindingSeverity::Failure,
                    "image",
                    format!("{storage}:{content}/{file} is not on {host}"),
                    fix,
                )
            }
            Some(Fetched::Failed(error)) => unknown("image", Some(error), ""),
            Some(Fetched::NotAsked) | None => unknown("image", None, ""),
        }
    };
    wanted.images.iter().map(check).collect()
}

fn bridges(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let check = |(host, bridge): &(String, String)| match facts.bridges.get(host) {
        Some(Fetched::Known(known)) if known.contains(bridge) => {
            good("bridge", format!("{bridge} is on {host}"))
        }
        Some(Fetched::Known(known)) => {
            let names: Vec<&str> = known.iter().map(String::as_str).collect();
            let detail = format!(
                "{host} has no bridge {bridge}; available: {}",
                names.join(", ")
            );
            finding(
                FindingSeverity::Failure,
                "bridge",
                detail,
                format!(
                    "pvesh create /nodes/{host}/network --iface {bridge} --type bridge --autostart 1 && pvesh set /nodes/{host}/network"
                ),
            )
        }
        Some(Fetched::Failed(error)) => unknown("bridge", Some(error), ""),
        Some(Fetched::NotAsked) | None => unknown("bridge", None, ""),
    };
    wanted.bridges.iter().map(check).collect()
}

/// Whether a host supports nested virtualisation. The API reports the CPU flags but not the setting
/// of the kernel module, so the result is never certain.
fn nested(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let check = |host: &String| match facts.cpu_flags.get(host) {
        Some(Fetched::Known(flags)) => {
            let module = if flags.contains("vmx") {
                "kvm_intel"
            } else if flags.contains("svm") {
                "kvm_amd"
            } else {
                let detail = format!(
                    "the CPU of {host} has neither vmx nor svm: nested virtualisation is not possible"
                );
                let fix = format!(
                    "enable virtualisation in the firmware of {host}; if {host} is a guest itself, set its CPU type to `host`"
                );
                return finding(FindingSeverity::Failure, "nested", detail, fix);
            };
            let detail = format!(
                "{host} supports virtualisation; the API does not report whether nested virtualisation is enabled"
            );
            finding(
                FindingSeverity::Unknown,
                "nested",
                detail,
                format!(
                    "cat /sys/module/{module}/parameters/nested   # on {host}: Y or 1 means enabled"
                ),
            )
        }
        Some(Fetched::Failed(error)) => unknown(
            "nested",
            Some(error),
            format!(
                "grep -cE 'vmx|svm' /proc/cpuinfo   # on {host}; or grant Sys.Audit on /nodes/{host}"
            ),
        ),
        Some(Fetched::NotAsked) | None => unknown("nested", None, ""),
    };
    wanted.nested.iter().map(check).collect()
}

fn ssh(facts: &Facts) -> Vec<Finding> {
    let check = |(address, answers): (&SocketAddr, &bool)| {
        if *answers {
            good("ssh", format!("{address} answers"))
        } else {
            let fix = "systemctl status ssh   # on the node: is it running, is the port open?";
            finding(
                FindingSeverity::Failure,
                "ssh",
                format!("{address} does not answer"),
                fix,
            )
        }
    };
    facts.ssh.iter().map(check).collect()
}

fn site(site: &SiteRequirements) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut expect = |there: bool, severity: FindingSeverity, what: &str, fix: &str| {
        if there {
            findings.push(good("site", format!("{what} is set")));
        } else {
            findings.push(finding(severity, "site", format!("{what} is not set"), fix));
        }
    };
    let network = if site.fixed_addresses {
        FindingSeverity::Failure
    } else {
        FindingSeverity::Warning
    };
    expect(
        site.gateway.is_some(),
        network,
        "gateway",
        "set `gateway` in the defaults of site.yaml",
    );
    expect(
        !site.dns.is_empty(),
        network,
        "dns",
        "set `dns_servers` in the defaults of site.yaml",
    );
    expect(
        site.ssh_keys > 0,
        FindingSeverity::Failure,
        "ssh_keys",
        "add a public key to ssh_keys in secrets.yaml",
    );
    expect(
        site.domain.is_some(),
        FindingSeverity::Warning,
        "domain",
        "set `domain` in the defaults of site.yaml",
    );
    findings
}

#[cfg(test)]
#[path = "preflight/tests.rs"]
mod tests;
