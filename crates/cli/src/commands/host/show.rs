//! `homestak host show`: what the site says of a host, and what the host says of itself.

use std::process::ExitCode;

use homestak_engine::ports::{Capabilities, Observed, Provider as _};
use serde_json::{Value as Json, json};

use crate::commands::Outcome;
use crate::connect::{block_on, connect, document, failed};
use crate::session::Session;
use crate::ui::{Printer, count};

/// Shows a host.
pub(super) fn run(name: &str, offline: bool, session: &Session, printer: &Printer) -> Outcome {
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
    if printer.shape.json {
        printer.json("host.show", body);
    } else {
        let tree = homestak_core::doc::Value::from_json(&body);
        printer.data(&homestak_core::doc::emit::emit(&tree));
    }
    Ok(ExitCode::SUCCESS)
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
