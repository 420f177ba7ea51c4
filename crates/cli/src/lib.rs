//! The command line: arguments, settings, output, and one file per command.
//!
//! Data goes to stdout, messages go to stderr. Only `ui` prints, and `core` decides.

pub mod args;
mod commands;
pub mod legacy;
mod process;
mod runtime;
pub mod settings;
mod ui;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use homestak_api::log;
use homestak_driver::DriverError;
use settings::Settings;
use ui::Printer;

/// Runs the program and returns its exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    ui::with_write_error(run(arguments.collect()))
}

fn run(arguments: Vec<OsString>) -> ExitCode {
    if let Some(notice) = legacy::notice(&arguments) {
        Printer::new(ui::OutputOptions::guess()).message(&notice);
    }
    let arguments = match legacy::translate(arguments) {
        legacy::Translated::Run(arguments) => arguments,
        legacy::Translated::Retired { name, replacement } => {
            let printer = Printer::new(ui::OutputOptions::guess());
            return printer.fail(&DriverError::retired(&name, &replacement));
        }
    };
    if arguments.len() <= 1 {
        ui::print_help();
        return ExitCode::SUCCESS;
    }
    let cli = match args::Cli::try_parse_from(&arguments) {
        Ok(cli) => cli.with_json_flag(),
        Err(error) => return ui::usage(&error, &arguments),
    };
    let settings = match Settings::from_environment(&cli.global) {
        Ok(settings) => settings,
        Err(error) => return Printer::new(ui::OutputOptions::new(&cli.global)).fail(&error),
    };
    let printer = Printer::new(settings.output);
    if let Err(error) = log::start(&settings.log) {
        return printer.fail(&DriverError::usage(format!(
            "Cannot open the log file: {error}."
        )));
    }
    tracing::debug!(
        version = env!("CARGO_PKG_VERSION"),
        process = std::process::id(),
        "started"
    );
    guarded(&printer, || commands::run(cli.command, &settings, &printer))
}

/// Runs a command. One in which anything panicked, in whatever thread or task, has failed.
fn guarded(printer: &Printer, command: impl FnOnce() -> Result<ExitCode, DriverError>) -> ExitCode {
    let panicked = || {
        let error = DriverError::failed("Internal error: the program panicked.");
        printer.fail(&error.hint("this is a bug of homestak; please report it with the log"))
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(command)) {
        Ok(Ok(ExitCode::SUCCESS)) if log::has_panicked() => panicked(),
        Ok(Ok(code)) => code,
        Ok(Err(error)) => printer.fail(&error),
        Err(_) => panicked(),
    }
}

#[cfg(test)]
mod tests {
    use homestak_api::log::LogSettings;

    use super::*;

    #[test]
    fn a_command_that_panicked_has_failed() {
        log::start(&LogSettings::default()).unwrap();
        let printer = Printer::new(ui::OutputOptions::guess());
        let code = guarded(&printer, || panic!("on purpose"));
        assert_eq!(code, ExitCode::FAILURE);
    }

    #[test]
    fn a_command_with_a_background_task_that_panicked_has_failed() {
        log::start(&LogSettings::default()).unwrap();
        let printer = Printer::new(ui::OutputOptions::guess());
        let code = guarded(&printer, || {
            _ = std::thread::spawn(|| panic!("on purpose")).join();
            Ok(ExitCode::SUCCESS)
        });
        assert_eq!(code, ExitCode::FAILURE);
    }
}
