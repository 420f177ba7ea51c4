//! `homestak manifest status`: how nodes are doing, and whether a run can be resumed.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use homestak_core::plan::{NodeRecord, NodeStatus};
use homestak_engine::chronicle::{Chronicle, Status};
use homestak_engine::journal::{Ending, Journal, JournalError, RunHead};
use serde_json::{Value as Json, json};

use super::history::head_json;
use super::runs::{
    hints, is_outdated, is_resumable, is_unfinished, listed, newest, outdated, read, reidentify,
    word,
};
use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::connect::block_on;
use crate::error::CommandError;
use crate::operator::{journal, scopes_of};
use crate::session::Session;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// How one node is doing.
struct Line {
    status: &'static str,
    host: String,
    vmid: Option<u32>,
    address: Option<String>,
    error: Option<String>,
}

/// Shows how nodes are doing.
pub(super) fn run(which: &RunArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let session = Session::open(settings)?;
    let (site, journal) = (session.id()?, journal(settings)?);
    block_on(async {
        let runs = newest(listed(which, &journal, site).await?);
        let open: Vec<RunHead> = runs
            .iter()
            .filter(|run| is_unfinished(run))
            .cloned()
            .collect();
        let chosen = match (which.manifest(), open.as_slice()) {
            (Some(_), _) => runs,
            (None, [one]) => vec![one.clone()],
            (None, _) => {
                overview(&runs, printer);
                if runs.is_empty() && !printer.shape.json {
                    let hints = hints(which, &journal, site).await?;
                    hints.iter().for_each(|hint| printer.hint(hint));
                }
                return Ok(ExitCode::SUCCESS);
            }
        };
        if chosen.is_empty() {
            let manifest = which.manifest().unwrap_or_default();
            let none = CommandError::failed(format!("There is no run of `{manifest}`."))
                .hint("homestak manifest history lists runs");
            let hints = hints(which, &journal, site).await?;
            return Err(hints.into_iter().fold(none, CommandError::hint));
        }
        let mut bodies = Vec::new();
        for head in &chosen {
            bodies.push(one(head, &journal, printer).await?);
        }
        if printer.shape.json {
            printer.json("manifest.status", json!({ "runs": bodies }));
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// Lists the newest run of each manifest.
fn overview(runs: &[RunHead], printer: &Printer) {
    if printer.shape.json {
        let runs: Vec<Json> = runs.iter().map(head_json).collect();
        printer.json("manifest.status", json!({ "runs": runs }));
    } else if runs.is_empty() {
        printer.say("There is no run.");
    } else {
        let rows = runs.iter().map(|run| {
            let cells = [&run.manifest, &run.hosts.join(","), &run.verb, word(run)];
            cells.map(str::to_owned).to_vec()
        });
        let headings = ["manifest", "hosts", "verb", "ended"];
        printer.data(&table::render(&headings, rows.collect()));
    }
}

async fn one(
    head: &RunHead,
    journal: &Arc<dyn Journal>,
    printer: &Printer,
) -> Result<Json, CommandError> {
    let run = read(head, journal).await?;
    let mut chronicle = Chronicle::of_run(&run);
    // Held by someone who lives: it is being carried out.
    let holder = match journal.hold(&scopes_of(head)).await {
        Ok(_) => None,
        Err(JournalError::Held { holder, .. }) => Some(holder),
        Err(error) => return Err(error.into()),
    };
    if holder.is_none() {
        chronicle.died();
    }
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for scope in scopes_of(head) {
        for record in journal.records(&scope).await? {
            lines.insert(record.name.clone(), remembered(&record));
        }
    }
    for row in &chronicle.nodes {
        // What was not touched is as it is remembered.
        let untouched = row.phases.is_empty() && row.now.is_none();
        if untouched && lines.contains_key(&row.name) && row.status != Status::Interrupted {
            continue;
        }
        lines.insert(
            row.name.clone(),
            Line {
                status: row.status.word(),
                host: row.host.clone(),
                vmid: row.vmid,
                address: row.address.map(|ip| ip.to_string()),
                error: row.error.as_ref().map(|error| error.message.clone()),
            },
        );
    }
    let resumable = holder.is_none() && is_resumable(head);
    if !printer.shape.json {
        show(head, &lines, holder.as_deref(), resumable, printer);
    }
    let nodes = lines.iter().map(|(name, line)| {
        json!({
            "name": name,
            "status": line.status,
            "host": line.host,
            "vm_id": line.vmid,
            "ip": line.address,
            "error": line.error,
        })
    });
    let mut body = head_json(head);
    body["nodes"] = nodes.collect();
    body["held_by"] = json!(holder);
    body["resumable"] = resumable.into();
    Ok(body)
}

fn remembered(record: &NodeRecord) -> Line {
    let status = match record.status {
        NodeStatus::Ready => Status::Completed,
        NodeStatus::Made => Status::Pending,
        NodeStatus::Creating | NodeStatus::Destroying => Status::Interrupted,
        NodeStatus::Destroyed => Status::Destroyed,
    };
    Line {
        status: status.word(),
        host: record.host.clone(),
        vmid: record.guest.vmid,
        address: record.address.map(|ip| ip.to_string()),
        error: None,
    }
}

fn show(
    head: &RunHead,
    lines: &BTreeMap<String, Line>,
    holder: Option<&str>,
    resumable: bool,
    printer: &Printer,
) {
    let dash = || "-".to_owned();
    let rows = lines.iter().map(|(name, line)| {
        vec![
            name.clone(),
            line.status.to_owned(),
            line.host.clone(),
            line.vmid.map_or_else(dash, |id| id.to_string()),
            line.address.clone().unwrap_or_else(dash),
        ]
    });
    let headings = ["node", "status", "host", "vmid", "address"];
    printer.data(&table::render(&headings, rows.collect()));
    for (name, line) in lines {
        if let Some(error) = &line.error {
            printer.say(&format!("error: `{name}`: {error}"));
        }
    }
    let last = format!("Run {} ({} `{}`)", head.id, head.verb, head.manifest);
    let with = format!("-M {} -H {}", head.manifest, head.hosts.join(","));
    match (holder, head.ended) {
        (Some(holder), _) => printer.say(&format!("{last} is being carried out by {holder}.")),
        (None, _) if is_outdated(head) => {
            printer.say(&outdated(head));
            printer.hint(&reidentify(head));
        }
        (None, Some((_, Ending::Stuck))) => printer.say(&format!(
            "{last} is stuck; homestak manifest resume {with} --from NODE takes what was mended by hand as settled."
        )),
        (None, ended) if resumable => printer.say(&format!(
            "{last} {}; homestak manifest resume {with} goes on.",
            ended.map_or("was cut off", |(_, ending)| ending.word())
        )),
        (None, _) => printer.say(&format!("{last} ended {}.", word(head))),
    }
}
