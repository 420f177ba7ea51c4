//! `homestak manifest status`: the state of nodes, and whether a run can be resumed.

use std::process::ExitCode;

use homestak_api::v1::report::ReportState;
use homestak_api::v1::{self, ManifestStatus, NodePower, StatusEntry, kind};
use homestak_core::foreign::ForeignText;
use homestak_driver::runs::{
    ConfigState, RunOutcome, RunSummary, again, flags, is_outdated, outcome_name, outdated,
    outdated_hint, replaced,
};
use homestak_driver::server::NodeAccount;
use homestak_driver::status::{NodeState, RunStatus, StatusQuery, StatusScope};
use homestak_driver::{DriverError, wire};
use jiff::Timestamp;

use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, result, table};

/// Shows the state of nodes. Hosts and nodes are queried, unless `offline`.
pub(super) fn run(
    which: &RunArgs,
    offline: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (driver, _) = crate::commands::driver(settings.session()?, settings, false, printer)?;
    let which = &which.selector();
    block_on(async {
        let status = StatusQuery::open(&driver, which).await?;
        let chosen = match &status.chosen {
            StatusScope::Runs(runs) => runs,
            StatusScope::Overview(runs) => {
                overview(runs, printer);
                if runs.is_empty() && !printer.output.json {
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
        if printer.output.json {
            printer.json(&kind::MANIFEST_STATUS, &ManifestStatus { runs });
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// Lists the newest run of each manifest.
fn overview(runs: &[RunSummary], printer: &Printer) {
    if printer.output.json {
        let runs = runs.iter().map(wire::run::summary);
        let runs = runs.map(StatusEntry::Summary).collect();
        printer.json(&kind::MANIFEST_STATUS, &ManifestStatus { runs });
    } else if runs.is_empty() {
        printer.message("There are no runs.");
    } else {
        let rows = runs.iter().map(|run| {
            let cells = [
                &run.manifest,
                &run.hosts.join(","),
                &run.verb,
                outcome_name(run),
            ];
            cells.map(str::to_owned).to_vec()
        });
        let headings = ["manifest", "hosts", "command", "result"];
        printer.data(&table::render(&headings, rows.collect()));
    }
}

fn one(head: &RunSummary, state: &RunStatus, offline: bool, printer: &Printer) -> v1::RunStatus {
    if let Some(why) = &state.unasked {
        printer.message(&format!("unknown: {why}"));
    }
    for row in &state.report.images {
        if let Some(error) = &row.error {
            printer.message(&format!("error: `{}`: {}", row.name, error.message));
        }
    }
    if !printer.output.json {
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
    let Some(live) = &node.live else {
        return "unknown";
    };
    match live.differs {
        Some(true) => "differs",
        Some(false) => "none",
        None if live.config == Some(ConfigState::Simulated) && live.power == NodePower::Running => {
            "simulated"
        }
        None => "unknown",
    }
}

/// Returns what a node last reported: its state, and what is wrong with that.
fn reported(account: &NodeAccount) -> String {
    let state = account.state.map_or("nothing", ReportState::name);
    let mut parts = vec![state.to_owned()];
    if account.is_behind() == Some(true) {
        parts.push("older spec".to_owned());
    }
    if let Some(drift) = account.drift.filter(|drift| *drift > 0) {
        parts.push(format!("{drift} not corrected"));
    }
    if account.silent {
        parts.push("silent for 3 intervals".to_owned());
    }
    parts.join(", ")
}

fn show(head: &RunSummary, state: &RunStatus, offline: bool, printer: &Printer) {
    let dash = || "-".to_owned();
    let mut headings = vec!["node", "status", "host", "vmid", "address", "last contact"];
    if !offline {
        headings.extend(["power", "drift"]);
    }
    let has_reports = state.nodes.values().any(|node| node.account.is_some());
    if has_reports {
        headings.push("reported");
    }
    let rows = state.nodes.iter().map(|(name, node)| {
        let contact = |at: Timestamp| format!("{at:.0}");
        let mut cells = vec![
            name.clone(),
            node.status.name().to_owned(),
            node.host.clone(),
            node.guest_id.map_or_else(dash, |id| id.to_string()),
            node.address.clone().unwrap_or_else(dash),
            node.contact.map_or_else(dash, contact),
        ];
        if !offline {
            cells.extend([power(node), drift(node)].map(str::to_owned));
        }
        if has_reports {
            cells.push(node.account.as_ref().map_or_else(dash, reported));
        }
        cells
    });
    printer.data(&table::render(&headings, rows.collect()));
    for (name, node) in &state.nodes {
        if let Some(error) = &node.error {
            printer.message(&format!("error: `{name}`: {error}"));
        }
        let account = node.account.as_ref();
        if let Some(error) = account.and_then(|account| account.error.as_ref()) {
            let error = ForeignText::line(error.lines().next().unwrap_or_default());
            printer.message(&format!("`{name}` reported: {error}"));
        }
    }
    let last = format!("Run {} ({} `{}`)", head.id, head.verb, head.manifest);
    let with = flags(head);
    match (&state.holder, head.ended) {
        (Some(holder), _) => printer.message(&format!("{last} is being executed by {holder}.")),
        (None, _) if !state.current => {
            printer.message(&format!("{last}: {}.", outcome_name(head)));
            printer.message(&format!("notice: {}", replaced(head)));
        }
        (None, _) if is_outdated(head) => {
            printer.message(&outdated(head));
            printer.hint(&outdated_hint(head));
        }
        (None, Some((_, RunOutcome::Stuck))) => printer.message(&format!(
            "{last} could not be rolled back; repair the node manually, then run homestak manifest resume {with} --mark-resolved NODE"
        )),
        (None, ended) if state.resumable => {
            let how = ended.map_or("was interrupted", |(_, ending)| ending.name());
            let again = again(head);
            if result::needs_new_plan(&state.report) {
                printer.message(&format!(
                    "{last} {how}; {again} creates a new plan and continues."
                ));
                return;
            }
            printer.message(&format!(
                "{last} {how}; homestak manifest resume {with} continues it."
            ));
            // What is destroyed is what the records show.
            if head.verb != "destroy" {
                printer.hint(&format!(
                    "if the manifest, a spec or an image was changed: {again}"
                ));
            }
        }
        (None, _) => printer.message(&format!("{last}: {}.", outcome_name(head))),
    }
}
