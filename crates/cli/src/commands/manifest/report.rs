//! `homestak manifest report`: a report of a run, as Markdown or JSON.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use homestak_driver::journal;
use homestak_driver::runs::{
    Run, RunId, RunReport, Runs, is_outdated, outdated, outdated_hint, word,
};
use serde_json::{Value as Json, json};

use super::history::{head_json, moment};
use crate::args::RunArgs;
use crate::commands::{Outcome, write_file};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, result, with_kind};

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
        format!("{:#}\n", with_kind("manifest.report", report_json(&run)))
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

fn report_json(run: &Run) -> Json {
    let run_report = run_report(run);
    let mut body = head_json(&run.head);
    body["nodes"] = result::nodes_json(&run_report);
    body["images"] = result::images_json(&run_report);
    let rows = run_report.images.iter().chain(&run_report.nodes);
    let phases = rows.flat_map(|row| {
        row.phases.iter().map(|(kind, seconds)| {
            json!({ "subject": row.name, "phase": kind.word(), "duration": result::rounded(*seconds) })
        })
    });
    body["phases"] = phases.collect();
    body
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
