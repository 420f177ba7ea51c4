//! Encrypts plain text. Ciphertext of unchanged values is kept; files are written by the caller.

use std::path::Path;

use homestak_core::error::chain;
use homestak_secrets::{
    CreationError, CreationRule, Previous, Recipient, Rules, SealError, Sealing, creation_rule_for,
    seal,
};
use jiff::Timestamp;

use super::KeySources;
use crate::error::DriverError;

/// Encrypts text. Ciphertext of values that are unchanged since `before` is kept, if `before` can be
/// decrypted.
pub fn sealed_text(
    plain: &str,
    before: Option<&str>,
    recipients: &[Recipient],
    rules: &Rules,
    (sources, now): (&KeySources, Timestamp),
) -> Result<String, DriverError> {
    let identities = sources.identities().unwrap_or_default();
    // As SOPS formats it: to the second.
    let now = format!("{now:.0}");
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
        let made = DriverError::failed(format!("Cannot encrypt: {}.", chain(&error)));
        match error {
            SealError::AlreadySealed => {
                made.hint("to change encrypted secrets: homestak secrets edit FILE")
            }
            SealError::Document(_) => {
                made.hint("homestak site validate shows what is wrong with the document")
            }
            _ => made,
        }
    })
}

/// Returns recipients and encryption rules: the given ones, those of `.sops.yaml`, or the user's
/// own keys.
pub fn who(
    named: &[String],
    path: &Path,
    keys: &KeySources,
) -> Result<(Vec<Recipient>, Rules), DriverError> {
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
            parsed.map_err(|error| DriverError::failed(format!("Cannot encrypt: {error}.")))?;
        return Ok((parsed, rules));
    }
    if !ruled.is_empty() {
        return Ok((ruled, rules));
    }
    let own = keys
        .identities()
        .map_err(|message| DriverError::failed(format!("Cannot {message}.")))?;
    if own.is_empty() {
        return Err(DriverError::failed(
            "There are no recipients: none is configured, and you have no age key.",
        )
        .hint("homestak secrets keygen"));
    }
    Ok((own.recipients(), rules))
}

/// Reads the rules of the nearest `.sops.yaml`, from the file's directory upwards.
fn creation(path: &Path) -> Result<Option<CreationRule>, DriverError> {
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
        .map_err(|error| DriverError::file("read", &rules, &error))?;
    let base = rules.parent().unwrap_or(Path::new("/"));
    let relative = absolute
        .strip_prefix(base)
        .unwrap_or(&absolute)
        .display()
        .to_string();
    match creation_rule_for(&text, &relative) {
        Ok(creation) => Ok(Some(creation)),
        Err(CreationError::NoMatch { .. }) => Ok(None),
        Err(error) => Err(DriverError::failed(format!(
            "Cannot use {}: {}.",
            rules.display(),
            chain(&error)
        ))),
    }
}
