//! `homestak secrets edit`: opened, changed in an editor, sealed again.
//!
//! The plain text lies in a private directory, in memory where there is one, and only while the
//! editor runs. When the change cannot be used, the sealed file stays as it was.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_core::catalog::{Catalog, Input};
use homestak_core::doc::Kind;
use serde_json::json;

use super::encrypt::{sealed_text, who};
use super::{file, open_sealed, sealed};
use crate::commands::write_private;
use crate::error::CommandError;
use crate::process;
use crate::settings::Settings;
use crate::ui::Printer;

/// Edits a file.
pub(super) fn run(
    named: Option<&Path>,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CommandError> {
    let secrets = file::read(named, &["secrets.yaml.enc", "secrets.yaml"], settings)?;
    let is_sealed = sealed(&secrets.text);
    let before = if is_sealed {
        open_sealed(&secrets.text, settings)?.expose().to_owned()
    } else {
        secrets.text.to_string()
    };
    let before = zeroize::Zeroizing::new(before);
    let desk = Desk::new(&before)?;
    let status = process::edit(&settings.editor, &desk.file).map_err(|error| {
        CommandError::failed(format!(
            "Cannot run the editor `{}`: {error}.",
            settings.editor
        ))
        .hint("set VISUAL or EDITOR; nothing was changed")
    })?;
    if !status.success() {
        return Err(CommandError::failed(format!(
            "The editor ended with {status}, so nothing was changed."
        )));
    }
    let after = fs_err::read_to_string(&desk.file)
        .map_err(|error| CommandError::file("read", &desk.file, &error))?;
    let after = zeroize::Zeroizing::new(after);
    if after == before {
        printer.say("Nothing was changed.");
        return Ok(());
    }
    let result = check(&after, printer).and_then(|()| store(&secrets, &after, is_sealed, settings));
    if let Err(error) = result {
        let kept = desk.keep();
        return Err(error.hint(format!(
            "your change is kept in {} (mode 0600); remove it when you are done",
            kept.display()
        )));
    }
    if printer.shape.json {
        printer.json(
            "secrets.edit",
            json!({ "success": true, "file": secrets.path, "sealed": is_sealed }),
        );
    } else {
        printer.say(&format!("Changed {}", secrets.path.display()));
    }
    Ok(())
}

/// Checks that the change is still a secrets document, and shows every fault.
fn check(text: &str, printer: &Printer) -> Result<(), CommandError> {
    let input = Input {
        kind: Kind::Secrets,
        name: "secrets".into(),
        path: "(your change)".into(),
        text: Ok(text.to_owned()),
    };
    let catalog = Catalog::read(vec![input]);
    let Some(document) = &catalog.secrets else {
        return Ok(());
    };
    printer.diagnostics(&document.faults, &catalog.sources);
    if document.faults.errors() == 0 {
        return Ok(());
    }
    Err(CommandError::failed(
        "The change has faults, so the file stays as it was.",
    ))
}

fn store(
    secrets: &file::SecretsText,
    after: &str,
    is_sealed: bool,
    settings: &Settings,
) -> Result<(), CommandError> {
    if !is_sealed {
        return write_private(&secrets.path, after);
    }
    let own: Vec<String> = super::check::recipients(&secrets.text);
    // Who could open it before can open it afterwards; the rules of the site decide what is hidden.
    let (recipients, rules) =
        who(&own, &secrets.path, settings).or_else(|_| who(&[], &secrets.path, settings))?;
    let text = sealed_text(after, Some(&secrets.text), &recipients, &rules, settings)?;
    write_private(&secrets.path, &text)
}

/// A private directory with one file in it; gone when it is dropped.
struct Desk {
    directory: tempfile::TempDir,
    file: PathBuf,
}

impl Desk {
    fn new(text: &str) -> Result<Self, CommandError> {
        let failed = |error: std::io::Error| {
            CommandError::failed(format!("Cannot make a private directory: {error}."))
        };
        let memory = Path::new("/dev/shm");
        let mut private = tempfile::Builder::new();
        private.permissions(Permissions::from_mode(0o700));
        let directory = private
            .tempdir_in(memory)
            .or_else(|_| private.tempdir())
            .map_err(failed)?;
        let file = directory.path().join("secrets.yaml");
        let mut options = fs_err::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options
            .open(&file)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(failed)?;
        Ok(Self { directory, file })
    }

    /// Leaves the file for the person who wrote it.
    fn keep(self) -> PathBuf {
        _ = self.directory.keep();
        self.file
    }
}
