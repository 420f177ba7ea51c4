//! `homestak manifest destroy`: what the manifest made is removed, children before their parents.

use homestak_core::plan::{Options, Verb};

use super::job::{Job, on_error};
use super::plan;
use crate::args::DestroyArgs;
use crate::commands::Outcome;
use crate::connect::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Destroys what a manifest made.
pub(super) fn run(args: &DestroyArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let job = Job::open("destroy", &args.manifest, &args.carry, settings, printer)?;
    let options = Options {
        on_error: args.on_error.map(on_error),
        parallelism: args.parallel.map(|n| n as usize),
        ..Options::new(Verb::Destroy)
    };
    block_on(destroy(&job, &options))?
}

async fn destroy(job: &Job<'_>, options: &Options) -> Outcome {
    if job.carry.dry_run {
        let made = job.plan(options).await?;
        return plan::show(&made, job, options);
    }
    let _lease = job.hold().await?;
    let earlier = job.unfinished().await?;
    let plan = job.plan(options).await?;
    job.show(&plan)?;
    if plan.is_empty() {
        job.take_over(&earlier).await?;
        return job.nothing(&plan);
    }
    job.confirm(&plan, "Destroy these guests, with their disks?")?;
    job.preflight(&plan).await?;
    job.take_over(&earlier).await?;
    let ended = job.carry_out(&plan).await?;
    job.finish(&plan, ended)
}
