//! `homestak host preflight`: is a host ready, and for this manifest?

use std::net::SocketAddr;
use std::process::ExitCode;

use homestak_core::doc::host::Host;
use homestak_core::doc::manifest::NodeType;
use homestak_core::resolve::{Request, Resolved, manifest};
use homestak_providers::pve::preflight::{
    FileWanted, Finding, Severity, SiteWanted, StorageWanted, Wanted, check, worst,
};
use homestak_providers::pve::role::Abilities;
use serde_json::json;

use super::show::{answers, door};
use crate::commands::local::check_machine;
use crate::commands::{Outcome, require_sound};
use crate::connect::{block_on, connect, document};
use crate::error::CommandError;
use crate::local_host::{LOCAL, LocalPlace};
use crate::places::SIM;
use crate::session::Session;
use crate::settings::Settings;
use crate::ui::{Printer, count};

/// Storage of images and seeds, as every Proxmox VE has it.
const IMAGE_STORAGE: &str = "local";

/// Checks a host.
pub(super) fn run(
    name: &str,
    wanted_manifest: Option<&str>,
    session: &Session,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let resolved = wanted_manifest
        .map(|wanted| resolve(wanted, name, session, printer))
        .transpose()?;
    if name == LOCAL {
        let findings = check_machine(&LocalPlace::new(settings), resolved.as_ref())?;
        return report(name, &findings, printer);
    }
    if name == SIM {
        let detail = "the simulator has what manifests name, and needs nothing".to_owned();
        return report(name, &[of(Severity::Good, "sim", detail, "")], printer);
    }
    if let Some(host) = session.catalog.hosts.get(name)
        && !session.catalog.nodes.contains_key(name)
    {
        let findings = over_ssh(name, host.value.as_ref())?;
        return report(name, &findings, printer);
    }
    let wanted = wanted(name, resolved.as_ref(), session)?;
    printer.detail(&format!("asking {name}"));
    let findings = block_on(findings(name, &wanted, session))??;
    report(name, &findings, printer)
}

fn of(severity: Severity, check: &'static str, detail: String, fix: &str) -> Finding {
    Finding {
        severity,
        check,
        detail,
        fix: fix.to_owned(),
    }
}

/// Checks a host that has no API: guests cannot be created on it, whether its SSH answers or not.
fn over_ssh(name: &str, host: Option<&Host>) -> Result<Vec<Finding>, CommandError> {
    let ssh = match host.and_then(door) {
        None => of(
            Severity::Unknown,
            "ssh",
            format!("`hosts/{name}.yaml` has no `ip`"),
            "write its address there",
        ),
        Some(door) if block_on(answers(door))? => {
            of(Severity::Good, "ssh", format!("{door} answers"), "")
        }
        Some(door) => of(
            Severity::Failure,
            "ssh",
            format!("{door} does not answer"),
            "systemctl status ssh   # there: does it run, is the port open?",
        ),
    };
    let detail = format!("there is no `nodes/{name}.yaml`, so that guests cannot be created there");
    let fix =
        "write that file with its `api_endpoint`; `homestak host role` prints the token's commands";
    Ok(vec![ssh, of(Severity::Failure, "api", detail, fix)])
}

