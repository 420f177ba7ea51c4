//! `homestak manifest destroy`: destroys the guests of a manifest, children before their parents.

use homestak_api::v1::RunVerb;
use homestak_core::plan::{PlanOptions, Verb};

use super::context::CommandContext;
use crate::args::DestroyArgs;
use crate::commands::Outcome;
use crate::runtime::run_command;
use crate::settings::Settings;
use crate::ui::Printer;

/// Destroys the guests of a manifest.
pub(super) fn run(args: &DestroyArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let context = CommandContext::open(
        RunVerb::Destroy,
        args.manifest.choice(),
        &args.execute,
        settings,
        printer,
    )?;
    let options = PlanOptions {
        on_error: args.on_error,
        parallelism: args.parallel.map(|n| n as usize),
        ..PlanOptions::new(Verb::Destroy)
    };
    let work = context.run(&options, "Destroy these guests, with their disks?");
    run_command(work, &context.screen, printer)
}
