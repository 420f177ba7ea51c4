//! `homestak sim start|status|stop|reset`: the simulator that is kept in a directory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use homestak_driver::error::count;
use homestak_driver::hosts::sim;
use homestak_driver::{DriverError, DriverSettings};
use homestak_sim::kept::{self, Endpoint};
use serde_json::{Value as Json, json};

use super::Outcome;
use crate::args::SimPlaceArgs;
use crate::settings::Settings;
use crate::ui::Printer;

fn directory(place: &SimPlaceArgs, settings: &Settings) -> PathBuf {
    let named = place.state.clone();
    named.unwrap_or_else(|| sim::directory(&settings.driver))
}

pub(super) fn start(
    place: &SimPlaceArgs,
    speed: f64,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    super::serve::check_speed(speed)?;
    let directory = directory(place, settings);
    let told = DriverSettings {
        sim_speed: speed,
        ..settings.driver.clone()
    };
    let endpoint = sim::ensure(&directory, &told)?;
    show("sim.start", &directory, Some(&endpoint), printer)
}

pub(super) fn status(place: &SimPlaceArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let directory = directory(place, settings);
    let endpoint = sim::answering(&directory)?;
    show("sim.status", &directory, endpoint.as_ref(), printer)
}

pub(super) fn stop(place: &SimPlaceArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let directory = directory(place, settings);
    let stopped = sim::stop(&directory)?;
    if printer.shape.json {
        printer.json("sim.stop", json!({ "stopped": stopped }));
    } else if stopped {
        printer.say("Stopped; what is in it stays.");
    } else {
        printer.say("It does not run.");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reset(place: &SimPlaceArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let directory = directory(place, settings);
    sim::stop(&directory)?;
    let forgotten =
        kept::reset(&directory).map_err(|error| DriverError::file("empty", &directory, &error))?;
    if printer.shape.json {
        printer.json("sim.reset", json!({ "forgotten": forgotten }));
    } else if forgotten {
        printer.say("Forgotten; the next one starts afresh.");
    } else {
        printer.say("There was nothing to forget.");
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows everything but the token: that is in the file, for those who may read it.
fn show(kind: &str, directory: &Path, endpoint: Option<&Endpoint>, printer: &Printer) -> Outcome {
    let guests = guests(directory);
    if printer.shape.json {
        let mut body = json!({
            "directory": directory,
            "running": endpoint.is_some(),
            "guests": guests,
        });
        if let Some(endpoint) = endpoint {
            body["url"] = json!(endpoint.url);
            body["fingerprint"] = json!(endpoint.fingerprint);
            body["pid"] = json!(endpoint.pid);
            let inside = endpoint.inside.iter().map(|inside| {
                json!({
                    "name": inside.name,
                    "address": inside.address,
                    "guests": inside.guests,
                    "url": inside.url,
                    "fingerprint": inside.fingerprint,
                })
            });
            body["inside"] = inside.collect();
        }
        printer.json(kind, body);
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
        text += &format!("holds:        {}\n", count(guests, "guest"));
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

/// Counts the guests of the World as it was written last.
fn guests(directory: &Path) -> Option<usize> {
    let text = fs_err::read(directory.join("world.json")).ok()?;
    let world: Json = serde_json::from_slice(&text).ok()?;
    world["state"]["guests"].as_object().map(|all| all.len())
}
