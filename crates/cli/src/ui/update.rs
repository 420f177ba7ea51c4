//! Renders staged updates.

use std::fmt::Write as _;

use homestak_api::v1::node_update::{JobRoute, NodeUpdate, NodeUpdateEntry, NodeUpdateState};
use homestak_driver::error::count;

use super::job::{line, package_lines};
use super::table;

/// Renders a plan: a row for each node, and the packages below.
pub(crate) fn plan(update: &NodeUpdate) -> String {
    let headings = [
        "node", "host", "batch", "mode", "scope", "window", "update", "restart",
    ];
    let rows = update.nodes.iter().map(|node| {
        let batch = node.batch.map_or_else(dash, |batch| batch.to_string());
        let window = match node.window.is_empty() {
            true => "always".to_owned(),
            false => node.window.join("; "),
        };
        vec![
            node.node.clone(),
            if node.host.is_empty() {
                dash()
            } else {
                node.host.clone()
            },
            batch,
            mode(node),
            node.scope.name().to_owned(),
            window,
            planned(node),
            yes_or_no(node.reboot_needed),
        ]
    });
    let mut text = table::render(&headings, rows.collect());
    for node in &update.nodes {
        if node.packages.is_empty() {
            continue;
        }
        _ = writeln!(text, "\n{}:", node.node);
        text += &package_lines(&node.packages);
    }
    text += &notes(update);
    text
}

/// Renders what was done.
pub(crate) fn result(update: &NodeUpdate) -> String {
    let headings = [
        "node",
        "host",
        "batch",
        "result",
        "packages",
        "restarted",
        "job",
    ];
    let rows = update.nodes.iter().map(|node| {
        vec![
            node.node.clone(),
            if node.host.is_empty() {
                dash()
            } else {
                node.host.clone()
            },
            node.batch.map_or_else(dash, |batch| batch.to_string()),
            node.state.name().to_owned(),
            match node.state {
                NodeUpdateState::Updated | NodeUpdateState::Unhealthy => {
                    node.packages.len().to_string()
                }
                NodeUpdateState::Planned
                | NodeUpdateState::UpToDate
                | NodeUpdateState::Skipped
                | NodeUpdateState::Failed
                | NodeUpdateState::Refused
                | NodeUpdateState::Unknown
                | NodeUpdateState::NotStarted => dash(),
            },
            yes_or_no(node.rebooted),
            node.job.as_deref().map_or_else(dash, line),
        ]
    });
    table::render(&headings, rows.collect()) + &notes(update)
}

/// Returns a line for each node with a message.
fn notes(update: &NodeUpdate) -> String {
    let mut text = String::new();
    for node in &update.nodes {
        if let Some(message) = &node.message {
            _ = writeln!(
                text,
                "{}: {}: {}",
                node.node,
                node.state.name(),
                line(message)
            );
        }
    }
    if text.is_empty() {
        text
    } else {
        format!("\n{text}")
    }
}

fn planned(node: &NodeUpdateEntry) -> String {
    match node.state {
        NodeUpdateState::Planned => count(node.packages.len(), "package"),
        state @ (NodeUpdateState::UpToDate
        | NodeUpdateState::Skipped
        | NodeUpdateState::Updated
        | NodeUpdateState::Failed
        | NodeUpdateState::Refused
        | NodeUpdateState::Unhealthy
        | NodeUpdateState::Unknown
        | NodeUpdateState::NotStarted) => state.name().to_owned(),
    }
}

fn mode(node: &NodeUpdateEntry) -> String {
    let mode = node.mode.map_or_else(dash, |mode| mode.name().to_owned());
    match node.route {
        Some(JobRoute::Ssh) => format!("{mode} (SSH)"),
        Some(JobRoute::Server) => format!("{mode} (server)"),
        None => mode,
    }
}

fn yes_or_no(value: Option<bool>) -> String {
    match value {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => dash(),
    }
}

fn dash() -> String {
    "-".to_owned()
}
