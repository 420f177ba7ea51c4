//! `homestak spec diff`: in what a node differs from its spec.

use std::process::ExitCode;

use homestak_core::converge::render;
use homestak_core::foreign::ForeignText;
use homestak_core::observed::Power;
use homestak_core::plan::{Options, Verb};
use homestak_driver::configure::{NotApplied, not_applied};
use homestak_driver::error::count;
use homestak_driver::select::Choice;
use homestak_driver::{DriverError, journal, nodes};
use serde_json::json;

use super::job::Job;
use crate::args::{CarryArgs, NodeArgs};
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Something differs.
const DIFFERS: u8 = 3;

/// Asks a node that runs what differs.
pub(in crate::commands) fn run(
    which: &NodeArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (journal, session) = (journal(&settings.driver)?, settings.session()?);
    let scope = which.which();
    let known = block_on(nodes::one(&*journal, &session, &which.node, &scope))??;
    let name = known.name();
    let choice = Choice {
        name: Some(known.scope.manifest.clone()),
        host: Some(known.scope.host.clone()),
        ..Choice::default()
    };
    let carry = CarryArgs::default();
    let job = Job::open("plan", choice, &carry, settings, printer)?;
    let plan = block_on(job.job.plan(&Options::new(Verb::Apply)))??;
    let node = plan.node(name);
    let config = node.and_then(|node| node.config.as_ref());
    let Some(config) = config else {
        let why = match node {
            None => "the manifest does not name it",
            Some(node) => {
                let catalog = &job.job.driver.session.catalog;
                not_applied(catalog, &job.job.resolved, node)
                    .map_or("it has no spec", NotApplied::why)
            }
        };
        return Err(DriverError::failed(format!(
            "`{name}` is not configured from here: {why}."
        )));
    };
    let Some(found) = &config.found else {
        let unseen = config.unseen.as_ref();
        let power = node.and_then(|node| Some(node.found.as_ref()?.power));
        let why = match (unseen, power) {
            (Some(unseen), _) => &*unseen.why,
            (None, Some(Power::Running)) => "it is replaced by the next apply",
            (None, Some(Power::Stopped)) => "it does not run",
            (None, Some(Power::Unknown)) => "whether it runs is not known",
            (None, None) => "it is not there",
        };
        let failed = DriverError::failed(format!(
            "`{name}` could not be asked what it is like inside: {why}."
        ))
        .hint(format!(
            "homestak manifest status {} tells how it is",
            known.options()
        ));
        let hint = unseen.map(|unseen| &unseen.hint);
        let hint = hint.filter(|hint| !hint.is_empty());
        return Err(hint.into_iter().fold(failed, DriverError::hint));
    };
    if !found.refusals.is_empty() {
        return Err(refused((name, &config.spec), &found.refusals, printer));
    }
    let changes = &found.changes;
    if printer.shape.json {
        let body = json!({ "node": name, "spec": config.spec, "changes": changes });
        printer.json("spec.diff", body);
    } else {
        printer.data(&render(changes));
        if changes.is_empty() {
            printer.say(&format!("`{name}` is as its spec `{}` says.", config.spec));
        }
    }
    Ok(ExitCode::from(if changes.is_empty() { 0 } else { DIFFERS }))
}

/// Says why a node cannot become what its spec says.
fn refused((name, spec): (&str, &str), why: &[ForeignText], printer: &Printer) -> DriverError {
    if !printer.shape.json {
        for reason in why {
            printer.say(&format!("refused: `{name}`: {reason}"));
        }
    }
    let error = DriverError::refused(format!(
        "`{name}` cannot become what its spec `{spec}` says: {}.",
        count(why.len(), "refusal")
    ));
    DriverError {
        diagnostics: Some(Box::new(json!(why))),
        ..error
    }
    .hint("correct the spec or the node")
}
