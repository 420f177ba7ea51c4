//! `homestak local`: this machine as a host.

use std::process::ExitCode;

use homestak_core::resolve::Resolved;
use homestak_engine::ports::PortError;
use homestak_providers::finding::Finding;
use homestak_providers::local::{self, Call, Engine, Local, Node, Reply};
use serde_json::json;

use super::Outcome;
use super::host::preflight::report;
use crate::args::LocalCommand;
use crate::connect::{block_on, failed};
use crate::error::CommandError;
use crate::local_host::{LOCAL, LocalPlace};
use crate::settings::Settings;
use crate::ui::ask::{Answer, ask};
use crate::ui::table;
use crate::ui::{Printer, count};

/// Runs a local command.
pub(super) fn run(command: &LocalCommand, settings: &Settings, printer: &Printer) -> Outcome {
    let place = LocalPlace::new(settings);
    match command {
        LocalCommand::Check => check(&place, printer),
        LocalCommand::Setup => setup(&place, printer),
        LocalCommand::Show => show(&open(&place)?, printer),
        LocalCommand::Clean { all, yes } => clean(&open(&place)?, *all, *yes, printer),
        LocalCommand::Act => act(&open(&place)?, printer),
    }
}

fn open(place: &LocalPlace) -> Result<Local, CommandError> {
    place.open().map_err(|error| word(&error))
}

fn word(error: &PortError) -> CommandError {
    failed(LOCAL, error)
}

/// Checks the machine.
pub(super) fn check_machine(
    place: &LocalPlace,
    resolved: Option<&Resolved>,
) -> Result<Vec<Finding>, CommandError> {
    let realm = place.realm().map_err(|error| word(&error))?;
    let mut findings = local::check(&realm);
    let nodes = resolved.iter().flat_map(|resolved| &resolved.nodes);
    let here = nodes.filter(|node| {
        let host = node.host.as_ref();
        node.parent.is_none() && host.is_some_and(|host| host.value == LOCAL)
    });
    let asked: Vec<_> = here
        .filter_map(|node| Some((node.name.as_str(), node.networking.address.value?.ip)))
        .collect();
    findings.extend(local::check_addresses(&realm, &asked));
    Ok(findings)
}

fn check(place: &LocalPlace, printer: &Printer) -> Outcome {
    report(LOCAL, &check_machine(place, None)?, printer)
}

/// Installs what is missing, and says what.
pub(super) fn install(printer: &Printer) -> Result<(), CommandError> {
    if !rustix::process::geteuid().is_root() {
        return Err(
            CommandError::refused("Installing packages needs root.").hint("repeat it with sudo")
        );
    }
    printer.say("Looking for what this machine lacks.");
    let installed = local::setup().map_err(|error| {
        CommandError::failed(format!("Cannot install what is missing: {error}."))
            .hint("is the machine's package archive reachable? apt-get update shows it")
            .hint("-H sim simulates a host and needs nothing")
    })?;
    if installed.is_empty() {
        printer.say("Everything was there.");
    } else {
        printer.say(&format!("Installed {}.", installed.join(", ")));
    }
    Ok(())
}

fn setup(place: &LocalPlace, printer: &Printer) -> Outcome {
    install(printer)?;
    check(place, printer)
}

fn show(local: &Local, printer: &Printer) -> Outcome {
    let nodes = local.nodes().map_err(|error| word(&error))?;
    if printer.shape.json {
        let rows: Vec<_> = nodes
            .iter()
            .map(|(node, running)| row_json(node, *running))
            .collect();
        printer.json(
            "local.show",
            json!({ "root": local.realm().root(), "network": local.network(), "nodes": rows }),
        );
        return Ok(ExitCode::SUCCESS);
    }
    if nodes.is_empty() {
        printer.say("There are no nodes on this machine.");
        return Ok(ExitCode::SUCCESS);
    }
    let headings = [
        "node", "manifest", "id", "address", "cpus", "memory", "state",
    ];
    let rows = nodes.iter().map(|(node, running)| row(node, *running));
    printer.data(&table::render(&headings, rows.collect()));
    Ok(ExitCode::SUCCESS)
}

fn row(node: &Node, running: bool) -> Vec<String> {
    vec![
        node.name.clone(),
        node.manifest.clone(),
        node.vmid.to_string(),
        node.address.0.to_string(),
        node.cores.to_string(),
        format!("{} MiB", node.memory),
        if running { "running" } else { "stopped" }.to_owned(),
    ]
}

fn row_json(node: &Node, running: bool) -> serde_json::Value {
    json!({
        "name": node.name,
        "manifest": node.manifest,
        "id": node.vmid,
        "uuid": node.guest(),
        "site": node.site,
        "address": node.address.0,
        "engine": node.engine,
        "cores": node.cores,
        "memory": node.memory,
        "image": node.image,
        "isolated": node.engine == Engine::Machine || node.ids.is_some(),
        "running": running,
    })
}

fn clean(local: &Local, all: bool, yes: bool, printer: &Printer) -> Outcome {
    let nodes = if all {
        local.nodes().map_err(|error| word(&error))?
    } else {
        Vec::new()
    };
    let found = local.leftovers().map_err(|error| word(&error))?;
    for (node, _) in &nodes {
        printer.say(&format!("  node {} of {}", node.name, node.manifest));
    }
    for leftover in &found {
        printer.say(&format!("  {leftover}"));
    }
    if nodes.is_empty() && found.is_empty() {
        // Also takes down what only an empty host leaves, such as lock files.
        local.clean().map_err(|error| word(&error))?;
        printer.say("There is nothing to remove.");
        return done(0, 0, printer);
    }
    if !nodes.is_empty() && !yes {
        match ask(&format!("Remove {}?", count(nodes.len(), "node")), printer) {
            Answer::Yes => {}
            Answer::No => return Err(CommandError::refused("Nothing was done.")),
            Answer::Nobody => {
                return Err(CommandError::refused(
                    "This removes nodes, and there is no terminal to ask at.",
                )
                .hint("homestak local clean --all --yes agrees"));
            }
        }
    }
    // One that cannot be removed does not keep the others.
    let mut failed = None;
    for (node, _) in &nodes {
        printer.say(&format!("Removing {}.", node.name));
        if let Err(error) = local.remove(node) {
            let error = word(&error);
            printer.say(&format!("{}: {}", node.name, error.message));
            failed.get_or_insert(error);
        }
    }
    let gone = local.clean().map_err(|error| word(&error))?;
    if let Some(error) = failed {
        return Err(error);
    }
    done(nodes.len(), gone.len().max(found.len()), printer)
}

fn done(nodes: usize, leftovers: usize, printer: &Printer) -> Outcome {
    if printer.shape.json {
        printer.json(
            "local.clean",
            json!({ "nodes": nodes, "leftovers": leftovers }),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Carries out one call of a driver outside.
fn act(local: &Local, printer: &Printer) -> Outcome {
    let text = std::io::read_to_string(std::io::stdin())
        .map_err(|error| CommandError::failed(format!("Cannot read the call: {error}.")))?;
    let call: Call = serde_json::from_str(&text)
        .map_err(|error| CommandError::usage(format!("This is no call: {error}.")))?;
    let reply: Reply = block_on(local.answer(call))?;
    let text = serde_json::to_string(&reply)
        .map_err(|error| CommandError::failed(format!("Cannot write the answer: {error}.")))?;
    printer.data(&format!("{text}\n"));
    Ok(ExitCode::SUCCESS)
}
