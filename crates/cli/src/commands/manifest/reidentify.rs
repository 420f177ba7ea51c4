//! `homestak manifest reidentify`: guests that were created before sites had an id get an identity
//! of this site.

use homestak_api::v1::RunVerb;
use homestak_core::plan::{PlanOptions, Verb};

use super::context::CommandContext;
use crate::args::{ExecuteArgs, ManifestArgs};
use crate::commands::Outcome;
use crate::runtime::run_command;
use crate::settings::Settings;
use crate::ui::Printer;

/// Gives guests of a manifest their new identity.
pub(super) fn run(
    manifest: &ManifestArgs,
    execute: &ExecuteArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let context = CommandContext::open(
        RunVerb::Reidentify,
        manifest.choice(),
        execute,
        settings,
        printer,
    )?;
    let options = PlanOptions::new(Verb::Reidentify);
    let work = context.run(&options, "Assign these guests to this site?");
    run_command(work, &context.screen, printer)
}
