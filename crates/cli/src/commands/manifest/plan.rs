//! `homestak manifest plan`: shows what `apply` would change, and why.

use std::process::ExitCode;

use homestak_api::durable::{self, Access};
use homestak_api::v1::{ManifestPlan, RunVerb, kind};
use homestak_core::plan::{Plan, PlanOptions};
use homestak_driver::{DriverError, plan_file};

use super::context::{CommandContext, options};
use crate::args::{ExecuteArgs, PlanArgs};
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, plan as picture};

/// Shows what `apply` would do.
pub(super) fn run(args: &PlanArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let execute = ExecuteArgs::default();
    let context = CommandContext::open(
        RunVerb::Apply,
        args.manifest.choice(),
        &execute,
        settings,
        printer,
    )?;
    let options = options(&args.options);
    let plan = block_on(context.job.plan(&options))??;
    if let Some(out) = &args.out {
        let written = written(&plan, &context, &options);
        let text = serde_json::to_string_pretty(&kind::MANIFEST_PLAN.document(&written))
            .map_err(|error| DriverError::failed(format!("Cannot write the plan: {error}.")))?;
        // Private: it describes the contents of nodes.
        durable::write(out, format!("{text}\n").as_bytes(), Access::PRIVATE)
            .map_err(|error| DriverError::file("write", out, &error))?;
        printer.message(&format!(
            "Plan written; homestak manifest apply {} executes it.",
            out.display()
        ));
    }
    show(&plan, &context, &options)
}

/// Shows a plan as the result of a command.
pub(super) fn show(plan: &Plan, context: &CommandContext<'_>, options: &PlanOptions) -> Outcome {
    let printer = context.printer;
    if printer.output.json {
        printer.json(&kind::MANIFEST_PLAN, &written(plan, context, options));
    } else {
        printer.data(&picture::render(plan, printer.output.verbose > 0));
    }
    Ok(ExitCode::from(if plan.refusals.is_empty() { 0 } else { 3 }))
}

fn written(plan: &Plan, context: &CommandContext<'_>, options: &PlanOptions) -> ManifestPlan {
    let is_new = !context.job.driver.session.has_id;
    plan_file::write(plan, &context.job.choice, is_new, options)
}
