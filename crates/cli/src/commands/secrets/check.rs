//! `homestak secrets check`: checks that secrets are encrypted, intact, and can be decrypted.

use std::path::Path;

use homestak_api::v1::{SecretsCheck, kind};
use homestak_driver::DriverError;
use homestak_driver::secrets::{open_sealed, sealed, tree};
use homestak_site::git;

use super::file;
use crate::settings::Settings;
use crate::ui::Printer;

/// Checks a file.
pub(super) fn run(
    named: Option<&Path>,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), DriverError> {
    let secrets = file::read(named, &["secrets.yaml.enc", "secrets.yaml"], settings)?;
    let path = &secrets.path;
    if !sealed(&secrets.text) {
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let tracked = !git::tracked(directory, &[name]).is_empty();
        let where_else = if tracked {
            " and is tracked by git: its secrets must be replaced"
        } else {
            ""
        };
        let in_place = match path.extension() {
            Some(ending) if ending == "enc" => "--in-place ",
            _ => "",
        };
        return Err(DriverError::failed(format!(
            "`{}` is not encrypted{where_else}.",
            path.display()
        ))
        .hint(format!(
            "homestak secrets encrypt {in_place}{}",
            path.display()
        )));
    }
    if let Some(warning) = file::plain_beside(path) {
        printer.message(&warning);
    }
    let recipients = recipients(&secrets.text);
    let plain = open_sealed(&secrets.text, &settings.driver.keys)?;
    for line in unopened_comments(&secrets.text, plain.expose()) {
        printer.message(&format!(
            "notice: {}: line {line}: the encrypted comment cannot be decrypted: it was changed, moved or \
             copied; SOPS protects values, but not comments",
            path.display()
        ));
    }
    if printer.output.json {
        let check = SecretsCheck {
            success: true,
            file: path.display().to_string(),
            sealed: true,
            recipients,
        };
        printer.json(&kind::SECRETS_CHECK, &check);
    } else {
        printer.data(&format!(
            "{}: encrypted, intact, and can be decrypted with your key\nrecipients: {}\n",
            path.display(),
            recipients.join(", "),
        ));
    }
    Ok(())
}

/// Returns the lines with encrypted comments that stayed encrypted.
fn unopened_comments(sealed: &str, plain: &str) -> Vec<usize> {
    let lines = sealed.lines().enumerate();
    let stayed = lines.filter(|(_, line)| {
        let comment = line.find("#ENC[").and_then(|at| line.get(at..));
        comment.is_some_and(|comment| plain.contains(comment))
    });
    stayed.map(|(at, _)| at + 1).collect()
}

pub(super) fn recipients(text: &str) -> Vec<String> {
    let tree = tree(text);
    let age = tree
        .as_ref()
        .and_then(|tree| tree.field("sops")?.field("age")?.items());
    let keys = age
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.field("recipient")?.as_text());
    keys.map(str::to_owned).collect()
}
