//! `homestak host show`: the configuration of a host, and what its API reports.

use std::process::ExitCode;

use homestak_api::v1::kind;
use homestak_core::doc::Value;
use homestak_core::doc::emit::emit;
use homestak_driver::Session;

use crate::commands::{Outcome, driver};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Shows a host.
pub(super) fn run(
    name: &str,
    offline: bool,
    session: Session,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (driver, _) = driver(session, settings, false, printer)?;
    let body = block_on(driver.hosts.of(name)?.show(name, offline))??;
    if printer.output.json {
        printer.json(&kind::HOST_SHOW, &body);
    } else {
        let body = serde_json::to_value(&body).unwrap_or_default();
        printer.data(&emit(&Value::from_json(&body)));
    }
    Ok(ExitCode::SUCCESS)
}
