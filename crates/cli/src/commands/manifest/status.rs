//! `homestak manifest status`: the state of nodes, and whether a run can be resumed.

use std::process::ExitCode;

use homestak_api::v1::{self, ManifestStatus, NodePower, StatusEntry, kind};
use homestak_driver::runs::{
    RunOutcome, RunSummary, flags, is_outdated, outdated, outdated_hint, replaced, word,
};
use homestak_driver::status::{NodeState, RunStatus, StatusQuery, StatusScope};
use homestak_driver::{DriverError, wire};
use jiff::Timestamp;

use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Shows the state of nodes. Hosts and nodes are queried, unless `offline`.
pub(super) fn run(
    which: &RunArgs,
    offline: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (driver, _) = crate::commands::driver(settings.session()?, settings, false, printer)?;
    let which = &which.which();
    block_on(async {
        let status = StatusQuery::open(&driver, which).await?;
        let chosen = match &status.chosen {
            StatusScope::Runs(runs) => runs,
            StatusScope::Overview(runs) => {
                overview(runs, printer);
                if runs.is_empty() && !printer.shape.json {
                    let hints = status.runs.hints().await?;
                    hints.iter().for_each(|hint| printer.hint(hint));
                }
                return Ok(ExitCode::SUCCESS);
            }
        };
        if chosen.is_empty() {
            let manifest = which.manifest.as_deref().unwrap_or_default();
            let none = DriverError::failed(format!("There is no run of `{manifest}`."))
                .hint("homestak manifest history lists runs");
            let hints = status.runs.hints().await?;
            return Err(hints.into_iter().fold(none, DriverError::hint));
        }
        let mut runs = Vec::new();
        for head in chosen {
            let state = status.of_run(head, offline).await?;
            runs.push(StatusEntry::Detail(one(head, &state, offline, printer)));
        }
        if printer.shape.json {
            printer.json(&kind::MANIFEST_STATUS, &ManifestStatus { runs });
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// Lists the newest run of each manifest.
fn overview(runs: &[RunSummary], printer: &Printer) {
    if printer.shape.json {
        let runs = runs.iter().map(wire::run::summary);
        let runs = runs.map(StatusEntry::Summary).collect();
        printer.json(&kind::MANIFEST_STATUS, &ManifestStatus { runs });
    } else if runs.is_empty() {
        printer.say("There are no runs.");
    } else {
        let rows = runs.iter().map(|run| {
            let cells = [&run.manifest, &run.hosts.join(","), &run.verb, word(run)];
            cells.map(str::to_owned).to_vec()
        });
        let headings = ["manifest", "hosts", "command", "result"];
        printer.data(&table::render(&headings, rows.collect()));
    }
}

fn one(head: &RunSummary, state: &RunStatus, offline: bool, printer: &Printer) -> v1::RunStatus {
    if let Some(why) = &state.unasked {
        printer.say(&format!("unknown: {why}"));
    }
    for row in &state.report.images {
        if let Some(error) = &row.error {
            printer.say(&format!("error: `{}`: {}", row.name, error.message));
        }
    }
    if !printer.shape.json {
        show(head, state, offline, printer);
    }
    wire::status::run(head, state, offline)
}

/// Returns the power state of a node.
fn power(node: &NodeState) -> &'static str {
    match node.live.as_ref().map(|live| live.power) {
        Some(NodePower::Running) => "running",
        Some(NodePower::Stopped) => "stopped",
        Some(NodePower::Absent) => "absent",
        Some(NodePower::Unknown) | None => "unknown",
    }
}

/// Returns whether a node has drifted.
fn drift(node: &NodeState) -> &'static str {
    match node.live.as_ref().and_then(|live| live.differs) {
        Some(true) => "differs",
        Some(false) => "none",
        None => "unknown",
    }
}

fn show(head: &RunSummary, state: &RunStatus, offline: bool, printer: &Printer) {
    let dash = || "-".to_owned();
    let mut headings = vec!["node", "status", "host", "vmid", "address", "last contact"];
    if !offline {
        headings.extend(["power", "drift"]);
    }
    let rows = state.nodes.iter().map(|(name, node)| {
        let contact = |at: Timestamp| format!("{at:.0}");
        let mut cells = vec![
            name.clone(),
            node.status.word().to_owned(),
            node.host.clone(),
            node.guest_id.map_or_else(dash, |id| id.to_string()),
            node.address.clone().unwrap_or_else(dash),
            node.contact.map_or_else(dash, contact),
        ];
        if !offline {
            cells.extend([power(node), drift(node)].map(str::to_owned));
        }
        cells
    });
    printer.data(&table::render(&headings, rows.collect()));
    for (name, node) in &state.nodes {
        if let Some(error) = &node.error {
            printer.say(&format!("error: `{name}`: {error}"));
        }
    }
    let last = format!("Run {} ({} `{}`)", head.id, head.verb, head.manifest);
    let with = flags(head);
    match (&state.holder, head.ended) {
        (Some(holder), _) => printer.say(&format!("{last} is being executed by {holder}.")),
        (None, _) if !state.current => {
            printer.say(&format!("{last}: {}.", word(head)));
            printer.say(&format!("notice: {}", replaced(head)));
        }
        (None, _) if is_outdated(head) => {
            printer.say(&outdated(head));
            printer.hint(&outdated_hint(head));
        }
        (None, Some((_, RunOutcome::Stuck))) => printer.say(&format!(
            "{last} could not be rolled back; repair the node manually, then run homestak manifest resume {with} --mark-resolved NODE"
        )),
        (None, ended) if state.resumable => printer.say(&format!(
            "{last} {}; homestak manifest resume {with} continues it.",
            ended.map_or("was interrupted", |(_, ending)| ending.word())
        )),
        (None, _) => printer.say(&format!("{last}: {}.", word(head))),
    }
}
