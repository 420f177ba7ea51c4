//! `homestak sim`: a simulated Proxmox VE, and its comparison with recordings of a real one.

mod persistent;
mod script;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use homestak_api::v1::{SimReplay, kind};
use homestak_driver::DriverError;
use homestak_sim::replay;

use super::Outcome;
use crate::args::SimCommand;
use crate::settings::Settings;
use crate::ui::Printer;

/// Runs a sim command.
pub(super) fn run(command: SimCommand, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        SimCommand::Serve(args) => serve::run(&args, printer),
        SimCommand::Start { state, speed } => persistent::start(&state, speed, settings, printer),
        SimCommand::Status { state } => persistent::status(&state, settings, printer),
        SimCommand::Stop { state } => persistent::stop(&state, settings, printer),
        SimCommand::Reset { state } => persistent::reset(&state, settings, printer),
        SimCommand::Replay { files, flows } => report(&files, &flows, printer),
    }
}

fn report(files: &[PathBuf], flows: &[String], printer: &Printer) -> Outcome {
    let report = replay::run(files, flows).map_err(|error| {
        DriverError::failed(format!("Cannot replay: {error}."))
            .hint("each line is one exchange as JSON")
    })?;
    if printer.output.json {
        let report = report.to_string();
        printer.json(&kind::SIM_REPLAY, &SimReplay { report });
    } else {
        printer.data(&format!("{report}\n"));
    }
    Ok(ExitCode::SUCCESS)
}
