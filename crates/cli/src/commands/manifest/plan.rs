//! `homestak manifest plan`: what would be done, and why.

use std::process::ExitCode;

use homestak_api::durable::{self, Access};
use homestak_core::plan::{Options, Plan};

use super::job::{Job, options};
use super::plan_file;
use crate::args::{CarryArgs, PlanArgs};
use crate::commands::Outcome;
use crate::connect::block_on;
use crate::error::CommandError;
use crate::settings::Settings;
use crate::ui::{Printer, plan as picture};

/// Shows what `apply` would do.
pub(super) fn run(args: &PlanArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let carry = CarryArgs::default();
    let job = Job::open("plan", &args.manifest, &carry, settings, printer)?;
    let options = options(&args.wish);
    let plan = block_on(job.plan(&options))??;
    if let Some(out) = &args.out {
        let text = serde_json::to_string_pretty(&plan_file::write(&plan, &job.manifest, &options))
            .map_err(|error| CommandError::failed(format!("Cannot write the plan: {error}.")))?;
        // It says what is on nodes.
        durable::write(out, format!("{text}\n").as_bytes(), Access::PRIVATE)
            .map_err(|error| CommandError::file("write", out, &error))?;
        printer.say(&format!(
            "Written; homestak manifest apply {} carries it out.",
            out.display()
        ));
    }
    show(&plan, &job, &options)
}

/// Shows a plan as the result of a command.
pub(super) fn show(plan: &Plan, job: &Job<'_>, options: &Options) -> Outcome {
    let printer = job.printer;
    if printer.shape.json {
        printer.raw_json(&plan_file::write(plan, &job.manifest, options));
    } else {
        printer.data(&picture::render(plan, printer.shape.verbose > 0));
    }
    Ok(ExitCode::from(if plan.refusals.is_empty() { 0 } else { 3 }))
}
