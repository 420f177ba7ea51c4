//! `homestak secrets get`: one secret, on stdout.

use homestak_api::v1::{SecretValue, kind};
use homestak_core::doc::secrets::{Secret, SecretMap, SecretsFile};
use homestak_core::doc::{Diagnostics, Spanned};
use homestak_driver::{DriverError, require_sound};

use crate::settings::Settings;
use crate::ui::Printer;

/// Prints one secret.
pub(super) fn run(id: &str, settings: &Settings, printer: &Printer) -> Result<(), DriverError> {
    let session = settings.session()?;
    let Some(document) = &session.catalog.secrets else {
        return Err(DriverError::failed("The site has no secrets.")
            .hint("homestak site show shows which site is used"));
    };
    let mut faults = Diagnostics::default();
    faults.extend(document.diagnostics.clone());
    require_sound(printer, &faults, &session.catalog.sources)?;
    let Some(secrets) = &document.value else {
        return Err(DriverError::failed("The secrets could not be decrypted.")
            .hint("homestak secrets check shows why"));
    };
    let all = all(secrets);
    let found = all.iter().find(|(known, _)| known == id);
    let (_, secret) = found
        .ok_or_else(|| DriverError::unknown("secret", id, all.iter().map(|(id, _)| id.as_str())))?;
    if printer.output.json {
        let value = SecretValue {
            id: id.to_owned(),
            value: secret.expose().to_owned(),
        };
        printer.json(&kind::SECRETS_GET, &value);
    } else {
        printer.data(&format!("{}\n", secret.expose()));
    }
    Ok(())
}

/// Lists every secret by its id.
fn all(secrets: &SecretsFile) -> Vec<(String, &Secret)> {
    let mut all = Vec::new();
    let auth = secrets.auth.as_ref();
    let sections: [(&str, Option<&Spanned<SecretMap>>); 4] = [
        ("api_tokens", secrets.api_tokens.as_ref()),
        ("passwords", secrets.passwords.as_ref()),
        ("ssh_keys", secrets.ssh_keys.as_ref()),
        (
            "auth.node_tokens",
            auth.and_then(|auth| auth.node_tokens.as_ref()),
        ),
    ];
    for (section, map) in sections {
        all.extend(
            map.into_iter()
                .flat_map(|map| &map.value)
                .map(|(id, secret)| (format!("{section}.{id}"), &secret.value)),
        );
    }
    let singles = [
        (
            "auth.signing_key",
            auth.and_then(|auth| auth.signing_key.as_ref()),
        ),
        (
            "auth.site_token",
            auth.and_then(|auth| auth.site_token.as_ref()),
        ),
        ("private_key", secrets.private_key.as_ref()),
    ];
    all.extend(
        singles
            .into_iter()
            .filter_map(|(id, secret)| Some((id.to_owned(), &secret?.value))),
    );
    all
}
