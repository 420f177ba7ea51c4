//! `homestak secrets`: generates keys; encrypts, decrypts, checks, edits and prints secrets.

mod check;
mod decrypt;
mod edit;
mod encrypt;
mod file;
mod get;
mod keys;
mod private;

use std::process::ExitCode;

use super::Outcome;
use crate::args::SecretsCommand;
use crate::settings::Settings;
use crate::ui::Printer;

/// Runs a secrets command.
pub(super) fn run(command: SecretsCommand, settings: &Settings, printer: &Printer) -> Outcome {
    private::remove_leftovers();
    match command {
        SecretsCommand::Keygen { out } => keys::keygen(out.as_deref(), settings, printer),
        SecretsCommand::Encrypt {
            file,
            recipients,
            out,
            in_place,
        } => {
            let target = if in_place {
                encrypt::Target::InPlace
            } else {
                encrypt::Target::File(out)
            };
            encrypt::run(file.as_deref(), &recipients, target, settings, printer)
        }
        SecretsCommand::Decrypt {
            file,
            out,
            stdout,
            force,
        } => decrypt::run(
            file.as_deref(),
            &decrypt::Options {
                out: out.as_deref(),
                stdout,
                force,
            },
            settings,
            printer,
        ),
        SecretsCommand::Check { file } => check::run(file.as_deref(), settings, printer),
        SecretsCommand::Edit { file } => return edit::run(file.as_deref(), settings, printer),
        SecretsCommand::Get { id } => get::run(&id, settings, printer),
    }?;
    Ok(ExitCode::SUCCESS)
}
