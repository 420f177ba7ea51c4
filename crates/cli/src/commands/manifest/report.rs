//! `homestak manifest report`: a report of a run, as Markdown or JSON.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use homestak_api::v1::kind;
use homestak_driver::runs::{
    Run, RunId, RunReport, Runs, is_outdated, outdated, outdated_hint, word,
};
use homestak_driver::{DriverError, journal, wire};

use super::history::moment;
use crate::args::RunArgs;
use crate::commands::{Outcome, write_file};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, result};

/// Reports a run.
pub(super) fn run(
    number: Option<i64>,
    which: &RunArgs,
    out: Option<&Path>,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (session, journal) = (settings.session()?, journal(&settings.driver)?);
    let runs = Runs {
        which: &which.which(),
        journal: &journal,
        site: session.id()?,
    };
    let run = block_on(runs.read(number.map(RunId)))??;
    let json = printer.shape.json
        || out.is_some_and(|out| out.extension().is_some_and(|end| end == "json"));
    let text = if json {
        let report = wire::run::report(&run, &run_report(&run));
        let text = serde_json::to_string_pretty(&kind::MANIFEST_REPORT.document(&report));
        let text = text.map_err(|error| DriverError::failed(format!("Cannot write: {error}.")))?;
        text + "\n"
    } else {
        markdown(&run)
    };
    match out {
        Some(out) => write_file(out, &text)?,
        None => printer.data(&text),
    }
    Ok(ExitCode::SUCCESS)
}

fn run_report(run: &Run) -> RunReport {
    let mut run_report = RunReport::of_run(run);
    run_report.mark_interrupted();
    run_report
}

fn markdown(run: &Run) -> String {
    let run_report = run_report(run);
    let head = &run.head;
    let mut text = format!("# Run {}: {} `{}`\n\n", head.id, head.verb, head.manifest);
    _ = writeln!(text, "- Hosts: {}", head.hosts.join(", "));
    _ = writeln!(text, "- Started: {}", moment(head.started));
    if let Some((at, _)) = head.ended {
        _ = writeln!(text, "- Finished: {}", moment(at));
    }
    _ = writeln!(text, "- Result: {}\n", word(head));
    if is_outdated(head) {
        _ = writeln!(text, "{}\n{}.\n", outdated(head), outdated_hint(head));
    }
    text += "```text\n";
    text += &result::render(&run_report);
    text += "```\n";
    for (row, trouble) in run_report.errors() {
        _ = writeln!(text, "\n## `{}`\n\n{}", row.name, trouble.message);
        for line in &trouble.log {
            _ = writeln!(text, "    {line}");
        }
        if !trouble.hint.is_empty() {
            _ = writeln!(text, "\nWhat to do: {}", trouble.hint);
        } else if trouble.needs_new_plan() {
            text += "\nWhat to do: create a new plan with homestak manifest apply\n";
        }
    }
    text
}
