//! `homestak state`: restores the state directory from the hosts.

use std::process::ExitCode;

use homestak_api::v1::kind;
use homestak_driver::error::count;
use homestak_driver::rebuild::{RebuildReport, locked_out, rebuild};
use homestak_driver::runs::RunSelector;
use homestak_driver::{Driver, wire};

use super::{Outcome, driver};
use crate::args::{RebuildArgs, StateCommand};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Exit code when some guests were not recorded.
const REFUSED: u8 = 3;

/// Runs a state command.
pub(super) fn run(command: &StateCommand, settings: &Settings, printer: &Printer) -> Outcome {
    let StateCommand::Rebuild(args) = command;
    let (driver, _) = driver(settings.session()?, settings, false, printer)?;
    let which = RunSelector {
        manifest: args.manifest.clone(),
        host: args.host.clone(),
    };
    let rebuilt = rebuild(&driver, &settings.driver, &which, args.dry_run);
    show(&block_on(rebuilt)??, &driver, args, printer)
}

fn show(
    summary: &RebuildReport,
    driver: &Driver,
    args: &RebuildArgs,
    printer: &Printer,
) -> Outcome {
    let locked = match args.dry_run {
        true => Vec::new(),
        false => locked_out(summary, driver)?,
    };
    let code = match (summary.lost.is_empty(), summary.refused.is_empty()) {
        (false, _) => 1,
        (true, false) => REFUSED,
        (true, true) => 0,
    };
    let before = summary.known.len() - summary.restored.len();
    if printer.output.json {
        let rebuilt = wire::state::rebuild(summary, &locked, code == 0, args.dry_run);
        printer.json(&kind::STATE_REBUILD, &rebuilt);
        return Ok(ExitCode::from(code));
    }
    let rows = summary.restored.iter().map(|(manifest, record)| {
        let address = record.address.map(|address| address.to_string());
        vec![
            record.name.clone(),
            manifest.clone(),
            record.guest.to_string(),
            address.unwrap_or_default(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        printer.data(&table::render(
            &["node", "manifest", "guest", "address"],
            rows,
        ));
    }
    for (manifest, refusal) in &summary.refused {
        let node = refusal.node.as_ref();
        let about = match (manifest.as_str(), node) {
            ("", _) => String::new(),
            (manifest, Some(node)) => format!("{manifest}/{node}: "),
            (manifest, None) => format!("{manifest}: "),
        };
        printer.message(&format!("refused: {about}{}", refusal.reason.text));
        printer.hint(&refusal.hint);
    }
    for notice in summary.other_sites() {
        printer.message(&format!("notice: {notice}"));
    }
    for (host, why) in &summary.lost {
        printer.message(&format!("error: {host} could not be queried: {why}"));
    }
    if !locked.is_empty() {
        printer.message(
            "This driver cannot log in to these nodes yet. On the console of each, as root:",
        );
    }
    for (record, lines) in &locked {
        printer.message(&format!("  {} on {}:", record.name, record.host));
        for line in lines {
            printer.message(&format!("    {line}"));
        }
    }
    let verb = if args.dry_run {
        "would be recorded"
    } else {
        "recorded"
    };
    let known = count(before, "node");
    printer.message(&format!(
        "{} {verb}; {known} already recorded.",
        count(summary.restored.len(), "node")
    ));
    Ok(ExitCode::from(code))
}
