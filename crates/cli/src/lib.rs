//! TALKS: arguments, settings, printing; one file per command.
//!
//! In: arguments and environment. Out: data on stdout, talk on stderr, an exit code.
//! Never: deciding (that is `core`); printing anywhere but in `ui`.

pub mod args;
mod commands;
mod process;
mod runtime;
pub mod settings;
mod ui;
pub mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use homestak_driver::DriverError;
use settings::Settings;
use ui::Printer;

/// Runs the program and returns its exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if let Some(notice) = words::notice(&arguments) {
        Printer::new(ui::Shape::guess()).say(&notice);
    }
    let arguments = match words::translate(arguments) {
        words::Translated::Run(arguments) => arguments,
        words::Translated::Retired { name, replacement } => {
            let printer = Printer::new(ui::Shape::guess());
            return printer.fail(&DriverError::retired(&name, &replacement));
        }
    };
    if arguments.len() <= 1 {
        ui::print_help();
        return ExitCode::SUCCESS;
    }
    let cli = match args::Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return ui::usage(&error, &arguments),
    };
    let settings = match Settings::from_environment(&cli.global) {
        Ok(settings) => settings,
        Err(error) => return Printer::new(ui::Shape::new(&cli.global)).fail(&error),
    };
    let printer = Printer::new(settings.shape);
    match commands::run(cli.command, &settings, &printer) {
        Ok(code) => code,
        Err(error) => printer.fail(&error),
    }
}
