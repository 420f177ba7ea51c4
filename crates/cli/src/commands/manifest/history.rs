//! `homestak manifest history`: runs, newest first.

use std::process::ExitCode;

use homestak_driver::journal;
use homestak_driver::runs::{RunId, RunSummary, Runs, is_resumable, word};
use serde_json::{Value as Json, json};

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
        which: &which.which(),
        journal: &journal,
        site: session.id()?,
    };
    let (runs, more) = block_on(listed.page(limit, before.map(RunId)))??;
    if printer.shape.json {
        let runs: Vec<Json> = runs.iter().map(head_json).collect();
        printer.json("manifest.history", json!({ "runs": runs, "more": more }));
        return Ok(ExitCode::SUCCESS);
    }
    if runs.is_empty() {
        printer.say("There are no runs.");
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
            moment(run.started),
            seconds(run).map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s")),
            word(run).to_owned(),
        ]
    });
    printer.data(&table::render(
        &[
            "run", "manifest", "hosts", "command", "started", "duration", "result",
        ],
        rows.collect(),
    ));
    if let Some(last) = runs.last().filter(|_| more) {
        printer.say(&format!("Use --before {} to list older runs.", last.id));
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a time without fractions of a second.
pub(super) fn moment(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(super) fn seconds(run: &RunSummary) -> Option<f64> {
    let (at, _) = run.ended?;
    Some(at.duration_since(run.started).as_secs_f64())
}

/// Turns a run into JSON.
pub(super) fn head_json(run: &RunSummary) -> Json {
    json!({
        "run": run.id.0,
        "site": run.site,
        "manifest": run.manifest,
        "hosts": run.hosts,
        "verb": run.verb,
        "started_at": run.started,
        "finished_at": run.ended.map(|(at, _)| at),
        "duration": seconds(run),
        "ending": run.ended.map(|(_, ending)| ending.word()),
        "resumable": is_resumable(run),
    })
}
