//! `homestak host trust`: shows the fingerprint of a host's certificate, and records it.

use std::process::ExitCode;

use homestak_api::probe::fingerprint;
use homestak_api::v1::{HostTrust, kind};
use homestak_core::doc::edit::set_text;
use homestak_core::error::chain;
use homestak_driver::hosts::pve::{document, host_and_port};
use homestak_driver::{DriverError, Session};

use crate::commands::{Outcome, write_file};
use crate::runtime::block_on;
use crate::ui::Printer;
use crate::ui::ask::{Answer, ask};

/// Shows the fingerprint, asks for confirmation, and records it.
pub(super) fn run(name: &str, yes: bool, session: &Session, printer: &Printer) -> Outcome {
    let node = document(name, session)?;
    let (host, port) = host_and_port(node).ok_or_else(|| {
        DriverError::failed(format!("`nodes/{name}.yaml` has no usable `api_endpoint`."))
    })?;
    let found = fingerprint(&host, port).map_err(|error| {
        DriverError::failed(format!("Cannot {}.", chain(&error)))
            .hint("check that the host is up and the address correct")
    })?;
    let found = found.to_string();
    let recorded = node.fingerprint.as_ref().map(|text| text.value.clone());
    let same = recorded
        .as_deref()
        .is_some_and(|recorded| recorded.eq_ignore_ascii_case(&found));
    if !printer.output.json {
        printer.data(&format!("{found}\n"));
    }
    if !same {
        if let Some(recorded) = &recorded {
            printer.message(&format!("The recorded fingerprint differs: {recorded}\nThe certificate was renewed, or the connection to {host} is intercepted."));
        }
        printer.message("Compare it with the one on the host: openssl x509 -noout -fingerprint -sha256 -in /etc/pve/local/pve-ssl.pem");
        let question = format!("Trust this certificate for `{name}`?");
        if !yes && block_on(ask(&question, printer))? != Answer::Yes {
            return Err(
                DriverError::refused("The fingerprint was not recorded.").hint(format!(
                    "homestak host trust {name} --yes records it without asking"
                )),
            );
        }
        record(name, &found, session)?;
    }
    if printer.output.json {
        let trust = HostTrust {
            success: true,
            host: name.to_owned(),
            fingerprint: found,
            changed: !same,
        };
        printer.json(&kind::HOST_TRUST, &trust);
    } else {
        printer.message(if same {
            "Already recorded."
        } else {
            "Recorded."
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the fingerprint into the host's document, keeping comments and layout.
fn record(name: &str, fingerprint: &str, session: &Session) -> Result<(), DriverError> {
    let file = session
        .catalog
        .nodes
        .get(name)
        .map(|document| document.file);
    let source = file.and_then(|file| session.catalog.sources.source(file));
    let source =
        source.ok_or_else(|| DriverError::failed(format!("There is no `nodes/{name}.yaml`.")))?;
    let text = set_text(&source.text, "fingerprint", fingerprint).ok_or_else(|| {
        DriverError::failed(format!("`{}` cannot be changed in place.", source.path))
    })?;
    write_file(source.path.as_ref(), &text)
}
