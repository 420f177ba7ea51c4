//! `homestak completions` and `homestak man`, generated from the command tree.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use homestak_driver::DriverError;

use super::{Outcome, names};
use crate::args::Cli;
use crate::ui::Printer;

/// Prints completions for a shell.
pub(super) fn completions(shell: clap_complete::Shell, printer: &Printer) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "homestak", &mut script);
    printer.data(&names::add(shell, &String::from_utf8_lossy(&script)));
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page, or writes one page per command.
pub(super) fn man(out: Option<&Path>, printer: &Printer) -> Outcome {
    let Some(directory) = out else {
        let mut page = Vec::new();
        let failed = |error: std::io::Error| {
            DriverError::failed(format!("Cannot render the manual page: {error}."))
        };
        clap_mangen::Man::new(Cli::command())
            .render(&mut page)
            .map_err(failed)?;
        printer.data(&String::from_utf8_lossy(&page));
        return Ok(ExitCode::SUCCESS);
    };
    let failed =
        |error: std::io::Error| DriverError::file("write manual pages to", directory, &error);
    fs_err::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), directory).map_err(failed)?;
    printer.message(&format!("Wrote manual pages to {}", directory.display()));
    Ok(ExitCode::SUCCESS)
}
