//! `homestak secrets keygen`: generates an age key in a file of mode 0600.
//!
//! An existing key is never overwritten, and a private key is never printed.

use std::path::Path;

use homestak_api::v1::{SecretsKey, kind};
use homestak_driver::DriverError;
use homestak_driver::secrets::keygen as make;

use crate::commands::write_private;
use crate::settings::Settings;
use crate::ui::Printer;

/// Generates a key, and prints its recipient.
pub(super) fn keygen(
    out: Option<&Path>,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), DriverError> {
    let path = out.map_or_else(
        || {
            let standard = settings.driver.keys.default_file();
            standard.unwrap_or_else(|| settings.home.join(".config/sops/age/keys.txt"))
        },
        Path::to_owned,
    );
    if path.exists() {
        return Err(DriverError::refused(format!(
            "`{}` exists, and keys are never overwritten.",
            path.display()
        ))
        .hint("name another file with --out; nothing was changed"));
    }
    let pair = make(&settings.driver.time.now().to_string());
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)
            .map_err(|error| DriverError::file("create", parent, &error))?;
    }
    write_private(&path, pair.file.expose())?;
    if printer.output.json {
        let key = SecretsKey {
            success: true,
            file: path.display().to_string(),
            recipient: pair.recipient.to_string(),
        };
        printer.json(&kind::SECRETS_KEYGEN, &key);
    } else {
        printer.data(&format!("{}\n", pair.recipient));
        printer.message(&format!(
            "Wrote the private key to {} (mode 0600); keep a copy in a safe place.",
            path.display()
        ));
    }
    Ok(())
}
