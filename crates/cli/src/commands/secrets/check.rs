//! `homestak secrets check`: sealed, whole, can be opened, not in git in plain.

use std::path::Path;

use homestak_site::git;
use serde_json::json;

use super::{file, open_sealed, sealed};
use crate::error::CommandError;
use crate::settings::Settings;
use crate::ui::Printer;

/// Checks a file.
pub(super) fn run(
    named: Option<&Path>,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CommandError> {
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
            " and tracked by git: what is in it must be replaced"
        } else {
            ""
        };
        return Err(CommandError::failed(format!(
            "`{}` is not sealed{where_else}.",
            path.display()
        ))
        .hint(format!("homestak secrets encrypt {}", path.display())));
    }
    if let Some(warning) = file::plain_beside(path) {
        printer.say(&warning);
    }
    let recipients = recipients(&secrets.text);
    open_sealed(&secrets.text, settings)?;
    if printer.shape.json {
        printer.json(
            "secrets.check",
            json!({ "success": true, "file": path, "sealed": true, "recipients": recipients }),
        );
    } else {
        printer.data(&format!(
            "{}: sealed, whole, and your key opens it\nrecipients: {}\n",
            path.display(),
            recipients.join(", "),
        ));
    }
    Ok(())
}

pub(super) fn recipients(text: &str) -> Vec<String> {
    let tree = file::tree(text);
    let age = tree
        .as_ref()
        .and_then(|tree| tree.field("sops")?.field("age")?.items());
    let keys = age
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.field("recipient")?.as_text());
    keys.map(str::to_owned).collect()
}
