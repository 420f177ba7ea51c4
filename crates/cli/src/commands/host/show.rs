//! `homestak host show`: what the site says of a host, and what the host says of itself.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use homestak_core::doc::host::Host;
use homestak_engine::ports::{Capabilities, Observed, Provider as _};
use homestak_providers::pve::preflight::Severity;
use serde_json::{Value as Json, json};

use crate::commands::Outcome;
use crate::commands::local::check_machine;
use crate::connect::{block_on, connect, document, failed};
use crate::error::CommandError;
use crate::local_host::{LOCAL, LocalPlace};
use crate::places::SIM;
use crate::session::Session;
use crate::settings::Settings;
use crate::sim_host;
use crate::ui::{Printer, count};

/// How long SSH of a host may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(3);

/// Shows a host.
pub(super) fn run(
    name: &str,
    offline: bool,
    session: &Session,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let host = session.catalog.hosts.get(name);
    let body = match (name, host) {
        (LOCAL, _) => this_machine(offline, settings)?,
        (SIM, _) => simulator(offline, settings)?,
        (_, Some(host)) if !session.catalog.nodes.contains_key(name) => {
            over_ssh(name, host.value.as_ref(), offline)?
        }
        _ => proxmox(name, offline, session)?,
    };
    if printer.shape.json {
        printer.json("host.show", body);
    } else {
        let tree = homestak_core::doc::Value::from_json(&body);
        printer.data(&homestak_core::doc::emit::emit(&tree));
    }
    Ok(ExitCode::SUCCESS)
}

/// The host `local`: what this machine has, and what it lacks.
fn this_machine(offline: bool, settings: &Settings) -> Result<Json, CommandError> {
    let mut body = json!({ "name": LOCAL, "kind": "this machine", "root": settings.local_root });
    if !offline {
        let findings = check_machine(&LocalPlace::new(settings), None)?;
        let lacks: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.severity == Severity::Failure)
            .map(|finding| finding.detail.as_str())
            .collect();
        body["says"] = json!({ "ready": lacks.is_empty(), "lacks": lacks });
    }
    Ok(body)
}

/// The host `sim`: where it is kept, and whether it runs.
fn simulator(offline: bool, settings: &Settings) -> Result<Json, CommandError> {
    let directory = sim_host::directory(settings);
    let mut body = json!({ "name": SIM, "kind": "simulator", "directory": directory });
    if !offline {
        let endpoint = sim_host::answering(&directory)?;
        body["says"] = json!({
            "running": endpoint.is_some(),
            "api_endpoint": endpoint.map(|endpoint| endpoint.url),
        });
    }
    Ok(body)
}

/// A host that has no API: where its SSH is, and whether it answers.
fn over_ssh(name: &str, host: Option<&Host>, offline: bool) -> Result<Json, CommandError> {
    let door = host.and_then(door);
    let mut body = json!({
        "name": name,
        "kind": "SSH only",
        "address": door.map(|door| door.to_string()),
    });
    if let Some(door) = door.filter(|_| !offline) {
        body["says"] = json!({ "ssh": block_on(answers(door))? });
    }
    Ok(body)
}

/// Returns where the SSH of a host is.
pub(super) fn door(host: &Host) -> Option<SocketAddr> {
    let port = host
        .access
        .as_ref()
        .and_then(|access| access.ssh_port.as_ref())
        .and_then(|port| u16::try_from(port.value.0).ok())
        .unwrap_or(22);
    Some(SocketAddr::new(host.ip.as_ref()?.value, port))
}

/// Tells whether something accepts connections.
pub(super) async fn answers(door: SocketAddr) -> bool {
    // Cancel safety: a connection that is dropped half-way is closed.
    let connected = tokio::time::timeout(PATIENCE, tokio::net::TcpStream::connect(door)).await;
    matches!(connected, Ok(Ok(_)))
}

/// A Proxmox VE.
fn proxmox(name: &str, offline: bool, session: &Session) -> Result<Json, CommandError> {
    let node = document(name, session)?;
    let text = |value: Option<String>| value.map_or(Json::Null, Json::String);
    let mut body = json!({
        "name": name,
        "node": node.node.as_ref().map_or(name, |node| node.as_str()),
        "api_endpoint": text(node.api_endpoint.as_ref().map(ToString::to_string)),
        "datastore": text(node.datastore.as_ref().map(ToString::to_string)),
        "ip": text(node.ip.as_ref().map(ToString::to_string)),
        "fingerprint": text(node.fingerprint.as_ref().map(ToString::to_string)),
    });
    if !offline {
        let pve = connect(name, session)?;
        let answer = block_on(async { Ok((pve.capabilities().await?, pve.observe().await?)) })?;
        let (capabilities, observed) = answer.map_err(|error| failed(name, &error))?;
        body["says"] = says(&capabilities, &observed);
    }
    Ok(body)
}

fn says(capabilities: &Capabilities, observed: &Observed) -> Json {
    let hosts: Vec<Json> = observed
        .hosts
        .iter()
        .map(|host| json!({ "name": host.name, "online": host.online }))
        .collect();
    let storages: Vec<Json> = observed
        .storages
        .iter()
        .map(|storage| {
            json!({ "name": storage.name, "host": storage.host, "content": storage.content, "active": storage.active })
        })
        .collect();
    let ours = observed
        .guests
        .iter()
        .filter(|guest| guest.uuid.is_some())
        .count();
    json!({
        "product": capabilities.product,
        "writable": capabilities.writable,
        "hosts": hosts,
        "storages": storages,
        "guests": format!("{}, {ours} of them ours", count(observed.guests.len(), "guest")),
    })
}
