//! `homestak manifest resume`: on with a run that did not end well.

use std::sync::Arc;

use homestak_core::plan::{FORM, correct_sources};
use homestak_engine::chronicle::Chronicle;
use homestak_engine::journal::Run;

use super::job::{Shown, first, show_result};
use super::runs::{again, outdated, read, unfinished, way_on};
use crate::args::RunArgs;
use crate::commands::Outcome;
use crate::connect::block_on;
use crate::error::CommandError;
use crate::operator::{Bench, hold, scopes_of};
use crate::session::Session;
use crate::settings::Settings;
use crate::ui::Printer;
use crate::ui::progress::Screen;

pub(super) fn bench(
    events: bool,
    settings: &Settings,
    printer: &Printer,
) -> Result<Bench, CommandError> {
    let session = Arc::new(Session::open(settings)?);
    Bench::new(session, settings, Screen::new(printer.shape, events))
}

/// Goes on with a run.
pub(super) fn resume(
    which: &RunArgs,
    settled: &[String],
    events: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let bench = bench(events, settings, printer)?;
    let work = async {
        let run = unfinished(which, bench.journal(), bench.session.id()?).await?;
        let _lease = hold(bench.journal(), &scopes_of(&run.head)).await?;
        // It may have ended while it was not held.
        let mut run = read(&run.head, bench.journal()).await?;
        require_known_form(&run)?;
        for image in correct_sources(&mut run.plan, &bench.session.catalog) {
            printer.say(&format!(
                "`images/{image}.yaml` was changed since: its source and checksum count now."
            ));
        }
        if let Some(unknown) = settled.iter().find(|name| run.plan.node(name).is_none()) {
            let known = run.plan.nodes.iter().map(|node| node.name.as_str());
            return Err(CommandError::unknown("node", unknown, known));
        }
        printer.say(&format!(
            "Run {} goes on: {} `{}` on {}.",
            run.head.id,
            run.head.verb,
            run.head.manifest,
            run.head.hosts.join(", ")
        ));
        begin(&bench, &run);
        let operator = &bench.operator;
        let ended = bench
            .drive(
                async |interrupt| operator.resume(&run, settled, interrupt).await,
                printer,
            )
            .await?;
        let shown = Shown {
            verb: "resume",
            manifest: &run.head.manifest,
            host: first(&run.head.hosts),
            events,
        };
        let left = bench.lost(ended, Some(run.head.id)).await?;
        show_result(&shown, &bench, ended, &left, printer).await
    };
    block_on(work)?
}

/// Refuses a run of an older homestak: what its plan does not say would have to be guessed.
pub(super) fn require_known_form(run: &Run) -> Result<(), CommandError> {
    if run.plan.form == FORM {
        return Ok(());
    }
    let refused = CommandError::refused(outdated(&run.head)).hint(way_on(&run.head));
    Err(match run.head.site {
        Some(_) => refused,
        None => refused.hint(format!(
            "{} then continues from what is there",
            again(&run.head)
        )),
    })
}

fn begin(bench: &Bench, run: &Run) {
    let mut chronicle = Chronicle::of_run(run);
    chronicle.died();
    bench.session.limit(&run.plan.timeouts);
    bench.screen.begin(chronicle);
}