/// Shows what was found. A failure makes it fail.
pub(in crate::commands) fn report(name: &str, findings: &[Finding], printer: &Printer) -> Outcome {
    let failed = worst(findings) == Severity::Failure;
    if printer.shape.json {
        let findings: Vec<_> = findings
            .iter()
            .map(|finding| json!({ "check": finding.check, "outcome": word(finding.severity), "detail": finding.detail, "fix": finding.fix }))
            .collect();
        printer.json(
            "host.preflight",
            json!({ "success": !failed, "host": name, "findings": findings }),
        );
    } else {
        show(name, findings, printer);
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// Checks a host before a run.
pub(in crate::commands) async fn before_a_run(
    name: &str,
    resolved: Option<&Resolved>,
    session: &Session,
) -> Result<Vec<Finding>, CommandError> {
    let wanted = wanted(name, resolved, session)?;
    findings(name, &wanted, session).await
}

/// Returns where a run fetches an image from that is missing.
fn source_of(image: &str, session: &Session) -> Option<String> {
    let document = session.catalog.image(image)?.value.as_ref()?;
    document.source.as_ref().map(ToString::to_string)
}

async fn findings(
    name: &str,
    wanted: &Wanted,
    session: &Session,
) -> Result<Vec<Finding>, CommandError> {
    let pve = connect(name, session)?;
    let facts = pve.facts(wanted).await;
    Ok(check(&facts, wanted))
}

fn resolve(
    wanted: &str,
    host: &str,
    session: &Session,
    printer: &Printer,
) -> Result<Resolved, CommandError> {
    let manifests = &session.catalog.manifests;
    if !manifests.contains_key(wanted) {
        return Err(CommandError::unknown(
            "manifest",
            wanted,
            manifests.keys().map(String::as_str),
        ));
    }
    let request = Request {
        host: Some(host.to_owned()),
        ..Request::default()
    };
    let (resolved, faults) = manifest(&session.catalog, wanted, &request);
    require_sound(printer, &faults, &session.catalog.sources)?;
    resolved.ok_or_else(|| CommandError::failed("The manifest could not be read."))
}

/// What a run on this host needs: of the host, and of the manifest's nodes that run on it.
fn wanted(
    name: &str,
    resolved: Option<&Resolved>,
    session: &Session,
) -> Result<Wanted, CommandError> {
    let node = document(name, session)?;
    let host = node
        .node
        .as_ref()
        .map_or(name, |node| node.as_str())
        .to_owned();
    let defaults = session.catalog.defaults();
    let datastore = node
        .datastore
        .as_ref()
        .or_else(|| defaults?.datastore.as_ref());
    let datastore = datastore.map_or_else(|| IMAGE_STORAGE.to_owned(), ToString::to_string);
    let here: Vec<_> = resolved
        .iter()
        .flat_map(|resolved| &resolved.nodes)
        .filter(|node| node.host.as_ref().is_some_and(|host| host.value == name))
        .collect();
    let containers = here.iter().any(|node| node.kind.value == NodeType::Ct);
    let bytes: u64 = here
        .iter()
        .filter_map(|node| u64::try_from(node.size.as_ref()?.disk.value).ok())
        .map(|gib| gib << 30)
        .sum();
    let mut content = vec!["images".to_owned()];
    content.extend(containers.then(|| "rootdir".to_owned()));
    let mut images = vec!["iso".to_owned(), "import".to_owned()];
    images.extend(containers.then(|| "vztmpl".to_owned()));
    let storage = |storage: String, content, bytes| StorageWanted {
        host: host.clone(),
        storage,
        content,
        bytes,
    };
    let files = here.iter().filter_map(|node| {
        let image = node.image.as_ref()?;
        let (content, ending) = if node.kind.value == NodeType::Ct {
            ("vztmpl", "tar.zst")
        } else {
            ("import", "qcow2")
        };
        Some(FileWanted {
            host: host.clone(),
            storage: IMAGE_STORAGE.into(),
            content: content.into(),
            file: format!("{}.{ending}", image.value),
            source: source_of(&image.value, session),
        })
    });
    let mut files: Vec<FileWanted> = files.collect();
    files.sort_by(|one, other| one.file.cmp(&other.file));
    files.dedup_by(|one, other| one.file == other.file);
    let nested = resolved.is_some_and(|resolved| {
        resolved.nodes.iter().any(|node| {
            node.parent
                .as_ref()
                .is_some_and(|parent| here.iter().any(|above| above.name == *parent))
        })
    });
    let mut bridges: Vec<(String, String)> = here
        .iter()
        .map(|node| (host.clone(), node.networking.bridge.value.clone()))
        .collect();
    bridges.sort();
    bridges.dedup();
    let secrets = session
        .catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref());
    Ok(Wanted {
        hosts: vec![host.clone()],
        abilities: Abilities {
            vms: true,
            containers,
            downloads: Vec::new(),
            storages: vec![datastore.clone()],
            images: vec![IMAGE_STORAGE.to_owned()],
        },
        storages: vec![
            storage(datastore, content, bytes),
            storage(IMAGE_STORAGE.to_owned(), images, 0),
        ],
        images: files,
        nested: if nested {
            vec![host.clone()]
        } else {
            Vec::new()
        },
        bridges,
        ssh: node
            .ip
            .as_ref()
            .map(|ip| SocketAddr::new(ip.value, 22))
            .into_iter()
            .collect(),
        site: SiteWanted {
            fixed_addresses: here
                .iter()
                .any(|node| node.networking.address.value.is_some()),
            gateway: defaults
                .and_then(|defaults| defaults.gateway.as_ref())
                .map(|gateway| gateway.value),
            dns: defaults
                .and_then(|defaults| defaults.dns_servers.as_ref())
                .map(|dns| dns.iter().map(|ip| ip.value).collect())
                .unwrap_or_default(),
            domain: defaults
                .and_then(|defaults| defaults.domain.as_ref())
                .map(ToString::to_string),
            ssh_keys: secrets
                .and_then(|secrets| secrets.ssh_keys.as_ref())
                .map_or(0, |keys| keys.len()),
        },
    })
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Good => "good",
        Severity::Unknown => "unknown",
        Severity::Warning => "warning",
        Severity::Failure => "failure",
    }
}

fn show(name: &str, findings: &[Finding], printer: &Printer) {
    let mut text = String::new();
    for finding in findings {
        text += &format!(
            "{:<8} {}: {}\n",
            word(finding.severity),
            finding.check,
            finding.detail
        );
        for line in finding.fix.lines() {
            text += &format!("         fix: {line}\n");
        }
    }
    printer.data(&text);
    let failures = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Failure)
        .count();
    if failures == 0 {
        printer.say(&format!("`{name}` is ready."));
    } else {
        printer.say(&format!(
            "`{name}` is not ready: {}.",
            count(failures, "failure")
        ));
    }
}
