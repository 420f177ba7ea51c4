//! `homestak manifest resume`: resumes a run that failed or was interrupted.

use homestak_api::v1::RunVerb;
use homestak_driver::resume::Resume;

use super::context::{ResultOptions, show_result};
use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::runtime::{drive, run_command};
use crate::settings::Settings;
use crate::ui::Printer;

/// Resumes a run. `resolved` names nodes whose failed steps the user has completed or cleaned up.
pub(super) fn resume(
    which: &RunArgs,
    resolved: &[String],
    events: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (driver, screen) = crate::commands::driver(settings.session()?, settings, events, printer)?;
    let work = async {
        let resume = Resume::open(&driver, &which.selector(), resolved).await?;
        let head = &resume.run.head;
        printer.message(&format!(
            "Resuming run {}: {} `{}` on {}.",
            head.id,
            head.verb,
            head.manifest,
            head.hosts.join(", ")
        ));
        screen.begin(resume.report());
        let execute = async |interrupt| resume.carry_out(interrupt).await;
        let ended = drive(execute, &screen, &driver, printer).await?;
        let options = ResultOptions::of(RunVerb::Resume, head, events);
        show_result(&options, (&driver, &screen), ended, printer).await
    };
    run_command(work, &screen, printer)
}
