//! `homestak secrets`: make keys, seal, open, check, change, look up.

mod check;
mod decrypt;
mod edit;
mod encrypt;
mod file;
mod get;
mod keys;
mod private;

use std::process::ExitCode;

use homestak_core::error::chain;
use homestak_secrets::{OpenError, PlainText, is_sealed};

use super::Outcome;
use crate::args::SecretsCommand;
use crate::error::{CommandError, capitalized};
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

/// Why sealed secrets could not be opened.
pub(crate) struct Failure {
    /// Whether only a key is missing; the file itself may be fine.
    pub(crate) no_key: bool,
    /// What happened.
    pub(crate) message: String,
    /// What to do.
    pub(crate) hint: String,
}

/// Opens sealed secrets with the keys of the standard places. Text that is not sealed comes back
/// as it is.
pub(crate) fn open(text: &str, settings: &Settings) -> Result<String, Failure> {
    if !sealed(text) {
        return Ok(text.to_owned());
    }
    open_sealed(text, settings).map(|plain| plain.expose().to_owned())
}

/// Tells whether a text is a sealed document.
fn sealed(text: &str) -> bool {
    file::tree(text).is_some_and(|tree| is_sealed(&tree))
}

/// Opens a sealed document with the keys of the standard places.
fn open_sealed(text: &str, settings: &Settings) -> Result<PlainText, Failure> {
    let identities = keys::identities(settings).map_err(|message| Failure {
        no_key: true,
        message,
        hint: "mend the key file, or name another one in SOPS_AGE_KEY_FILE".into(),
    })?;
    homestak_secrets::open(text, &identities).map_err(|error| match &error {
        OpenError::NoKeyFits { .. } => Failure {
            no_key: true,
            message: format!("the secrets are sealed, and no key opens them: {}", chain(&error)),
            hint: "put your age key into ~/.config/sops/age/keys.txt, or name its file in SOPS_AGE_KEY_FILE".into(),
        },
        OpenError::MacMismatch => Failure {
            no_key: false,
            message: chain(&error),
            hint: "restore the file from git; change it with `homestak secrets edit` only".into(),
        },
        _ => Failure {
            no_key: false,
            message: format!("the secrets cannot be opened: {}", chain(&error)),
            hint: "restore the file from git, or seal the secrets again".into(),
        },
    })
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        Self::failed(capitalized(&failure.message) + ".").hint(failure.hint)
    }
}
