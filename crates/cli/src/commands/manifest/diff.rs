//! `homestak spec diff`: how a node differs from its spec.

use std::process::ExitCode;

use homestak_api::v1::{self, FailureDetail, RunVerb, SpecDiff};
use homestak_core::converge::render;
use homestak_core::foreign::ForeignText;
use homestak_driver::drift::{Drift, drift};
use homestak_driver::error::count;
use homestak_driver::select::ManifestSelector;
use homestak_driver::{DriverError, journal, nodes};

use super::context::CommandContext;
use crate::args::{ExecuteArgs, NodeArgs};
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Exit code when something differs.
const DIFFERS: u8 = 3;

/// Queries a running node for differences.
pub(in crate::commands) fn run(
    which: &NodeArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (journal, session) = (journal(&settings.driver)?, settings.session()?);
    let scope = which.selector();
    let known = block_on(nodes::one(&*journal, &session, &which.node, &scope))??;
    let name = known.name();
    let choice = ManifestSelector {
        name: Some(known.scope.manifest.clone()),
        host: Some(known.scope.host.clone()),
        ..ManifestSelector::default()
    };
    let execute = ExecuteArgs::default();
    let context = CommandContext::open(RunVerb::Apply, choice, &execute, settings, printer)?;
    let Drift { spec, found } = block_on(drift(&context.job, &known))??;
    if !found.refusals.is_empty() {
        return Err(refused((name, &spec), &found.refusals, printer));
    }
    let changes = &found.changes;
    if printer.output.json {
        let diff = SpecDiff {
            node: name.to_owned(),
            spec,
            changes: changes.clone(),
        };
        printer.json(&v1::kind::SPEC_DIFF, &diff);
    } else {
        printer.data(&render(changes));
        if changes.is_empty() {
            printer.message(&format!(
                "`{name}` has no differences to its spec `{spec}`."
            ));
        }
    }
    Ok(ExitCode::from(if changes.is_empty() { 0 } else { DIFFERS }))
}

/// Returns why a spec cannot be applied to a node.
fn refused((name, spec): (&str, &str), why: &[ForeignText], printer: &Printer) -> DriverError {
    if !printer.output.json {
        for reason in why {
            printer.message(&format!("refused: `{name}`: {reason}"));
        }
    }
    let reasons = why.iter().map(|why| FailureDetail::Reason(why.to_string()));
    let error = DriverError::refused(format!(
        "The spec `{spec}` cannot be applied to `{name}`: {}.",
        count(why.len(), "refusal")
    ));
    DriverError {
        diagnostics: Some(reasons.collect()),
        ..error
    }
    .hint("correct the spec or the node")
}
