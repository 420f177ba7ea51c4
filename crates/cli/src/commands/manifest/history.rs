//! `homestak manifest history`: runs, newest first.

use std::process::ExitCode;

use homestak_api::v1::{RunHistory, kind};
use homestak_driver::runs::{RunId, RunSummary, Runs, outcome_name};
use homestak_driver::{journal, wire};

use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Lists runs: the newest ones, or those before a given one.
pub(super) fn run(
    which: &RunArgs,
    limit: usize,
    before: Option<i64>,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (session, journal) = (settings.session()?, journal(&settings.driver)?);
    let listed = Runs {
        which: &which.selector(),
        journal: &journal,
        site: session.id()?,
    };
    let (runs, more) = block_on(listed.page(limit, before.map(RunId)))??;
    if printer.output.json {
        let runs = runs.iter().map(wire::run::summary).collect();
        printer.json(&kind::MANIFEST_HISTORY, &RunHistory { runs, more });
        return Ok(ExitCode::SUCCESS);
    }
    if runs.is_empty() {
        printer.message("There are no runs.");
        for hint in block_on(listed.hints())?? {
            printer.hint(&hint);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let rows = runs.iter().map(|run| {
        vec![
            run.id.to_string(),
            run.manifest.clone(),
            run.hosts.join(","),
            run.verb.clone(),
            format_time(run.started),
            seconds(run).map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s")),
            outcome_name(run).to_owned(),
        ]
    });
    printer.data(&table::render(
        &[
            "run", "manifest", "hosts", "command", "started", "duration", "result",
        ],
        rows.collect(),
    ));
    if let Some(last) = runs.last().filter(|_| more) {
        printer.message(&format!("Use --before {} to list older runs.", last.id));
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a time without fractions of a second.
pub(super) fn format_time(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn seconds(run: &RunSummary) -> Option<f64> {
    let (at, _) = run.ended?;
    Some(at.duration_since(run.started).as_secs_f64())
}
