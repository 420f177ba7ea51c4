//! What came of a run: a table, JSON, and what went wrong with the way on.
//!
//! In: a [`RunReport`]. Out: text and JSON.
//! Never: another source of facts than the run_report.

use homestak_core::plan::StepKind;
use homestak_driver::runs::{ReportRow, RowStatus, RunOutcome, RunReport, StepError};
use owo_colors::OwoColorize as _;
use serde_json::{Value as Json, json};

use super::{Printer, table};

/// Renders the table of a run: a row for each node, a column for each phase that was gone through.
pub(crate) fn render(run_report: &RunReport) -> String {
    // An image that was there already is nothing to tell.
    let told = |row: &&ReportRow| row.changed || row.error.is_some();
    let images = run_report.images.iter().filter(told);
    let rows: Vec<&ReportRow> = images.chain(&run_report.nodes).collect();
    let seen = |kind: &StepKind| {
        let mut phases = rows.iter().flat_map(|row| &row.phases);
        phases.any(|(phase, _)| phase == kind)
    };
    let kinds: Vec<StepKind> = StepKind::ALL.into_iter().filter(seen).collect();
    let mut headings = vec!["node", "vmid", "address", "status"];
    headings.extend(kinds.iter().map(|kind| heading(*kind)));
    let cells = |row: &&ReportRow| {
        let mut cells = vec![
            row.name.clone(),
            row.guest_id.map_or_else(dash, |id| id.to_string()),
            row.address.map_or_else(dash, |ip| ip.to_string()),
            row.status.word().to_owned(),
        ];
        cells.extend(kinds.iter().map(|kind| {
            let of_kind = row.phases.iter().filter(|(phase, _)| phase == kind);
            let seconds: Vec<f64> = of_kind.map(|(_, seconds)| *seconds).collect();
            if seconds.is_empty() {
                return dash();
            }
            format!("{:.1} s", seconds.iter().sum::<f64>())
        }));
        cells
    };
    table::render(&headings, rows.iter().map(cells).collect())
}

fn dash() -> String {
    "-".to_owned()
}

/// Names a phase as a person would.
pub(crate) fn heading(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Ready => "boot",
        StepKind::Discard => "tidy",
        StepKind::Configure => "config",
        StepKind::Image
        | StepKind::Create
        | StepKind::Start
        | StepKind::Reshape
        | StepKind::Grow
        | StepKind::Stop
        | StepKind::Destroy
        | StepKind::Reidentify => kind.word(),
    }
}

/// Turns nodes into JSON.
pub(crate) fn nodes_json(run_report: &RunReport) -> Json {
    let node = |row: &ReportRow| {
        let mut json = json!({ "name": row.name, "status": row.status.word() });
        if let Some(id) = row.guest_id {
            json["vm_id"] = json!(id);
        }
        if let Some(address) = row.address {
            json["ip"] = address.to_string().into();
        }
        if !row.phases.is_empty() {
            json["duration"] = rounded(row.seconds());
        }
        if let Some(error) = &row.error {
            json["error"] = error.message.as_str().into();
        }
        json
    };
    run_report.nodes.iter().map(node).collect::<Vec<_>>().into()
}

/// Turns images that were fetched, or could not be, into JSON.
pub(crate) fn images_json(run_report: &RunReport) -> Json {
    let told = run_report
        .images
        .iter()
        .filter(|row| row.changed || row.error.is_some());
    let image = |row: &ReportRow| {
        let mut json = json!({ "name": row.name, "status": row.status.word() });
        if let Some(error) = &row.error {
            json["error"] = error.message.as_str().into();
        }
        json
    };
    told.map(image).collect::<Vec<_>>().into()
}

/// Turns what came of a run into JSON.
pub(crate) fn json(verb: &str, run_report: &RunReport, success: bool) -> Json {
    let (ending, seconds) = match run_report.ended {
        Some((ending, seconds)) => (Json::from(ending.word()), seconds),
        None => (Json::Null, 0.0),
    };
    json!({
        "verb": verb,
        "success": success,
        "duration_seconds": rounded(seconds),
        "nodes": nodes_json(run_report),
        "images": images_json(run_report),
        "run": run_report.run.map(|run| run.0),
        "ending": ending,
    })
}

/// Rounds seconds to what anyone can use.
pub(crate) fn rounded(seconds: f64) -> Json {
    ((seconds * 1000.0).round() / 1000.0).into()
}

/// Says everything that went wrong: what, where, why, and what can be done.
pub(crate) fn troubles(run_report: &RunReport, printer: &Printer) {
    for (row, trouble) in run_report.errors() {
        for line in lines(&row.name, trouble) {
            printer.say(&line);
        }
    }
}

fn lines(name: &str, trouble: &StepError) -> Vec<String> {
    let mut lines = vec![format!(
        "{} `{name}`: {}",
        "error:".red().bold(),
        trouble.message
    )];
    lines.extend(trouble.log.iter().map(|line| format!("  log: {line}")));
    if !trouble.hint.is_empty() {
        lines.push(format!("{} {}", "hint:".cyan().bold(), trouble.hint));
    }
    lines
}

