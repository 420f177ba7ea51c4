//! `homestak manifest apply`: creates, changes and configures the nodes of a manifest.

use std::path::PathBuf;
use std::sync::Arc;

use homestak_api::v1::RunVerb;
use homestak_core::plan::{OnError, Plan, PlanOptions};
use homestak_driver::plan_file;
use homestak_driver::select::ManifestSelector;

use super::context::{CommandContext, options};
use super::plan;
use crate::args::ApplyArgs;
use crate::commands::Outcome;
use crate::runtime::run_command;
use crate::settings::Settings;
use crate::ui::Printer;

/// Applies a manifest, or a plan that was written.
pub(super) fn run(args: &ApplyArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let mut options = options(&args.options);
    let mut choice = args.manifest.choice();
    let written = plan_named(args, &mut choice)
        .map(|path| plan_file::read(&path))
        .transpose()?;
    let written = match written {
        None => None,
        Some((plan, made)) => {
            let site_is_new = made.site_is_new;
            made.merge_into(&plan, &mut choice, &mut options)?;
            Some((plan, site_is_new))
        }
    };
    let site = written.as_ref().and_then(|(plan, site_is_new)| {
        let site = plan.site.as_ref()?;
        Some((site, *site_is_new))
    });
    let context = CommandContext::of_site(
        RunVerb::Apply,
        choice,
        &args.execute,
        site,
        settings,
        printer,
    )?;
    let written = written.as_ref().map(|(plan, _)| plan);
    let work = apply(&context, &options, args.keep_on_failure, written);
    run_command(work, &context.screen, printer)
}

/// Returns the plan file: from its flag, or given instead of a manifest's name.
fn plan_named(args: &ApplyArgs, choice: &mut ManifestSelector) -> Option<PathBuf> {
    let named = args.manifest.name.as_ref().map(PathBuf::from);
    let named =
        named.filter(|path| path.extension().is_some_and(|end| end == "json") && path.is_file());
    if named.is_some() {
        choice.name = None;
    }
    args.plan.clone().or(named)
}

async fn apply(
    context: &CommandContext<'_>,
    options: &PlanOptions,
    keep: bool,
    written: Option<&Plan>,
) -> Outcome {
    if context.execute.dry_run {
        let made = context.job.plan(options).await?;
        if let Some(written) = written {
            plan_file::require_same(written, &made)?;
        }
        return plan::show(&made, context, options);
    }
    let _lease = context.job.lock().await?;
    let earlier = context.job.unfinished().await?;
    let mut plan = context.job.plan(options).await?;
    if let Some(written) = written {
        plan_file::require_same(written, &plan)?;
    }
    if keep && plan.on_error == OnError::Rollback {
        plan.on_error = OnError::Stop;
    }
    let question = "Apply this plan? It removes guests.";
    let plan = Arc::new(plan);
    context.execute_plan(&plan, &earlier, question).await
}
