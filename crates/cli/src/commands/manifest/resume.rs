//! `homestak manifest resume`: on with a run that did not end well.

use homestak_core::plan::correct_sources;
use homestak_driver::runs::{Chronicle, Run, first, read, require_known_form, unfinished};
use homestak_driver::{Driver, DriverError, hold, scopes_of};

use super::job::{Shown, show_result};
use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::runtime::{block_on, drive};
use crate::settings::Settings;
use crate::ui::Printer;
use crate::ui::progress::Screen;

/// Goes on with a run.
pub(super) fn resume(
    which: &RunArgs,
    settled: &[String],
    events: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (driver, screen) = crate::commands::driver(settings.session()?, settings, events, printer)?;
    let work = async {
        let run = unfinished(&which.which(), driver.journal(), driver.session.id()?).await?;
        let _lease = hold(driver.journal(), &scopes_of(&run.head)).await?;
        // It may have ended while it was not held.
        let mut run = read(&run.head, driver.journal()).await?;
        require_known_form(&run)?;
        for image in correct_sources(&mut run.plan, &driver.session.catalog) {
            printer.say(&format!(
                "`images/{image}.yaml` was changed since: its source and checksum count now."
            ));
        }
        if let Some(unknown) = settled.iter().find(|name| run.plan.node(name).is_none()) {
            let known = run.plan.nodes.iter().map(|node| node.name.as_str());
            return Err(DriverError::unknown("node", unknown, known));
        }
        printer.say(&format!(
            "Run {} goes on: {} `{}` on {}.",
            run.head.id,
            run.head.verb,
            run.head.manifest,
            run.head.hosts.join(", ")
        ));
        begin(&driver, &screen, &run);
        let operator = &driver.operator;
        let ended = drive(
            async |interrupt| operator.resume(&run, settled, interrupt).await,
            &screen,
            &driver,
            printer,
        )
        .await?;
        let shown = Shown {
            verb: "resume",
            manifest: &run.head.manifest,
            host: first(&run.head.hosts),
            events,
        };
        let left = driver.lost(ended, Some(run.head.id)).await?;
        show_result(&shown, (&driver, &screen), ended, &left, printer).await
    };
    block_on(work)?
}

fn begin(driver: &Driver, screen: &Screen, run: &Run) {
    let mut chronicle = Chronicle::of_run(run);
    chronicle.died();
    driver.session.limit(&run.plan.timeouts);
    screen.begin(chronicle);
}
