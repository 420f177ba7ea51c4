//! `homestak server rotate-key` and `trust`: keys of the site, and certificates of its servers.

use std::path::Path;
use std::process::ExitCode;

use homestak_api::v1::{ServerRotateKey, ServerTrust, kind};
use homestak_driver::server::{self, TrustChange};

use super::super::agree;
use super::{Outcome, lease, start};
use crate::args::RotatedKey;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

pub(super) fn rotate(
    key: RotatedKey,
    (is_retired, yes): (bool, bool),
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let lease = lease(settings)?;
    let name = match key {
        RotatedKey::Site => "site",
        RotatedKey::Token => "token",
    };
    block_on(async {
        let mut behind = Vec::new();
        if is_retired {
            behind = match key {
                RotatedKey::Site => lease.nodes_behind().await?,
                RotatedKey::Token => lease.nodes_with_old_tokens().await?,
            };
            let nodes = behind.join(", ");
            let question = match (key, behind.is_empty()) {
                (_, true) => format!("Retire the old {name} key?"),
                (RotatedKey::Site, false) => format!(
                    "Retire the old site key? These nodes do not know the new one, and must enrol \
                     again afterwards: {nodes}."
                ),
                (RotatedKey::Token, false) => format!(
                    "Retire the old token key? These nodes have not enrolled, and their tokens \
                     become invalid: {nodes}."
                ),
            };
            agree(yes, &question, printer).await?;
        }
        let rotated = match key {
            RotatedKey::Site => server::rotate_site_key(&lease, is_retired).await?,
            RotatedKey::Token => server::rotate_token_key(&lease, is_retired).await?,
        };
        if !is_retired && key == RotatedKey::Site {
            behind = super::lease(settings)?.nodes_behind().await?;
        }
        let result = ServerRotateKey {
            key: name.to_owned(),
            current: rotated.current,
            next: rotated.next,
            retired: rotated.retired,
            signed: rotated.n_signed,
            behind,
        };
        match printer.output.json {
            true => printer.json(&kind::SERVER_ROTATE_KEY, &result),
            false => print_rotation(&result, printer),
        }
        Ok(ExitCode::SUCCESS)
    })?
}

fn print_rotation(result: &ServerRotateKey, printer: &Printer) {
    let name = &result.key;
    printer.data(&format!("{name} key: {}\n", result.current));
    if let Some(next) = &result.next {
        printer.data(&format!("next site key: {next}\n"));
    }
    for retired in &result.retired {
        printer.data(&format!("retired: {retired}\n"));
    }
    for node in &result.behind {
        let state = match result.retired.is_empty() {
            true => "has not fetched the new key yet",
            false => "must enrol again: homestak node enrol",
        };
        printer.data(&format!("`{node}` {state}\n"));
    }
    if result.retired.is_empty() {
        printer.message(&format!(
            "The old {name} key stays valid until: homestak server rotate-key {name} --retire"
        ));
    }
}

pub(super) fn trusted(settings: &Settings, printer: &Printer) -> Outcome {
    let lease = lease(settings)?;
    block_on(async {
        let change = lease.trusted().await?;
        Ok(print_trust(change, lease.nodes_behind().await?, printer))
    })?
}

pub(super) fn trust(file: &Path, settings: &Settings, printer: &Printer) -> Outcome {
    let text = start::read_certificate(file)?;
    block_on(async {
        let change = lease(settings)?.trust(&text).await?;
        // Another lease: this one has the certificates of before.
        let behind = lease(settings)?.nodes_behind().await?;
        Ok(print_trust(change, behind, printer))
    })?
}

pub(super) fn distrust(
    fingerprint: &str,
    yes: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    block_on(async {
        let question = "Remove the certificate? Nodes refuse a server that still uses it.";
        agree(yes, question, printer).await?;
        let change = lease(settings)?.distrust(fingerprint).await?;
        let behind = lease(settings)?.nodes_behind().await?;
        Ok(print_trust(change, behind, printer))
    })?
}

fn print_trust(change: TrustChange, behind: Vec<String>, printer: &Printer) -> ExitCode {
    let result = ServerTrust {
        authority: change.authority,
        certificates: change.certificates,
        signed: change.n_signed,
        behind,
    };
    if printer.output.json {
        printer.json(&kind::SERVER_TRUST, &result);
        return ExitCode::SUCCESS;
    }
    printer.data(&format!("{}  authority of the site\n", result.authority));
    for own in &result.certificates {
        printer.data(&format!("{own}  your own\n"));
    }
    for node in &result.behind {
        printer.data(&format!("`{node}` has not fetched this list yet\n"));
    }
    ExitCode::SUCCESS
}
