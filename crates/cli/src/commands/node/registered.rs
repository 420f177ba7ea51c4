//! `homestak node`: nodes that enrolled at the server, as the server knows them.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::publication::DESTROYED;
use homestak_api::v1::kind;
use homestak_api::v1::node_status::{NodeDetail, NodeStatus, Nodes};
use homestak_api::v1::report::{ReceivedReport, ReportState};
use homestak_core::doc::manifest::Mode;
use homestak_driver::nodes::{self, RecordedNode};
use homestak_driver::server::{self, ServerClient, ServerLease};
use homestak_driver::{DriverError, journal, run_blocking};

use super::super::agree;
use super::Outcome;
use crate::args::{NodeArgs, NodeCommand};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, job, table};

/// How many of the last jobs of a node are shown.
const SHOWN_JOBS: usize = 10;

/// Runs a node command.
pub(in crate::commands) fn run(
    command: &NodeCommand,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    match command {
        NodeCommand::List => with_client(settings, async |_, client| list(&client, printer).await),
        NodeCommand::Show(node) => with_client(settings, async |_, client| {
            show(&client, node, settings, printer).await
        }),
        NodeCommand::Job(args) => super::job::run(args, settings, printer),
        NodeCommand::Update(args) => super::update::run(args, settings, printer),
        NodeCommand::Enrol { node, yes } => enrol(node, *yes, settings, printer),
        NodeCommand::Revoke { node, reason, yes } => {
            with_client(settings, async |lease, client| {
                let found = find(&client, node, settings).await?;
                let question = format!("Revoke the certificate of `{}`?", found.name);
                agree(*yes, &question, printer).await?;
                let revoked = lease.revoke(&client, &found.uuid, reason).await?;
                if printer.output.json {
                    printer.json(&kind::NODE_REVOKE, &revoked);
                } else {
                    printer.message(&format!("`{}` is revoked.", revoked.name));
                }
                Ok(ExitCode::SUCCESS)
            })
        }
    }
}

/// Runs work with a server of the site.
fn with_client(
    settings: &Settings,
    work: impl AsyncFnOnce(&ServerLease, ServerClient) -> Outcome,
) -> Outcome {
    let lease = ServerLease::for_records(Arc::new(settings.session()?), &settings.driver);
    block_on(async { work(&lease, lease.client().await?).await })?
}

fn enrol(which: &NodeArgs, yes: bool, settings: &Settings, printer: &Printer) -> Outcome {
    let (driver, _) = super::super::driver(settings.session()?, settings, false, printer)?;
    block_on(async {
        let journal = driver.journal();
        let selector = which.selector();
        let node = nodes::one(&**journal, &driver.session, &which.node, &selector).await?;
        let question = format!(
            "Re-enrol `{}`? Its certificate and earlier tokens are no longer accepted.",
            node.name()
        );
        agree(yes, &question, printer).await?;
        let enrolled = server::enrol_again(&driver, &node).await?;
        if printer.output.json {
            printer.json(&kind::NODE_ENROL, &enrolled);
        } else {
            printer.message(&format!("`{}` has enrolled.", enrolled.name));
        }
        Ok(ExitCode::SUCCESS)
    })?
}

async fn list(client: &ServerClient, printer: &Printer) -> Outcome {
    let nodes = client.nodes().await?;
    if printer.output.json {
        printer.json(&kind::NODE_LIST, &Nodes { nodes });
        return Ok(ExitCode::SUCCESS);
    }
    let row = |node: NodeStatus| {
        let text = |value: &Option<String>| value.as_deref().map_or_else(dash, job::line);
        let cells = [
            state(&node).to_owned(),
            spec(&node).to_owned(),
            node.result.map_or("-", ReportState::name).to_owned(),
            node.drift.map_or_else(dash, |drift| drift.to_string()),
            text(&node.agent),
            time(node.last_contact),
        ];
        let names = [&node.name, &node.manifest, &node.host].map(|name| job::line(name));
        let uuid = job::line(&node.uuid);
        names.into_iter().chain(cells).chain([uuid]).collect()
    };
    let headings = [
        "node",
        "manifest",
        "host",
        "state",
        "spec",
        "result",
        "drift",
        "agent",
        "last contact",
        "uuid",
    ];
    let rows = nodes.into_iter().map(row).collect();
    printer.data(&table::render(&headings, rows));
    printer.message(
        "Nodes of the modes `pull` and `hybrid`; `homestak manifest status` shows those of `push` too.",
    );
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a node has the published spec, by its own account.
fn spec(node: &NodeStatus) -> &'static str {
    match (node.reported_generation, node.generation) {
        (Some(reported), Some(published)) if reported < published => "older",
        (Some(_), Some(_)) => "current",
        (_, None) => "not published",
        (None, Some(_)) => "-",
    }
}

