//! Renders the result of a run: a table, JSON, errors, and the next command.

use homestak_core::plan::StepKind;
use homestak_driver::runs::{ReportRow, RowStatus, RunOutcome, RunReport, StepError};
use owo_colors::OwoColorize as _;

use super::{Printer, table};

/// Renders the table of a run: a row for each node, a column for each phase.
pub(crate) fn render(run_report: &RunReport) -> String {
    // Images that existed already are left out.
    let is_shown = |row: &&ReportRow| row.changed || row.error.is_some();
    let images = run_report.images.iter().filter(is_shown);
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
            row.status.name().to_owned(),
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

/// Returns the table heading of a phase.
pub(crate) fn heading(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Ready => "boot",
        StepKind::Discard => "cleanup",
        StepKind::Reshape => "resize",
        StepKind::Grow => "disk",
        StepKind::Configure => "config",
        StepKind::Image
        | StepKind::Create
        | StepKind::Start
        | StepKind::Stop
        | StepKind::Destroy
        | StepKind::Reidentify => kind.name(),
    }
}

/// Prints all errors of a run, with log lines and hints.
pub(crate) fn print_errors(run_report: &RunReport, printer: &Printer) {
    for (row, error) in run_report.errors() {
        for line in lines(&row.name, error) {
            printer.message(&line);
        }
    }
}

fn lines(name: &str, error: &StepError) -> Vec<String> {
    let mut lines = vec![format!(
        "{} `{name}`: {}",
        "error:".red().bold(),
        error.message
    )];
    lines.extend(error.log.iter().map(|line| format!("  log: {line}")));
    if !error.hint.is_empty() {
        lines.push(format!("{} {}", "hint:".cyan().bold(), error.hint));
    }
    lines
}

/// Prints how a run ended, and the next command; rollback only if it would revert anything.
pub(crate) fn ending(
    ending: RunOutcome,
    run_report: &RunReport,
    names: (&str, &str),
    undoable: bool,
    printer: &Printer,
) {
    let (text, hint) = next_steps(ending, run_report, names, undoable);
    if !text.is_empty() {
        printer.message(&text);
    }
    if !hint.is_empty() {
        printer.message(&format!("{} {hint}", "hint:".cyan().bold()));
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
        true => format!("; homestak manifest rollback {with} reverts this run"),
        false => String::new(),
    };
    let (text, hint) = match ending {
        RunOutcome::Done => ("", String::new()),
        RunOutcome::Failed if is_partial(run_report) => (
            "Completed, except for what was refused.",
            format!("homestak manifest apply {with} retries that"),
        ),
        RunOutcome::Failed if run_report.errors().any(|(_, one)| one.needs_new_plan()) => (
            "Failed; what was created is kept.",
            format!("homestak manifest apply {with} creates a new plan and continues{undo}"),
        ),
        RunOutcome::Failed => (
            "Failed; what was created is kept.",
            format!("homestak manifest resume {with} continues this run{undo}"),
        ),
        RunOutcome::Stopped => (
            "Stopped before it was complete.",
            format!("homestak manifest resume {with} continues this run"),
        ),
        RunOutcome::RolledBack => return (undone(run_report), String::new()),
        RunOutcome::Stuck => (
            "Rollback failed: something could not be reverted, and manual intervention is needed.",
            format!(
                "repair it manually, then run homestak manifest resume {with} --mark-resolved NODE"
            ),
        ),
        RunOutcome::Superseded => ("Superseded by a later run.", String::new()),
    };
    (text.to_owned(), hint)
}

/// Returns how far a run was reverted.
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
        (true, true) => return "All changes of this run are reverted.".to_owned(),
        (false, true) => "Reverted.".to_owned(),
        (_, false) => format!("Reverted, except for what was marked as resolved: {settled}"),
    };
    if !kept.is_empty() {
        text += &format!("\nGuests that were not created by this run are kept: {kept}");
    }
    text
}

/// Returns whether a failed run cannot be resumed, and a new plan is needed.
pub(crate) fn needs_new_plan(run_report: &RunReport) -> bool {
    let needs = |(_, error): (_, &StepError)| error.needs_new_plan();
    is_partial(run_report) || run_report.errors().any(needs)
}

/// Returns whether the only errors are refused parts.
fn is_partial(run_report: &RunReport) -> bool {
    let mut errors = run_report.errors().peekable();
    errors.peek().is_some() && errors.all(|(_, one)| one.is_partial())
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
    use homestak_driver::events::{Event, EventKind, Subject};
    use homestak_driver::runs::{ErrorClass, NextAction, RunId};
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_run_with_refused_parts_is_reported_as_completed_except_for_them() {
        let mut run_report = RunReport::default();
        let fail = |run_report: &mut RunReport, node: &str, class: ErrorClass| {
            run_report.apply(&Event {
                at: Timestamp::UNIX_EPOCH,
                run: Some(RunId(1)),
                kind: EventKind::StepFailed {
                    subject: Subject::Node(node.to_owned()),
                    step: StepKind::Configure,
                    undo: false,
                    error: StepError {
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
        assert_eq!(text, "Completed, except for what was refused.");
        // The spec may have to be corrected, which takes a new plan.
        assert!(hint.contains("manifest apply -M m -H father"), "{hint}");
        fail(&mut run_report, "b", ErrorClass::Refused);
        let (text, _) = next_steps(RunOutcome::Failed, &run_report, names, true);
        assert_eq!(text, "Failed; what was created is kept.");
    }
}
