//! `homestak manifest rollback`: what the last run did is undone, after a plan of that was shown.

use std::process::ExitCode;

use homestak_driver::runs::{
    Chronicle, Ending, Run, UndoEffect, UndoItem, Which, current, first, flags, hints, read,
    require_known_form, rollback_plan, unfinished, with_replaced,
};
use homestak_driver::{Driver, DriverError, hold, scopes_of};
use serde_json::{Value as Json, json};

use super::job::{Shown, show_result};
use crate::args::RollbackArgs;
use crate::commands::{Outcome, agree};
use crate::runtime::{block_on, drive};
use crate::settings::Settings;
use crate::ui::Printer;
use crate::ui::progress::Screen;

/// Undoes the last run.
pub(super) fn run(args: &RollbackArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let (driver, screen) =
        crate::commands::driver(settings.session()?, settings, args.events, printer)?;
    block_on(rollback(args, (&driver, &screen), printer))?
}

async fn rollback(
    args: &RollbackArgs,
    (driver, screen): (&Driver, &Screen),
    printer: &Printer,
) -> Outcome {
    let run = chosen(&args.which.which(), driver).await?;
    let _lease = hold(driver.journal(), &scopes_of(&run.head)).await?;
    let run = read(&run.head, driver.journal()).await?;
    require_known_form(&run)?;
    if let Some((_, Ending::RolledBack)) = run.head.ended {
        let text = format!("Run {} is undone already.", run.head.id);
        return Ok(nothing(&run, &rollback_plan(&run), &text, printer));
    }
    driver.session.limit(&run.plan.timeouts);
    let items = driver.operator.rollback_plan(&run).await;
    let of = |effect: UndoEffect| items.iter().filter(move |item| item.effect == effect);
    let is_done = matches!(run.head.ended, Some((_, Ending::Done)));
    if is_done && of(UndoEffect::Undone).next().is_none() {
        if of(UndoEffect::Lost).next().is_none() {
            let text = format!("Run {} left nothing that could be undone.", run.head.id);
            return Ok(nothing(&run, &items, &text, printer));
        }
        let refused = DriverError::refused(format!(
            "Nothing of run {} ({} `{}`) can be undone.",
            run.head.id, run.head.verb, run.head.manifest
        ));
        return Err(of(UndoEffect::Lost).fold(refused, |refused, item| {
            refused.hint(format!("`{}`: {}", item.subject, item.text))
        }));
    }
    let plan = render(&run, &items);
    if args.dry_run {
        if printer.shape.json {
            printer.json("manifest.rollback", body(&run, &items));
        } else {
            printer.data(&plan);
        }
        return Ok(ExitCode::SUCCESS);
    }
    printer.say(plan.trim_end());
    agree(args.yes, "Undo this?", printer).await?;
    let mut chronicle = Chronicle::of_run(&run);
    chronicle.died();
    // Why it failed then says nothing about how undoing it goes now.
    chronicle.clear_errors();
    screen.begin(chronicle);
    let operator = &driver.operator;
    let ended = drive(
        async |interrupt| operator.roll_back(&run, interrupt).await,
        screen,
        driver,
        printer,
    )
    .await?;
    let left = driver.lost(ended, Some(run.head.id)).await?;
    let shown = Shown {
        verb: "rollback",
        manifest: &run.head.manifest,
        host: first(&run.head.hosts),
        events: args.events,
    };
    let code = show_result(&shown, (driver, screen), ended, &left, printer).await?;
    // That it was undone is what was asked for.
    Ok(match ended {
        Some(Ending::RolledBack) if left.is_empty() => ExitCode::SUCCESS,
        _ => code,
    })
}

/// Returns the newest run of the manifest that is named, or the only one that is unfinished.
async fn chosen(which: &Which, driver: &Driver) -> Result<Run, DriverError> {
    let (journal, site) = (driver.journal(), driver.session.id()?);
    let Some(manifest) = &which.manifest else {
        return unfinished(which, journal, site).await;
    };
    let runs = current(which, journal, site).await?;
    match runs.as_slice() {
        [] => {
            let on = which.host.as_ref().map_or_else(String::new, |host| {
                format!(" on `{host}` that could be undone")
            });
            let none = DriverError::refused(format!("There is no run of `{manifest}`{on}."));
            let none = with_replaced(none, which, journal, site).await?;
            let hints = hints(which, journal, site).await?;
            Err(hints.into_iter().fold(none, DriverError::hint))
        }
        [one] => read(one, journal).await,
        several => {
            let error = DriverError::usage("Which one? It ran on several hosts.");
            Err(several
                .iter()
                .fold(error, |error, run| error.hint(flags(run))))
        }
    }
}

/// Reports that there is nothing to do.
fn nothing(run: &Run, items: &[UndoItem], text: &str, printer: &Printer) -> ExitCode {
    for item in items {
        printer.say(line(item).trim_end());
    }
    printer.say(text);
    if printer.shape.json {
        let mut body = body(run, items);
        body["success"] = true.into();
        printer.json("manifest.rollback", body);
    }
    ExitCode::SUCCESS
}

fn body(run: &Run, items: &[UndoItem]) -> Json {
    let item = |item: &UndoItem| json!({ "name": item.subject, "effect": item.effect.word(), "text": item.text });
    json!({
        "verb": "rollback",
        "run": run.head.id.0,
        "manifest": run.head.manifest,
        "hosts": run.head.hosts,
        "undo": items.iter().map(item).collect::<Vec<_>>(),
    })
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
        text += "  nothing was changed by it\n";
    }
    text + &items.iter().map(line).collect::<String>()
}

fn line(item: &UndoItem) -> String {
    let mark = match item.effect {
        UndoEffect::Undone => "  ",
        UndoEffect::Stays => "  stays: ",
        UndoEffect::Lost => "  cannot be undone: ",
    };
    format!("{mark}{}: {}\n", item.subject, item.text)
}
