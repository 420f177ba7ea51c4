//! `homestak sim start|status|stop|reset`: the simulator whose state is kept in a directory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use homestak_api::v1::{Kind, SimEndpoint, SimReset, SimStatus, SimStop, kind};
use homestak_driver::hosts::sim;
use homestak_driver::{DriverError, DriverSettings, wire};
use homestak_sim::persistent;
use serde_json::Value as Json;

use super::Outcome;
use crate::args::SimStateArgs;
use crate::settings::Settings;
use crate::ui::Printer;

fn directory(args: &SimStateArgs, settings: &Settings) -> PathBuf {
    let named = args.state.clone();
    named.unwrap_or_else(|| sim::directory(&settings.driver))
}

pub(super) fn start(
    args: &SimStateArgs,
    speed: f64,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    super::serve::check_speed(speed)?;
    let directory = directory(args, settings);
    let with_speed = DriverSettings {
        sim_speed: speed,
        ..settings.driver.clone()
    };
    let endpoint = sim::ensure(&directory, &with_speed)?;
    show(&kind::SIM_START, &directory, Some(&endpoint), printer)
}

pub(super) fn status(args: &SimStateArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let directory = directory(args, settings);
    let endpoint = sim::answering(&directory)?;
    show(&kind::SIM_STATUS, &directory, endpoint.as_ref(), printer)
}

pub(super) fn stop(args: &SimStateArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let directory = directory(args, settings);
    let stopped = sim::stop(&directory)?;
    if printer.output.json {
        printer.json(&kind::SIM_STOP, &SimStop { stopped });
    } else if stopped {
        printer.message("Stopped; its state is kept.");
    } else {
        printer.message("The simulator is not running.");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reset(args: &SimStateArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let directory = directory(args, settings);
    sim::stop(&directory)?;
    let forgotten = persistent::reset(&directory)
        .map_err(|error| DriverError::file("empty", &directory, &error))?;
    if printer.output.json {
        printer.json(&kind::SIM_RESET, &SimReset { forgotten });
    } else if forgotten {
        printer.message("State deleted.");
    } else {
        printer.message("There is no state to delete.");
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows everything except the token.
fn show(
    kind: &Kind<SimStatus>,
    directory: &Path,
    endpoint: Option<&SimEndpoint>,
    printer: &Printer,
) -> Outcome {
    let guests = guests(directory);
    if printer.output.json {
        printer.json(kind, &wire::sim::status(directory, endpoint, guests));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("directory:    {}\n", directory.display());
    match endpoint {
        None => text += "running:      no\n",
        Some(endpoint) => {
            text += &format!(
                "running:      process {}\nurl:          {}\nfingerprint:  {}\ntoken:        in endpoint.json of that directory\n",
                endpoint.pid, endpoint.url, endpoint.fingerprint
            );
        }
    }
    if let Some(guests) = guests {
        text += &format!("guests:       {guests}\n");
    }
    for inside in endpoint.iter().flat_map(|endpoint| &endpoint.inside) {
        let address = inside.address.as_deref().unwrap_or("no address");
        text += &format!(
            "inside:       {} ({address}) at {}\n",
            inside.name, inside.url
        );
    }
    printer.data(&text);
    Ok(ExitCode::SUCCESS)
}

/// Counts the guests in the state as last written.
fn guests(directory: &Path) -> Option<usize> {
    let text = fs_err::read(directory.join("world.json")).ok()?;
    let world: Json = serde_json::from_slice(&text).ok()?;
    world["state"]["guests"].as_object().map(|all| all.len())
}
