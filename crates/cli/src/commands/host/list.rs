//! `homestak host list`: lists the hosts of the site.

use std::process::ExitCode;

use homestak_driver::Session;
use serde_json::json;

use crate::commands::Outcome;
use crate::ui::{Printer, table};

/// Lists hosts with their addresses and how their certificates are verified.
pub(super) fn run(session: &Session, printer: &Printer) -> Outcome {
    let mut rows: Vec<[String; 4]> = Vec::new();
    let kind = |name: &str| session.catalog.label_of(name).to_owned();
    for (name, document) in &session.catalog.nodes {
        let node = document.value.as_ref();
        let endpoint = node
            .and_then(|node| node.api_endpoint.as_ref())
            .map_or_else(String::new, ToString::to_string);
        let pinned = node.is_some_and(|node| node.fingerprint.is_some());
        let authority = node.is_some_and(|node| node.ca.is_some());
        let trust = if pinned {
            "fingerprint"
        } else if authority {
            "authority"
        } else {
            "public authorities"
        };
        rows.push([name.clone(), kind(name), endpoint, trust.into()]);
    }
    for (name, document) in &session.catalog.hosts {
        if session.catalog.nodes.contains_key(name) {
            continue;
        }
        let ip = document
            .value
            .as_ref()
            .and_then(|host| host.ip.as_ref())
            .map_or_else(String::new, ToString::to_string);
        rows.push([name.clone(), kind(name), ip, String::new()]);
    }
    for name in session.catalog.built_in_hosts() {
        rows.push([name.to_owned(), kind(name), String::new(), String::new()]);
    }
    if printer.shape.json {
        let hosts: Vec<_> = rows
            .iter()
            .map(|[name, kind, address, trust]| json!({ "name": name, "kind": kind, "address": address, "trust": trust }))
            .collect();
        printer.json("host.list", json!({ "hosts": hosts }));
    } else {
        let rows = rows.into_iter().map(Vec::from).collect();
        printer.data(&table::render(&["name", "kind", "address", "trust"], rows));
    }
    Ok(ExitCode::SUCCESS)
}
