//! `homestak resolve`: values for OpenTofu and Ansible.

use std::process::ExitCode;

use homestak_core::doc::Diagnostics;
use homestak_core::resolve::ansible::{self, Compat};
use homestak_core::resolve::tofu::{self, TofuTarget};
use homestak_core::resolve::{SecretVisibility, site};
use homestak_driver::select::select;
use homestak_driver::{DriverError, require_sound};
use serde_json::Value as Json;

use super::{Outcome, write_private};
use crate::args::{CompatArg, ExportArgs, ManifestArgs, ResolveCommand};
use crate::settings::Settings;
use crate::ui::Printer;

/// Runs a resolve command.
pub(super) fn run(command: ResolveCommand, settings: &Settings, printer: &Printer) -> Outcome {
    let (json, export) = match command {
        ResolveCommand::Tofu {
            manifest,
            node,
            export,
        } => (
            tofu_variables(&manifest, node.as_deref(), &export, settings)?,
            export,
        ),
        ResolveCommand::Ansible { posture, export } => (
            ansible_variables(&posture, &export, settings, printer)?,
            export,
        ),
    };
    if matches!(export.compat, CompatArg::Seed) {
        printer.message("notice: `--compat seed` is now `--compat legacy`");
    }
    match &export.out {
        Some(path) => {
            write_private(path, &format!("{json:#}\n"))?;
            printer.message(&format!(
                "Wrote {} (mode 0600, with secrets)",
                path.display()
            ));
        }
        None => {
            printer.raw_json(&json);
            if !export.show_secrets {
                printer.message(
                    "notice: secrets are masked; --out FILE writes them to a private file",
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn compat(export: &ExportArgs) -> Compat {
    match export.compat {
        CompatArg::Current => Compat::Current,
        CompatArg::Legacy | CompatArg::Seed => Compat::Legacy,
    }
}

/// Secrets are written to private files only, unless `--show-secrets` is given.
fn secret_visibility(export: &ExportArgs) -> SecretVisibility {
    if export.out.is_some() || export.show_secrets {
        SecretVisibility::Exposed
    } else {
        SecretVisibility::Masked
    }
}

fn tofu_variables(
    manifest: &ManifestArgs,
    node: Option<&str>,
    export: &ExportArgs,
    settings: &Settings,
) -> Result<Json, DriverError> {
    let mut session = settings.session()?;
    let (resolved, _) = select(&manifest.choice(), &mut session)?;
    if let Some(name) = node.filter(|name| resolved.node(name).is_none()) {
        return Err(DriverError::unknown(
            "node",
            name,
            resolved.nodes.iter().map(|node| node.name.as_str()),
        ));
    }
    // A node on a nested host is exported for that host.
    let parent = node
        .and_then(|name| resolved.node(name)?.parent.as_ref())
        .map(|parent| parent.as_str());
    let own = node
        .and_then(|name| resolved.node(name)?.host.as_ref())
        .map(|host| host.value.as_str());
    let host = parent.or(own).or(manifest.host.as_deref());
    let host = host.ok_or_else(|| {
        DriverError::usage("No host was named: variables for OpenTofu are generated per host.")
            .hint("use `-H HOST`")
    })?;
    let key = settings.home.join(".ssh/id_rsa").display().to_string();
    let target = TofuTarget {
        host,
        node,
        compat: compat(export),
        visibility: secret_visibility(export),
        server_url: settings.server.as_deref(),
        ssh_private_key_file: &key,
        user: &settings.user,
        now: settings.driver.time.now().as_second(),
    };
    Ok(tofu::variables(&session.catalog, &resolved, &target)?)
}

fn ansible_variables(
    posture: &str,
    export: &ExportArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<Json, DriverError> {
    let session = settings.session()?;
    let catalog = &session.catalog;
    let document = catalog.postures.get(posture);
    let document = document.ok_or_else(|| {
        DriverError::unknown(
            "posture",
            posture,
            catalog.postures.keys().map(String::as_str),
        )
    })?;
    let mut faults = Diagnostics::default();
    site::check_site(catalog, &mut faults);
    faults.extend(document.diagnostics.clone());
    require_sound(printer, &faults, &catalog.sources)?;
    ansible::variables(catalog, posture, compat(export), secret_visibility(export))
        .ok_or_else(|| DriverError::failed(format!("The posture `{posture}` could not be read.")))
}