fn dash() -> String {
    "-".to_owned()
}

async fn show(
    client: &ServerClient,
    node: &NodeArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let node = find(client, node, settings).await?;
    let reports = client.reports(&node.uuid, 0, Duration::ZERO).await?.reports;
    let jobs = match client.node_jobs(&node.uuid).await {
        Ok(jobs) => jobs,
        // A server of an earlier version has none.
        Err(error) if error.is_missing() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let detail = NodeDetail {
        node,
        reports,
        jobs,
    };
    if printer.output.json {
        printer.json(&kind::NODE_SHOW, &detail);
        return Ok(ExitCode::SUCCESS);
    }
    let NodeDetail {
        node,
        reports,
        jobs,
    } = detail;
    let text = |value: &Option<String>| value.as_deref().map_or_else(dash, job::line);
    let number = |value: Option<u64>| value.map_or_else(dash, |value| value.to_string());
    printer.data(&format!(
        "node:          {}\nmanifest:      {}\nhost:          {}\nuuid:          {}\n\
         state:         {}\nspec:          generation {}, {}\nreported:      generation {}\n\
         result:        {}\ndrift:         {}\nenrolled:      {}\n\
         certificate:   until {}\naddress:       {}\nagent:         {}\nlast contact:  {}\n",
        job::line(&node.name),
        job::line(&node.manifest),
        job::line(&node.host),
        job::line(&node.uuid),
        state(&node),
        number(node.generation),
        match spec(&node) {
            "-" => "not known to be applied",
            "older" => "not applied yet",
            spec => spec,
        },
        number(node.reported_generation),
        node.result.map_or("-", ReportState::name),
        number(node.drift),
        time(node.enrolled),
        time(node.certificate_expires),
        text(&node.address),
        text(&node.agent),
        time(node.last_contact),
    ));
    if let Some(error) = &node.error {
        printer.data(&format!("error:         {}\n", job::line(error)));
    }
    for report in &reports {
        printer.data(&format!("{}\n", line(report)));
    }
    if !jobs.is_empty() {
        let shown = &jobs[..jobs.len().min(SHOWN_JOBS)];
        printer.data(&format!("\n{}", job::list(shown, time)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Renders a report as one line.
fn line(received: &ReceivedReport) -> String {
    let report = &received.report;
    let generation = report.generation.map(|of| format!(" generation {of}"));
    let more = report.error.as_ref().or(report.step.as_ref());
    let more = more.map(|text| {
        let first = text.lines().next().unwrap_or_default();
        format!(": {}", job::line(first))
    });
    format!(
        "{}  {}{}{}",
        time(Some(received.received)),
        report.state.name(),
        generation.unwrap_or_default(),
        more.unwrap_or_default()
    )
}

/// Finds a node by name or UUID.
pub(in crate::commands) async fn find(
    client: &ServerClient,
    args: &NodeArgs,
    settings: &Settings,
) -> Result<NodeStatus, DriverError> {
    let nodes = client.nodes().await?;
    let is_meant = |node: &&NodeStatus| {
        let is_of = |of: &Option<String>, value: &String| of.as_ref().is_none_or(|of| of == value);
        (node.name == args.node || node.uuid == args.node)
            && is_of(&args.manifest, &node.manifest)
            && is_of(&args.host, &node.host)
    };
    let mut found: Vec<&NodeStatus> = nodes.iter().filter(is_meant).collect();
    if found.len() > 1 {
        // One that was replaced stays known.
        found.retain(|node| node.revoked.is_none());
    }
    match found[..] {
        [one] => Ok(one.clone()),
        [] => {
            let recorded = recorded(args, settings).await;
            Err(unknown(args, &nodes, &recorded))
        }
        _ => Err(
            DriverError::usage(format!("Several nodes are called `{}`.", args.node))
                .hint("add -M NAME or -H HOST, or use the UUID that homestak node list shows"),
        ),
    }
}

/// Returns the recorded nodes of this name with their mode. Only hints depend on it.
async fn recorded(args: &NodeArgs, settings: &Settings) -> Vec<(RecordedNode, Option<Mode>)> {
    let driver = settings.driver.clone();
    // Cancel safety: only opened.
    let opened = run_blocking(move || journal(&driver)).await;
    let (Ok(journal), Ok(session)) = (opened, settings.session()) else {
        return Vec::new();
    };
    let found = nodes::all(&*journal, &session, &args.selector()).await;
    let found = found.map(|found| found.list).unwrap_or_default();
    let found = found.into_iter().filter(|node| node.name() == args.node);
    let mode = |node: &RecordedNode| node.record.configured.as_ref()?.mode;
    let with_mode = |node: RecordedNode| {
        let mode = mode(&node);
        (node, mode)
    };
    found.map(with_mode).collect()
}

/// Makes the error for a node that the server does not know. Another name is suggested only if there
/// is no node of this name.
fn unknown(
    args: &NodeArgs,
    nodes: &[NodeStatus],
    recorded: &[(RecordedNode, Option<Mode>)],
) -> DriverError {
    let name = &args.node;
    let names = nodes.iter().map(|node| node.name.as_str());
    let unknown = DriverError::unknown("enrolled node", name, names);
    let of_others = nodes.iter().filter(|node| node.name == *name).map(|node| {
        let (manifest, host) = (job::line(&node.manifest), job::line(&node.host));
        format!("the server knows `{name}` of another manifest or host: -M {manifest} -H {host}")
    });
    let not_enrolled = recorded.iter().map(|(node, mode)| match mode {
        Some(Mode::Push) => format!(
            "`{name}` ({}) is configured in the mode `push`, and does not enrol",
            node.options()
        ),
        Some(Mode::Pull | Mode::Hybrid) | None => format!(
            "`{name}` ({}) exists, and the server does not know it",
            node.options()
        ),
    });
    let mut hints: Vec<String> = of_others.chain(not_enrolled).collect();
    // Without any enrolled node, the hint would be about the site.
    if hints.is_empty() && !nodes.is_empty() {
        hints.clone_from(&unknown.hints);
    }
    DriverError { hints, ..unknown }
        .hint("homestak node list shows the nodes that the server knows")
}

/// Returns the state of a node. One without a published spec can do nothing, whether its guest was
/// destroyed or the directory was lost.
fn state(node: &NodeStatus) -> &'static str {
    let is_destroyed = node.revoke_reason.as_deref() == Some(DESTROYED);
    match (node.revoked, node.generation, node.enrolled) {
        (Some(_), None, _) if is_destroyed => "destroyed",
        (Some(_), _, _) => "revoked",
        (None, None, _) => "not published",
        (None, Some(_), Some(_)) => "enrolled",
        (None, Some(_), None) => "expected",
    }
}

/// Renders a time in seconds since 1970.
pub(in crate::commands) fn time(seconds: Option<i64>) -> String {
    let time = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_without_a_published_spec_is_neither_enrolled_nor_expected() {
        let of = |generation: Option<u64>, enrolled: Option<i64>, reason: Option<&str>| {
            let node = json!({
                "uuid": "u", "name": "web", "manifest": "lab", "host": "local",
                "generation": generation, "enrolled": enrolled, "certificate_expires": null,
                "revoked": reason.map(|_| 9), "revoke_reason": reason, "address": null,
                "agent": null, "last_contact": null,
            });
            state(&serde_json::from_value(node).expect("a node"))
        };
        assert_eq!(of(Some(7), Some(1), None), "enrolled");
        assert_eq!(of(Some(7), None, None), "expected");
        for enrolled in [None, Some(1)] {
            assert_eq!(of(None, enrolled, None), "not published");
            assert_eq!(of(None, enrolled, Some(DESTROYED)), "destroyed");
            assert_eq!(of(None, enrolled, Some("stolen")), "revoked");
            assert_eq!(of(Some(7), enrolled, Some(DESTROYED)), "revoked");
        }
    }

    #[test]
    fn another_name_is_suggested_only_if_no_node_has_this_one() {
        let node = |name: &str| -> NodeStatus {
            let node = json!({
                "uuid": "u", "name": name, "manifest": "lab", "host": "local",
                "generation": 7, "enrolled": 1, "certificate_expires": null,
                "revoked": null, "revoke_reason": null, "address": null,
                "agent": null, "last_contact": null,
            });
            serde_json::from_value(node).expect("a node")
        };
        let hints = |name: &str| {
            let args = NodeArgs {
                node: name.to_owned(),
                manifest: Some("other".to_owned()),
                host: None,
            };
            unknown(&args, &[node("git-1"), node("p-pull")], &[]).hints[0].clone()
        };
        let same = hints("git-1");
        assert!(
            same.ends_with("of another manifest or host: -M lab -H local"),
            "{same}"
        );
        assert_eq!(hints("git-2"), "did you mean `git-1`?");
    }
}
