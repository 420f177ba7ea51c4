//! `homestak local`: this machine as a host.

use std::process::ExitCode;

use homestak_api::v1::{LocalCleanup, kind};
use homestak_driver::error::count;
use homestak_driver::hosts::local::{self, LOCAL, Local, Node, PortError, RemoteCall, RemoteReply};
use homestak_driver::{DriverError, run_blocking, wire};

use super::Outcome;
use super::host::preflight::report;
use crate::args::LocalCommand;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;
use crate::ui::ask::{Answer, ask};
use crate::ui::table;

/// Runs a local command.
pub(super) fn run(command: &LocalCommand, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        LocalCommand::Check => check(settings, printer),
        LocalCommand::Setup => setup(settings, printer),
        LocalCommand::Show => show(&open(settings)?, printer),
        LocalCommand::Clean { all, yes } => clean(&open(settings)?, *all, *yes, printer),
        LocalCommand::Act => act(&open(settings)?, printer),
    }
}

fn open(settings: &Settings) -> Result<Local, DriverError> {
    local::open(&settings.driver).map_err(|error| driver_error(&error))
}

fn driver_error(error: &PortError) -> DriverError {
    DriverError::of_host(LOCAL, error)
}

fn check(settings: &Settings, printer: &Printer) -> Outcome {
    report(LOCAL, &local::check(&settings.driver)?, printer)
}

/// Installs missing packages, and prints which.
pub(super) async fn install(printer: &Printer) -> Result<(), DriverError> {
    printer.message("Checking for missing packages.");
    let installed = run_blocking(local::install).await?;
    if installed.is_empty() {
        printer.message("Nothing is missing.");
    } else {
        printer.message(&format!("Installed {}.", installed.join(", ")));
    }
    Ok(())
}

fn setup(settings: &Settings, printer: &Printer) -> Outcome {
    block_on(install(printer))??;
    check(settings, printer)
}

fn show(local: &Local, printer: &Printer) -> Outcome {
    let nodes = local.nodes().map_err(|error| driver_error(&error))?;
    if printer.output.json {
        printer.json(&kind::LOCAL_SHOW, &wire::local::nodes(local, &nodes));
        return Ok(ExitCode::SUCCESS);
    }
    if nodes.is_empty() {
        printer.message("There are no nodes on this machine.");
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
        node.memory.to_string(),
        if running { "running" } else { "stopped" }.to_owned(),
    ]
}

fn clean(local: &Local, all: bool, yes: bool, printer: &Printer) -> Outcome {
    let nodes = if all {
        local.nodes().map_err(|error| driver_error(&error))?
    } else {
        Vec::new()
    };
    let found = local.leftovers().map_err(|error| driver_error(&error))?;
    for (node, _) in &nodes {
        printer.message(&format!("  node {} of {}", node.name, node.manifest));
    }
    for leftover in &found {
        printer.message(&format!("  {leftover}"));
    }
    if nodes.is_empty() && found.is_empty() {
        // Also removes what only an empty host leaves, such as lock files.
        local.clean().map_err(|error| driver_error(&error))?;
        printer.message("Nothing to remove.");
        return done(0, 0, printer);
    }
    if !nodes.is_empty() && !yes {
        let question = format!("Remove {}?", count(nodes.len(), "node"));
        match block_on(ask(&question, printer))? {
            Answer::Yes => {}
            Answer::No => return Err(DriverError::refused("Not confirmed; nothing was changed.")),
            Answer::NoTerminal => {
                return Err(DriverError::refused(
                    "This removes nodes, and there is no terminal for confirmation.",
                )
                .hint("use homestak local clean --all --yes"));
            }
        }
    }
    // A node that cannot be removed does not prevent the removal of others.
    let mut failed = None;
    for (node, _) in &nodes {
        printer.message(&format!("Removing {}.", node.name));
        if let Err(error) = local.remove(node) {
            let error = driver_error(&error);
            printer.message(&format!("{}: {}", node.name, error.message));
            failed.get_or_insert(error);
        }
    }
    let gone = local.clean().map_err(|error| driver_error(&error))?;
    if let Some(error) = failed {
        return Err(error);
    }
    // The removal of a node can remove some of them, and reveal others.
    let leftovers = gone.len().max(found.len());
    let removed = [(nodes.len(), "node"), (leftovers, "leftover")];
    let removed = removed.into_iter().filter(|(number, _)| *number > 0);
    let removed: Vec<String> = removed.map(|(number, what)| count(number, what)).collect();
    printer.message(&format!("Removed: {}.", removed.join(", ")));
    done(nodes.len(), leftovers, printer)
}

fn done(nodes: usize, leftovers: usize, printer: &Printer) -> Outcome {
    if printer.output.json {
        printer.json(&kind::LOCAL_CLEAN, &LocalCleanup { nodes, leftovers });
    }
    Ok(ExitCode::SUCCESS)
}

/// Executes one call of the driver outside.
fn act(local: &Local, printer: &Printer) -> Outcome {
    let text = std::io::read_to_string(std::io::stdin())
        .map_err(|error| DriverError::failed(format!("Cannot read the call: {error}.")))?;
    let call: RemoteCall = serde_json::from_str(&text)
        .map_err(|error| DriverError::usage(format!("The call is not valid: {error}.")))?;
    let reply: RemoteReply = block_on(local.handle(call))?;
    let text = serde_json::to_string(&reply)
        .map_err(|error| DriverError::failed(format!("Cannot write the answer: {error}.")))?;
    printer.data(&format!("{text}\n"));
    Ok(ExitCode::SUCCESS)
}
