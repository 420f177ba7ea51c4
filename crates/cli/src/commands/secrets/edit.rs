//! `homestak secrets edit`: opens secrets in an editor and encrypts them again.
//!
//! The plain text is in a private directory, in memory where there is one, and only while the
//! editor runs. When the change is invalid, the encrypted file is not modified.

use std::path::Path;
use std::process::ExitCode;

use homestak_api::v1::{SecretsEdited, kind};
use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::DocumentKind;
use homestak_driver::DriverError;
use homestak_driver::secrets::{open_sealed, sealed, sealed_text, who};

use super::file;
use super::private::PrivateFile;
use crate::commands::{Outcome, write_private};
use crate::process::{Edited, Editing};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Edits a file.
pub(super) fn run(named: Option<&Path>, settings: &Settings, printer: &Printer) -> Outcome {
    let secrets = file::read(named, &["secrets.yaml.enc", "secrets.yaml"], settings)?;
    let is_sealed = sealed(&secrets.text);
    if !is_sealed && file::without_suffix(&secrets.path).is_some() {
        let path = secrets.path.display();
        return Err(DriverError::failed(format!("`{path}` is not encrypted."))
            .hint(format!("homestak secrets encrypt --in-place {path}")));
    }
    if let Some(warning) = file::plain_beside(&secrets.path) {
        printer.message(&warning);
    }
    let before = if is_sealed {
        open_sealed(&secrets.text, &settings.driver.keys)?
            .expose()
            .to_owned()
    } else {
        secrets.text.to_string()
    };
    let before = zeroize::Zeroizing::new(before);
    let no_editor = |error| {
        DriverError::failed(format!(
            "Cannot run the editor `{}`: {error}.",
            settings.editor
        ))
        .hint("set VISUAL or EDITOR; nothing was changed")
    };
    let (private, edited) = block_on(async {
        // Signals first: none may end this program while there is plain text to remove.
        let editing = Editing::new().map_err(no_editor)?;
        let private = PrivateFile::new(&before)?;
        let edited = editing.run(&settings.editor, &private.path).await;
        Ok::<_, DriverError>((private, edited.map_err(no_editor)?))
    })??;
    match edited {
        Edited::Interrupted(signal) => {
            printer.message(
                "Interrupted: the editor was stopped and its file deleted; nothing was changed.",
            );
            return Ok(ExitCode::from(signal.saturating_add(128)));
        }
        Edited::Ended(status) if !status.success() => {
            return Err(DriverError::failed(format!(
                "The editor failed with {status}; nothing was changed."
            )));
        }
        Edited::Ended(_) => {}
    }
    let after = fs_err::read_to_string(&private.path)
        .map_err(|error| DriverError::file("read", &private.path, &error))?;
    let after = zeroize::Zeroizing::new(after);
    if after == before {
        printer.message("Nothing was changed.");
        return Ok(ExitCode::SUCCESS);
    }
    let result = check(&after, printer).and_then(|()| store(&secrets, &after, is_sealed, settings));
    if let Err(error) = result {
        let kept = private.keep();
        return Err(error.hint(format!(
            "your change is kept in {} (mode 0600); delete it when you are done",
            kept.display()
        )));
    }
    if printer.output.json {
        let edited = SecretsEdited {
            success: true,
            file: secrets.path.display().to_string(),
            sealed: is_sealed,
        };
        printer.json(&kind::SECRETS_EDIT, &edited);
    } else {
        printer.message(&format!("Changed {}", secrets.path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the change is a valid secrets document, and shows every error.
fn check(text: &str, printer: &Printer) -> Result<(), DriverError> {
    let input = InputDocument {
        kind: DocumentKind::Secrets,
        name: "secrets".into(),
        path: "(your change)".into(),
        text: Ok(text.to_owned()),
    };
    let catalog = Catalog::read(vec![input]);
    let Some(document) = &catalog.secrets else {
        return Ok(());
    };
    printer.diagnostics(&document.diagnostics, &catalog.sources);
    if document.diagnostics.errors() == 0 {
        return Ok(());
    }
    Err(DriverError::failed(
        "The change is invalid; the file is unchanged.",
    ))
}

fn store(
    secrets: &file::SecretsText,
    after: &str,
    is_sealed: bool,
    settings: &Settings,
) -> Result<(), DriverError> {
    if !is_sealed {
        return write_private(&secrets.path, after);
    }
    let keys = &settings.driver.keys;
    let own: Vec<String> = super::check::recipients(&secrets.text);
    // Who could decrypt it before can decrypt it afterwards; the rules of the site decide what is hidden.
    let (recipients, rules) =
        who(&own, &secrets.path, keys).or_else(|_| who(&[], &secrets.path, keys))?;
    let now = settings.driver.time.now();
    let text = sealed_text(after, Some(&secrets.text), &recipients, &rules, (keys, now))?;
    write_private(&secrets.path, &text)
}