/// Says how a run ended, and the way on: rolling it back only when that would undo anything.
pub(crate) fn ending(
    ending: RunOutcome,
    run_report: &RunReport,
    names: (&str, &str),
    undoable: bool,
    printer: &Printer,
) {
    let (text, hint) = next_steps(ending, run_report, names, undoable);
    if !text.is_empty() {
        printer.say(&text);
    }
    if !hint.is_empty() {
        printer.say(&format!("{} {hint}", "hint:".cyan().bold()));
    }
}

fn next_steps(
    ending: RunOutcome,
    run_report: &RunReport,
    (manifest, host): (&str, &str),
    undoable: bool,
) -> (String, String) {
    let with = format!("-M {manifest} -H {host}");
    let undo = match undoable {
        true => format!("; homestak manifest rollback {with} undoes this run"),
        false => String::new(),
    };
    let (text, hint) = match ending {
        RunOutcome::Done => ("", String::new()),
        RunOutcome::Failed if is_partial(run_report) => (
            "Done, except for what was refused.",
            format!("homestak manifest apply {with} tries that again"),
        ),
        RunOutcome::Failed if run_report.errors().any(|(_, one)| one.needs_new_plan()) => (
            "Failed; what is there stays.",
            format!(
                "homestak manifest apply {with} makes a new plan and continues from what is there{undo}"
            ),
        ),
        RunOutcome::Failed => (
            "Failed; what is there stays.",
            format!("homestak manifest resume {with} goes on from here{undo}"),
        ),
        RunOutcome::Stopped => (
            "Stopped half-way; nothing new was begun.",
            format!("homestak manifest resume {with} goes on from here"),
        ),
        RunOutcome::RolledBack => return (undone(run_report), String::new()),
        RunOutcome::Stuck => (
            "Stuck: something could not be undone, and a person is needed.",
            format!(
                "mend it by hand, then homestak manifest resume {with} --from NODE takes it as settled"
            ),
        ),
        RunOutcome::Superseded => ("A later run took over.", String::new()),
    };
    (text.to_owned(), hint)
}

/// Says how far a run was undone.
fn undone(run_report: &RunReport) -> String {
    let named = |any: &[RowStatus]| {
        let rows = run_report.nodes.iter();
        let rows = rows.filter(|row| any.contains(&row.status));
        let names: Vec<String> = rows.map(|row| format!("`{}`", row.name)).collect();
        names.join(", ")
    };
    let (kept, settled) = (
        named(&[RowStatus::Kept]),
        named(&[RowStatus::Stuck, RowStatus::Settled]),
    );
    let mut text = match (kept.is_empty(), settled.is_empty()) {
        (true, true) => return "Everything this run did is undone.".to_owned(),
        (false, true) => "Undone.".to_owned(),
        (_, false) => format!("Undone, except for what was taken as settled: {settled}"),
    };
    if !kept.is_empty() {
        text += &format!("\nGuests that do not carry the mark of this run stay: {kept}");
    }
    text
}

/// Tells whether nothing went wrong but that parts were refused.
fn is_partial(run_report: &RunReport) -> bool {
    let mut troubles = run_report.errors().peekable();
    troubles.peek().is_some() && troubles.all(|(_, one)| one.is_partial())
}

/// Returns the exit code of a run that ended.
pub(crate) fn exit_code(ending: RunOutcome) -> u8 {
    match ending {
        RunOutcome::Done => 0,
        RunOutcome::Failed | RunOutcome::RolledBack | RunOutcome::Superseded => 1,
        RunOutcome::Stopped => 4,
        RunOutcome::Stuck => 5,
    }
}

#[cfg(test)]
mod tests {
    use homestak_engine::events::{Event, EventKind, Subject};
    use homestak_engine::journal::RunId;
    use homestak_engine::ports::{ErrorClass, NextAction};
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_run_in_which_parts_were_refused_is_said_to_be_done_but_for_them() {
        let mut run_report = RunReport::default();
        let fail = |run_report: &mut RunReport, node: &str, class: ErrorClass| {
            run_report.apply(&Event {
                at: Timestamp::UNIX_EPOCH,
                run: RunId(1),
                kind: EventKind::StepFailed {
                    subject: Subject::Node(node.to_owned()),
                    step: StepKind::Configure,
                    undo: false,
                    trouble: StepError {
                        class,
                        next: NextAction::NewPlan,
                        message: "no".to_owned(),
                        log: Vec::new(),
                        hint: "correct it on the node or in the spec, then apply again".to_owned(),
                    },
                    seconds: 1.0,
                },
            });
        };
        fail(&mut run_report, "a", ErrorClass::Partly);
        let names = ("m", "father");
        let (text, hint) = next_steps(RunOutcome::Failed, &run_report, names, true);
        assert_eq!(text, "Done, except for what was refused.");
        // The spec may have to be corrected, which takes a new plan.
        assert!(hint.contains("manifest apply -M m -H father"), "{hint}");
        fail(&mut run_report, "b", ErrorClass::Refused);
        let (text, _) = next_steps(RunOutcome::Failed, &run_report, names, true);
        assert_eq!(text, "Failed; what is there stays.");
    }
}
