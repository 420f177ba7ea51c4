//! `homestak manifest rollback`: reverts the last run, after showing what that changes.

use std::process::ExitCode;

use homestak_api::v1::{RollbackOutput, RollbackPreview, RunVerb, kind};
use homestak_driver::rollback::{Rollback, UndoState};
use homestak_driver::runs::{Run, UndoEffect, UndoItem};
use homestak_driver::{Driver, wire};

use super::context::{ResultOptions, show_result};
use crate::args::RollbackArgs;
use crate::commands::{Outcome, agree};
use crate::runtime::{drive, run_command};
use crate::settings::Settings;
use crate::ui::Printer;
use crate::ui::progress::Screen;

/// Reverts the last run.
pub(super) fn run(args: &RollbackArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let (driver, screen) =
        crate::commands::driver(settings.session()?, settings, args.events, printer)?;
    run_command(
        rollback(args, (&driver, &screen), printer),
        &screen,
        printer,
    )
}

async fn rollback(
    args: &RollbackArgs,
    (driver, screen): (&Driver, &Screen),
    printer: &Printer,
) -> Outcome {
    let rollback = Rollback::open(driver, &args.which.selector()).await?;
    let (run, items) = (&rollback.run, &rollback.items);
    let id = run.head.id;
    match rollback.undo {
        UndoState::Due => {}
        UndoState::Already => {
            let text = format!("Run {id} is already reverted.");
            return Ok(nothing(run, items, &text, printer));
        }
        UndoState::Nothing => {
            let text = format!("Run {id} left nothing to revert.");
            return Ok(nothing(run, items, &text, printer));
        }
    }
    let plan = render(run, items);
    if args.dry_run {
        if printer.output.json {
            let preview = wire::run::rollback(run, items);
            printer.json(&kind::MANIFEST_ROLLBACK, &RollbackOutput::Preview(preview));
        } else {
            printer.data(&plan);
        }
        return Ok(ExitCode::SUCCESS);
    }
    printer.message(plan.trim_end());
    screen.set_asking(true);
    agree(args.yes, "Roll back this run?", printer).await?;
    screen.set_asking(false);
    screen.begin(rollback.report());
    let work = async |interrupt| rollback.carry_out(interrupt).await;
    let ended = drive(work, screen, driver, printer).await?;
    let options = ResultOptions::of(RunVerb::Rollback, &run.head, args.events);
    show_result(&options, (driver, screen), ended, printer).await
}

/// Reports that there is nothing to do.
fn nothing(run: &Run, items: &[UndoItem], text: &str, printer: &Printer) -> ExitCode {
    for item in items {
        printer.message(line(item).trim_end());
    }
    printer.message(text);
    if printer.output.json {
        let preview = RollbackPreview {
            success: Some(true),
            ..wire::run::rollback(run, items)
        };
        printer.json(&kind::MANIFEST_ROLLBACK, &RollbackOutput::Preview(preview));
    }
    ExitCode::SUCCESS
}

fn render(run: &Run, items: &[UndoItem]) -> String {
    let mut text = format!(
        "roll back run {}: {} `{}` on {}\n",
        run.head.id,
        run.head.verb,
        run.head.manifest,
        run.head.hosts.join(", ")
    );
    if items.is_empty() {
        text += "  it changed nothing\n";
    }
    text + &items.iter().map(line).collect::<String>()
}

fn line(item: &UndoItem) -> String {
    let mark = match item.effect {
        UndoEffect::Undone => "  ",
        UndoEffect::Stays => "  kept: ",
        UndoEffect::Lost => "  cannot be reverted: ",
    };
    format!("{mark}{}: {}\n", item.subject, item.text)
}
