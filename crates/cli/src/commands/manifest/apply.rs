//! `homestak manifest apply`: the world becomes what the manifest says.

use std::path::PathBuf;

use homestak_core::plan::{OnError, Options, Plan, Verb};
use homestak_driver::select::Choice;
use homestak_driver::{DriverError, plan_file};

use super::job::{Job, options};
use super::plan;
use crate::args::ApplyArgs;
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Applies a manifest, or a plan that was written.
pub(super) fn run(args: &ApplyArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let mut options = options(&args.wish);
    let mut choice = args.manifest.choice();
    let written = plan_named(args, &mut choice)
        .map(|path| plan_file::read(&path))
        .transpose()?;
    let written = written
        .map(|(plan, made)| recall(plan, made, &mut choice, &mut options))
        .transpose()?;
    let site = written.as_ref().and_then(|(plan, site_is_new)| {
        let site = plan.site.as_ref()?;
        Some((site, *site_is_new))
    });
    let job = Job::of_site("apply", choice, &args.carry, site, settings, printer)?;
    block_on(apply(
        &job,
        &options,
        args.keep_on_failure,
        written.as_ref().map(|(plan, _)| plan),
    ))?
}

/// Returns the file of a plan: named by its flag, or in the place of a manifest's name.
fn plan_named(args: &ApplyArgs, choice: &mut Choice) -> Option<PathBuf> {
    let named = args.manifest.name.as_ref().map(PathBuf::from);
    let named =
        named.filter(|path| path.extension().is_some_and(|end| end == "json") && path.is_file());
    if named.is_some() {
        choice.name = None;
    }
    args.plan.clone().or(named)
}

/// Plans are made again with what they were made with. Also returns whether the site was new then.
fn recall(
    plan: Plan,
    made: plan_file::Made,
    choice: &mut Choice,
    options: &mut Options,
) -> Result<(Plan, bool), DriverError> {
    if plan.verb != Verb::Apply {
        return Err(DriverError::usage("The plan is not one of `apply`."));
    }
    if !choice.is_made() {
        choice.file = made.choice.file;
        choice.json = made.choice.json;
        if !choice.is_made() {
            choice.name = Some(plan.manifest.clone());
        }
    }
    choice.mode = choice.mode.or(made.choice.mode);
    choice.host = choice.host.take().or(made.choice.host);
    options.prune |= made.prune;
    options.depth = options.depth.or(made.depth);
    options.on_error = options.on_error.or(made.on_error);
    options.parallelism = options.parallelism.or(made.parallelism);
    Ok((plan, made.site_is_new))
}

async fn apply(job: &Job<'_>, options: &Options, keep: bool, written: Option<&Plan>) -> Outcome {
    if job.carry.dry_run {
        let made = job.job.plan(options).await?;
        return plan::show(&made, job, options);
    }
    let _lease = job.job.hold().await?;
    let earlier = job.job.unfinished().await?;
    let mut plan = job.job.plan(options).await?;
    if let Some(written) = written
        && !written.same_work(&plan)
    {
        let refused = DriverError::refused(
            "The plan in the file does not fit what is there any more, so nothing was done.",
        );
        let differs = plan_file::differences(written, &plan).into_iter();
        return Err(differs
            .fold(refused, |refused, what| {
                refused.hint(format!("differs: {what}"))
            })
            .hint("homestak manifest plan shows what would be done now"));
    }
    if keep && plan.on_error == OnError::Rollback {
        plan.on_error = OnError::Stop;
    }
    let question = "Carry this out? It removes guests.";
    job.carry_through(&plan, &earlier, question).await
}
