//! `homestak manifest resume`: resumes a run that failed or was interrupted.

use homestak_api::v1::RunVerb;
use homestak_driver::resume::Resume;

use super::context::{Shown, show_result};
use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::runtime::{drive, run_command};
use crate::settings::Settings;
use crate::ui::Printer;

/// Resumes a run.
pub(super) fn resume(
    which: &RunArgs,
    resolved: &[String],
    events: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (driver, screen) = crate::commands::driver(settings.session()?, settings, events, printer)?;
    let work = async {
        let resume = Resume::open(&driver, &which.which(), resolved).await?;
        let head = &resume.run.head;
        printer.say(&format!(
            "Resuming run {}: {} `{}` on {}.",
            head.id,
            head.verb,
            head.manifest,
            head.hosts.join(", ")
        ));
        screen.begin(resume.report());
        let work = async |interrupt| resume.carry_out(interrupt).await;
        let ended = drive(work, &screen, &driver, printer).await?;
        let shown = Shown::of(RunVerb::Resume, head, events);
        show_result(&shown, (&driver, &screen), ended, printer).await
    };
    run_command(work, &screen, printer)
}
