//! `homestak host role`: prints the commands that create a minimal role and a token.

use std::process::ExitCode;

use homestak_api::v1::{HostRole, kind};
use homestak_driver::hosts::pve::document;
use homestak_driver::preflight::{Abilities, grants, is_verified, render};
use homestak_driver::{DriverError, Session};

use crate::commands::Outcome;
use crate::ui::Printer;

/// Owner and name of the token.
pub(super) struct TokenOwner<'a> {
    /// The user.
    pub(super) user: &'a str,
    /// The token's name.
    pub(super) token: &'a str,
}

/// Prints the commands.
pub(super) fn run(
    name: Option<&str>,
    version: u32,
    owner: &TokenOwner<'_>,
    session: &Session,
    printer: &Printer,
) -> Outcome {
    let node = name.map(|name| document(name, session)).transpose()?;
    let storage = node
        .and_then(|node| node.datastore.as_ref())
        .map(ToString::to_string);
    // Images and first-boot data are on the storage that every Proxmox VE has.
    let images = vec!["local".to_owned()];
    let storages = storage.map_or_else(|| images.clone(), |storage| vec![storage]);
    let host = node
        .and_then(|node| node.node.as_ref())
        .map(ToString::to_string)
        .or(name.map(str::to_owned));
    let abilities = Abilities {
        vms: true,
        containers: true,
        downloads: host.into_iter().collect(),
        storages,
        images,
    };
    let commands = render(&grants(version, &abilities), owner.user, owner.token);
    if commands.is_empty() {
        return Err(DriverError::failed("No privileges are needed."));
    }
    let verified = is_verified(version);
    if printer.output.json {
        let role = HostRole {
            pve_version: version,
            verified,
            commands,
        };
        printer.json(&kind::HOST_ROLE, &role);
        return Ok(ExitCode::SUCCESS);
    }
    printer.data(&(commands.join("\n") + "\n"));
    printer.message(
        "Run them on the host as root. `pveum user token add` prints the secret once: put",
    );
    printer.message(&format!(
        "  {}!{}=SECRET\nunder `api_tokens` in secrets.yaml.",
        owner.user, owner.token
    ));
    if !verified {
        printer.message(&format!("notice: the privileges for version {version} are from its documentation; only those for version 9 were tested on a real host."));
    }
    Ok(ExitCode::SUCCESS)
}
