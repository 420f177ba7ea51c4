//! `homestak host list`: lists the hosts of the site.

use std::process::ExitCode;

use homestak_api::v1::{HostList, kind};
use homestak_driver::{Session, wire};

use crate::commands::Outcome;
use crate::ui::{Printer, table};

/// Lists hosts with their addresses and how their certificates are verified.
pub(super) fn run(session: &Session, printer: &Printer) -> Outcome {
    let hosts = wire::host::list(&session.catalog);
    if printer.output.json {
        printer.json(&kind::HOST_LIST, &HostList { hosts });
    } else {
        let rows = hosts.into_iter();
        let rows = rows.map(|host| vec![host.name, host.kind, host.address, host.trust]);
        printer.data(&table::render(
            &["name", "kind", "address", "trust"],
            rows.collect(),
        ));
    }
    Ok(ExitCode::SUCCESS)
}
