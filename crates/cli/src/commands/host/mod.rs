//! `homestak host`: list, show, trust, role, preflight.

mod list;
pub(super) mod preflight;
mod role;
mod show;
mod trust;

use super::Outcome;
use crate::args::HostCommand;
use crate::settings::Settings;
use crate::ui::Printer;

/// Runs a host command.
pub(super) fn run(command: HostCommand, settings: &Settings, printer: &Printer) -> Outcome {
    let session = settings.session()?;
    match command {
        HostCommand::List => list::run(&session, printer),
        HostCommand::Show { name, offline } => {
            show::run(&name, offline, session, settings, printer)
        }
        HostCommand::Trust { name, yes } => trust::run(&name, yes, &session, printer),
        HostCommand::Role {
            name,
            pve_version,
            user,
            token,
        } => {
            let owner = role::TokenOwner {
                user: &user,
                token: &token,
            };
            role::run(name.as_deref(), pve_version, &owner, &session, printer)
        }
        HostCommand::Preflight { name, manifest } => {
            preflight::run(&name, manifest, session, settings, printer)
        }
    }
}
