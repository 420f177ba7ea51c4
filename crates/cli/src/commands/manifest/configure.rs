//! `homestak manifest configure`: the configuration phase alone, for nodes that run.

use std::sync::Arc;

use homestak_api::v1::RunVerb;
use homestak_core::plan::{PlanOptions, Verb};

use super::context::CommandContext;
use super::plan;
use crate::args::ConfigureArgs;
use crate::commands::Outcome;
use crate::runtime::run_command;
use crate::settings::Settings;
use crate::ui::Printer;

/// Configures the nodes of a manifest.
pub(super) fn run(args: &ConfigureArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let context = CommandContext::open(
        RunVerb::Configure,
        args.choice(),
        &args.execute,
        settings,
        printer,
    )?;
    let options = PlanOptions {
        on_error: args.on_error,
        parallelism: args.parallel.map(|n| n as usize),
        ..PlanOptions::new(Verb::Apply)
    };
    run_command(
        configure(&context, &options, &args.nodes),
        &context.screen,
        printer,
    )
}

async fn configure(
    context: &CommandContext<'_>,
    options: &PlanOptions,
    nodes: &[String],
) -> Outcome {
    let job = &context.job;
    if context.execute.dry_run {
        let planned = job.plan_configuration(options, nodes).await?;
        return plan::show(&planned, context, options);
    }
    let _lease = job.lock().await?;
    let earlier = job.unfinished().await?;
    let planned = Arc::new(job.plan_configuration(options, nodes).await?);
    // Nothing is removed but what configurations remove, which has a question of its own.
    context
        .execute_plan(&planned, &earlier, "Configure these nodes?")
        .await
}
