//! `homestak secrets decrypt`: decrypts a file into a private one.

use std::path::Path;

use homestak_api::v1::{SecretsDecrypted, kind};
use homestak_driver::DriverError;
use homestak_driver::secrets::{open_sealed, sealed};

use super::file;
use crate::commands::write_private;
use crate::settings::Settings;
use crate::ui::Printer;

/// Where the plain text goes.
pub(super) struct Options<'a> {
    /// To this file.
    pub(super) out: Option<&'a Path>,
    /// To stdout.
    pub(super) stdout: bool,
    /// Overwrite a file with different content.
    pub(super) force: bool,
}

/// Decrypts a file.
pub(super) fn run(
    named: Option<&Path>,
    options: &Options<'_>,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), DriverError> {
    let secrets = file::read(named, &["secrets.yaml.enc", "secrets.yaml"], settings)?;
    if !sealed(&secrets.text) {
        return Err(DriverError::failed(format!(
            "`{}` is not encrypted.",
            secrets.path.display()
        )));
    }
    let plain = open_sealed(&secrets.text, &settings.driver.keys)?;
    if options.stdout {
        printer.data(plain.expose());
        return Ok(());
    }
    let path = options
        .out
        .map(Path::to_owned)
        .or_else(|| file::without_suffix(&secrets.path))
        .ok_or_else(|| {
            DriverError::usage(
                "Specify `--out FILE`: the encrypted file's name does not end in `.enc`.",
            )
            .hint("or use --stdout")
        })?;
    let there = fs_err::read_to_string(&path).ok();
    if !options.force && there.is_some_and(|there| there != plain.expose()) {
        return Err(DriverError::refused(format!(
            "`{}` exists with different content.",
            path.display()
        ))
        .hint("use --force to overwrite it, or --out FILE; nothing was changed"));
    }
    write_private(&path, plain.expose())?;
    if printer.output.json {
        let decrypted = SecretsDecrypted {
            success: true,
            file: path.display().to_string(),
        };
        printer.json(&kind::SECRETS_DECRYPT, &decrypted);
    } else {
        printer.message(&format!(
            "Wrote {} (mode 0600). Keep it out of git, and delete it when you no longer need it; `{}` is the file that is used.",
            path.display(),
            secrets.path.display()
        ));
    }
    Ok(())
}
