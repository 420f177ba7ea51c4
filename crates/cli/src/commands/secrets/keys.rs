//! Age keys: made, and found in the standard places.
//!
//! In: the environment and key files. Out: identities, or a new key file of mode 0600.
//! Never: a private key on the terminal or in a message; an existing key overwritten.

use std::path::Path;

use homestak_driver::DriverError;
use homestak_driver::secrets::keygen as make;
use serde_json::json;

use crate::commands::write_private;
use crate::settings::Settings;
use crate::ui::Printer;

/// Makes a key, and shows its recipient.
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
            "`{}` exists, and a lost key cannot be made again.",
            path.display()
        ))
        .hint("name another file with --out; nothing was changed"));
    }
    let pair = make(&settings.driver.time.now().to_string());
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)
            .map_err(|error| DriverError::file("make", parent, &error))?;
    }
    write_private(&path, pair.file.expose())?;
    if printer.shape.json {
        printer.json(
            "secrets.keygen",
            json!({ "success": true, "file": path, "recipient": pair.recipient.to_string() }),
        );
    } else {
        printer.data(&format!("{}\n", pair.recipient));
        printer.say(&format!(
            "Wrote the private key to {} (mode 0600); keep a copy in a safe place.",
            path.display()
        ));
    }
    Ok(())
}
