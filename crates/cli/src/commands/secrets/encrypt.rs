//! `homestak secrets encrypt`: a plain file becomes a sealed one.

use std::path::{Path, PathBuf};

use homestak_core::error::chain;
use homestak_secrets::{
    CreationError, Previous, Recipient, Rules, SealError, Sealing, creation_for, seal,
};
use serde_json::json;

use super::{file, keys, open_sealed, sealed};
use crate::clock;
use crate::commands::write_private;
use crate::error::CommandError;
use crate::settings::Settings;
use crate::ui::Printer;

/// Where the sealed text goes.
pub(super) enum Target {
    /// Over the plain file.
    InPlace,
    /// To this file, or beside the plain one.
    File(Option<PathBuf>),
}

/// Seals a file.
pub(super) fn run(
    named: Option<&Path>,
    recipients: &[String],
    target: Target,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CommandError> {
    let plain = file::read(named, &["secrets.yaml"], settings)?;
    let path = match target {
        Target::InPlace => plain.path.clone(),
        Target::File(Some(path)) => path,
        Target::File(None) => PathBuf::from(format!("{}.enc", plain.path.display())),
    };
    let (recipients, rules) = who(recipients, &plain.path, settings)?;
    // What was sealed before keeps its ciphertext, so that a change shows as one in git.
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
        settings,
    )?;
    write_private(&path, &text)?;
    let names: Vec<String> = recipients.iter().map(ToString::to_string).collect();
    let opens = open_sealed(&text, settings).is_ok();
    if printer.shape.json {
        printer.json(
            "secrets.encrypt",
            json!({ "success": true, "file": path, "recipients": names, "can_be_opened_here": opens }),
        );
        return Ok(());
    }
    printer.say(&format!(
        "Sealed {} for {}",
        path.display(),
        names.join(", ")
    ));
    if !opens {
        printer.say("warning: none of your keys opens it: you could not read it again here");
        printer.hint(
            "homestak secrets keygen prints your recipient; add it with -r, or in .sops.yaml",
        );
    }
    if path != plain.path {
        printer.say(&format!(
            "{} is still there in plain; remove it when you no longer need it.",
            plain.path.display()
        ));
    }
    Ok(())
}

/// Seals text, keeping what did not change since `before` where that can be opened.
pub(super) fn sealed_text(
    plain: &str,
    before: Option<&str>,
    recipients: &[Recipient],
    rules: &Rules,
    settings: &Settings,
) -> Result<String, CommandError> {
    let identities = keys::identities(settings).unwrap_or_default();
    let now = now();
    let fresh = Sealing {
        recipients,
        rules,
        now: &now,
        previous: None,
    };
    let previous = before.map(|text| Previous {
        text,
        identities: &identities,
    });
    let sealed = match seal(plain, &Sealing { previous, ..fresh }) {
        Err(SealError::Previous(_)) => seal(plain, &fresh),
        other => other,
    };
    sealed.map_err(|error| {
        let made = CommandError::failed(format!("Cannot seal: {}.", chain(&error)));
        match error {
            SealError::AlreadySealed => {
                made.hint("to change sealed secrets: homestak secrets edit FILE")
            }
            SealError::Document(_) => {
                made.hint("homestak site validate shows what is wrong with the document")
            }
            _ => made,
        }
    })
}

/// Returns now as SOPS writes it: to the second.
fn now() -> String {
    jiff::Timestamp::from_second(clock::now().as_second())
        .map_or_else(|_| clock::now().to_string(), |now| now.to_string())
}

/// Who can open the result, and what is encrypted: named, from `.sops.yaml`, or ourselves.
pub(super) fn who(
    named: &[String],
    path: &Path,
    settings: &Settings,
) -> Result<(Vec<Recipient>, Rules), CommandError> {
    let (ruled, rules) = match creation(path)? {
        Some(creation) => (creation.recipients, creation.rules),
        None => (Vec::new(), Rules::default()),
    };
    if !named.is_empty() {
        let parsed = named
            .iter()
            .map(|text| Recipient::parse(text))
            .collect::<Result<Vec<_>, _>>();
        let parsed =
            parsed.map_err(|error| CommandError::failed(format!("Cannot seal: {error}.")))?;
        return Ok((parsed, rules));
    }
    if !ruled.is_empty() {
        return Ok((ruled, rules));
    }
    let own = keys::identities(settings)
        .map_err(|message| CommandError::failed(format!("Cannot {message}.")))?;
    if own.is_empty() {
        return Err(CommandError::failed(
            "There is nobody to seal for: no recipient is named, and you have no age key.",
        )
        .hint("homestak secrets keygen"));
    }
    Ok((own.recipients(), rules))
}

/// Reads the rules of the nearest `.sops.yaml`, from the file's directory upwards.
fn creation(path: &Path) -> Result<Option<homestak_secrets::Creation>, CommandError> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Some(rules) = absolute
        .ancestors()
        .skip(1)
        .map(|above| above.join(".sops.yaml"))
        .find(|path| path.is_file())
    else {
        return Ok(None);
    };
    let text = fs_err::read_to_string(&rules)
        .map_err(|error| CommandError::file("read", &rules, &error))?;
    let base = rules.parent().unwrap_or(Path::new("/"));
    let relative = absolute
        .strip_prefix(base)
        .unwrap_or(&absolute)
        .display()
        .to_string();
    match creation_for(&text, &relative) {
        Ok(creation) => Ok(Some(creation)),
        Err(CreationError::NoMatch { .. }) => Ok(None),
        Err(error) => Err(CommandError::failed(format!(
            "Cannot use {}: {}.",
            rules.display(),
            chain(&error)
        ))),
    }
}
