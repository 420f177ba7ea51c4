//! `homestak secrets encrypt`: encrypts a plain file.

use std::path::{Path, PathBuf};

use homestak_api::v1::{SecretsEncrypted, kind};
use homestak_driver::DriverError;
use homestak_driver::secrets::{open_sealed, sealed, sealed_text, who};

use super::file;
use crate::commands::write_private;
use crate::settings::Settings;
use crate::ui::Printer;

/// Where the encrypted text goes.
pub(super) enum Target {
    /// Over the plain file.
    InPlace,
    /// To this file, or beside the plain one.
    File(Option<PathBuf>),
}

/// Encrypts a file.
pub(super) fn run(
    named: Option<&Path>,
    recipients: &[String],
    target: Target,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), DriverError> {
    let plain = file::read(named, &["secrets.yaml"], settings)?;
    let path = match target {
        Target::InPlace => plain.path.clone(),
        Target::File(Some(path)) => path,
        Target::File(None) => PathBuf::from(format!("{}.enc", plain.path.display())),
    };
    let (recipients, rules) = who(recipients, &plain.path, &settings.driver.keys)?;
    // What was encrypted before keeps its ciphertext, so that a change shows as one in git.
    let before = if path == plain.path {
        None
    } else {
        fs_err::read_to_string(&path)
            .ok()
            .filter(|text| sealed(text))
    };
    let text = sealed_text(
        &plain.text,
        before.as_deref(),
        &recipients,
        &rules,
        (&settings.driver.keys, settings.driver.time.now()),
    )?;
    write_private(&path, &text)?;
    let names: Vec<String> = recipients.iter().map(ToString::to_string).collect();
    let opens = open_sealed(&text, &settings.driver.keys).is_ok();
    if printer.output.json {
        let encrypted = SecretsEncrypted {
            success: true,
            file: path.display().to_string(),
            recipients: names,
            can_be_opened_here: opens,
        };
        printer.json(&kind::SECRETS_ENCRYPT, &encrypted);
        return Ok(());
    }
    printer.message(&format!(
        "Encrypted {} for {}",
        path.display(),
        names.join(", ")
    ));
    if !opens {
        printer.message("warning: none of your keys can decrypt it");
        printer.hint(
            "homestak secrets keygen prints your recipient; add it with -r, or in .sops.yaml",
        );
    }
    if path != plain.path {
        printer.message(&format!(
            "The plain file {} still exists; delete it when you no longer need it.",
            plain.path.display()
        ));
    }
    Ok(())
}
