//! `homestak manifest status`: how nodes are doing, and whether a run can be resumed.

use std::collections::BTreeMap;
use std::process::ExitCode;

use homestak_core::observed::GuestId;
use homestak_core::plan::{NodeRecord, NodeStatus};
use homestak_driver::live::{Live, ask, contacts};
use homestak_driver::runs::{
    Chronicle, Ending, Life, RunHead, Status, current, flags, hints, is_outdated, is_resumable,
    is_unfinished, listed, newest, outdated, read, replaced, way_on, word,
};
use homestak_driver::{Driver, DriverError, scopes_of};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::history::head_json;
use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, result, table};

/// How one node is doing.
struct Line {
    status: &'static str,
    host: String,
    vmid: Option<GuestId>,
    address: Option<String>,
    error: Option<String>,
    /// How it is now; `None` when nobody asked, or nobody answered.
    live: Option<Live>,
    /// When it was last reached.
    contact: Option<Timestamp>,
}

/// Shows how nodes are doing. Hosts are asked, unless `offline`.
pub(super) fn run(
    which: &RunArgs,
    offline: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (driver, _) = crate::commands::driver(settings.session()?, settings, false, printer)?;
    let which = &which.which();
    let site = driver.session.id()?;
    let journal = driver.journal().clone();
    block_on(async {
        let all = listed(which, &journal, site).await?;
        let runs = newest(all.clone());
        let current = current(which, &journal, site).await?;
        let open: Vec<RunHead> = current
            .iter()
            .filter(|run| is_unfinished(run))
            .cloned()
            .collect();
        let chosen = match (&which.manifest, open.as_slice()) {
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
            let manifest = which.manifest.as_deref().unwrap_or_default();
            let none = DriverError::failed(format!("There is no run of `{manifest}`."))
                .hint("homestak manifest history lists runs");
            let hints = hints(which, &journal, site).await?;
            return Err(hints.into_iter().fold(none, DriverError::hint));
        }
        let mut bodies = Vec::new();
        for head in &chosen {
            let same = |run: &&RunHead| run.manifest == head.manifest && run.hosts == head.hosts;
            let earlier: Vec<RunHead> = all.iter().filter(same).cloned().collect();
            let asked = match offline {
                true => None,
                false => Some(ask(head, &driver).await),
            };
            let current = current.contains(head);
            bodies.push(one((head, current, &earlier), &driver, asked, printer).await?);
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
    (head, current, earlier): (&RunHead, bool, &[RunHead]),
    driver: &Driver,
    asked: Option<Result<BTreeMap<String, Live>, DriverError>>,
    printer: &Printer,
) -> Result<Json, DriverError> {
    let journal = driver.journal();
    let run = read(head, journal).await?;
    let mut chronicle = Chronicle::of_run(&run);
    // Held by someone who lives: it is being carried out.
    let mut holder = None;
    for scope in scopes_of(head) {
        let held = journal.holding(&scope).await?;
        let held = held.filter(|held| held.life != Life::Dead);
        holder = holder.or(held.map(|held| held.to_string()));
    }
    if holder.is_none() {
        chronicle.died();
    }
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for scope in scopes_of(head) {
        for record in journal.records(&scope).await? {
            // A node that was moved has a record for each host.
            let row = chronicle.nodes.iter().find(|row| row.name == record.name);
            let is_here = row.is_some_and(|row| row.host == record.host);
            if is_here || !lines.contains_key(&record.name) {
                lines.insert(record.name.clone(), remembered(&record));
            }
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
                live: None,
                contact: None,
            },
        );
    }
    let offline = asked.is_none();
    let (live, unasked) = match asked {
        Some(Ok(live)) => (live, None),
        Some(Err(error)) => (BTreeMap::new(), Some(error.message)),
        None => (BTreeMap::new(), None),
    };
    let contacts = contacts(earlier, journal).await?;
    for (name, line) in &mut lines {
        line.live = live.get(name).cloned();
        if let Some(live) = &mut line.live
            && live.power == "absent"
            && matches!(line.status, "destroyed" | "absent")
        {
            // That it is gone is what was asked for.
            (live.differs, live.differences) = (Some(false), Vec::new());
        }
        let answered = line.live.as_ref().is_some_and(|live| live.answered);
        line.contact = match answered {
            true => Some(driver.operator.clock.now()),
            false => contacts.get(name).copied(),
        };
    }
    let resumable = holder.is_none() && current && is_resumable(head);
    if let Some(why) = &unasked {
        printer.say(&format!("unknown: {why}"));
    }
    for row in &chronicle.images {
        if let Some(error) = &row.error {
            printer.say(&format!("error: `{}`: {}", row.name, error.message));
        }
    }
    if !printer.shape.json {
        show(
            (head, current),
            (&lines, offline),
            holder.as_deref(),
            resumable,
            printer,
        );
    }
    let nodes = lines.iter().map(|(name, line)| {
        json!({
            "name": name,
            "status": line.status,
            "host": line.host,
            "vm_id": line.vmid,
            "ip": line.address,
            "error": line.error,
            "power": if offline { Json::Null } else { power(line).into() },
            "differs": line.live.as_ref().and_then(|live| live.differs),
            "differences": line.live.as_ref().map(|live| &live.differences),
            "last_contact": line.contact.map(|at| at.to_string()),
        })
    });
    let mut body = head_json(head);
    body["nodes"] = nodes.collect();
    body["images"] = result::images_json(&chronicle);
    body["held_by"] = json!(holder);
    body["resumable"] = resumable.into();
    body["offline"] = offline.into();
    body["unknown"] = json!(unasked);
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
        live: None,
        contact: None,
    }
}

/// Says whether a node runs, in a word.
fn power(line: &Line) -> &'static str {
    line.live.as_ref().map_or("unknown", |live| live.power)
}

/// Says whether a node differs from what it should be, in a word.
fn drift(line: &Line) -> &'static str {
    match line.live.as_ref().and_then(|live| live.differs) {
        Some(true) => "differs",
        Some(false) => "none",
        None => "unknown",
    }
}

fn show(
    (head, current): (&RunHead, bool),
    (lines, offline): (&BTreeMap<String, Line>, bool),
    holder: Option<&str>,
    resumable: bool,
    printer: &Printer,
) {
    let dash = || "-".to_owned();
    let mut headings = vec!["node", "status", "host", "vmid", "address", "last contact"];
    if !offline {
        headings.extend(["power", "drift"]);
    }
    let rows = lines.iter().map(|(name, line)| {
        let contact = |at: Timestamp| format!("{at:.0}");
        let mut cells = vec![
            name.clone(),
            line.status.to_owned(),
            line.host.clone(),
            line.vmid.map_or_else(dash, |id| id.to_string()),
            line.address.clone().unwrap_or_else(dash),
            line.contact.map_or_else(dash, contact),
        ];
        if !offline {
            cells.extend([power(line), drift(line)].map(str::to_owned));
        }
        cells
    });
    printer.data(&table::render(&headings, rows.collect()));
    for (name, line) in lines {
        if let Some(error) = &line.error {
            printer.say(&format!("error: `{name}`: {error}"));
        }
    }
    let last = format!("Run {} ({} `{}`)", head.id, head.verb, head.manifest);
    let with = flags(head);
    match (holder, head.ended) {
        (Some(holder), _) => printer.say(&format!("{last} is being carried out by {holder}.")),
        (None, _) if !current => {
            printer.say(&format!("{last} ended {}.", word(head)));
            printer.say(&format!("notice: {}", replaced(head)));
        }
        (None, _) if is_outdated(head) => {
            printer.say(&outdated(head));
            printer.hint(&way_on(head));
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
