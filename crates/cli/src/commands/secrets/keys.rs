//! Age keys: made, and found in the standard places.
//!
//! In: the environment and key files. Out: identities, or a new key file of mode 0600.
//! Never: a private key on the terminal or in a message; an existing key overwritten.

use std::path::{Path, PathBuf};

use homestak_secrets::{Identities, Place, key_places, keygen as make};
use serde_json::json;

use crate::clock;
use crate::commands::write_private;
use crate::error::CommandError;
use crate::process;
use crate::settings::{Settings, variable};
use crate::ui::Printer;

/// Collects the identities of every standard place.
pub(super) fn identities(settings: &Settings) -> Result<Identities, String> {
    let mut all = Identities::default();
    for place in places(settings) {
        let (what, text) = match &place {
            Place::Variable(name) => ((*name).to_owned(), variable(name)),
            Place::NamedFile(path) => {
                let text = fs_err::read_to_string(path)
                    .map_err(|error| format!("read the age key: {error}"))?;
                (path.display().to_string(), Some(text))
            }
            Place::Command(line) => {
                let text = process::output_of(line)
                    .map_err(|error| format!("run SOPS_AGE_KEY_CMD: {error}"))?;
                ("SOPS_AGE_KEY_CMD".to_owned(), Some(text))
            }
            Place::DefaultFile(path) => (
                path.display().to_string(),
                fs_err::read_to_string(path).ok(),
            ),
        };
        let Some(text) = text.map(zeroize::Zeroizing::new) else {
            continue;
        };
        all.extend(
            Identities::parse(&text)
                .map_err(|error| format!("read the age key from {what}: {error}"))?,
        );
    }
    Ok(all)
}

fn places(settings: &Settings) -> Vec<Place> {
    let home = settings.home.display().to_string();
    key_places(&|name| variable(name).or_else(|| (name == "HOME").then(|| home.clone())))
}

/// Makes a key, and shows its recipient.
pub(super) fn keygen(
    out: Option<&Path>,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CommandError> {
    let path = out.map_or_else(|| standard_file(settings), Path::to_owned);
    if path.exists() {
        return Err(CommandError::refused(format!(
            "`{}` exists, and a lost key cannot be made again.",
            path.display()
        ))
        .hint("name another file with --out; nothing was changed"));
    }
    let pair = make(&clock::now().to_string());
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)
            .map_err(|error| CommandError::file("make", parent, &error))?;
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

fn standard_file(settings: &Settings) -> PathBuf {
    let default = places(settings).into_iter().find_map(|place| match place {
        Place::DefaultFile(path) => Some(path),
        Place::Variable(_) | Place::NamedFile(_) | Place::Command(_) => None,
    });
    default.unwrap_or_else(|| settings.home.join(".config/sops/age/keys.txt"))
}
