//! `homestak manifest report`: a report of a run, as Markdown or JSON.

use std::fmt::Write as _;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::SharedClock;
use homestak_api::v1::kind;
use homestak_driver::run_follow::RunFollower;
use homestak_driver::runs::{
    Journal, Run, RunId, RunOutcome, RunReport, Runs, is_outdated, outcome_name, outdated,
    outdated_hint,
};
use homestak_driver::{DriverError, journal, wire};

use super::history::format_time;
use crate::args::RunArgs;
use crate::commands::{Outcome, write_file};
use crate::runtime::{block_on, shutdown_signal};
use crate::settings::Settings;
use crate::ui::progress::Screen;
use crate::ui::{Printer, result};

/// What is reported.
pub(super) struct Options<'a> {
    /// The number of the run; `None` for the newest.
    pub(super) number: Option<i64>,
    /// The file it is written to.
    pub(super) out: Option<&'a Path>,
    /// Whether the run is followed until it ends.
    pub(super) follow: bool,
}

/// Reports a run.
pub(super) fn run(
    options: &Options<'_>,
    which: &RunArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    if options.follow && printer.output.json {
        return Err(DriverError::usage(
            "`--follow` cannot be combined with `--json-output`.",
        ));
    }
    let (session, journal) = (settings.session()?, journal(&settings.driver)?);
    let runs = Runs {
        which: &which.selector(),
        journal: &journal,
        site: session.id()?,
    };
    let number = options.number.map(RunId);
    let mut run = block_on(runs.read(number))??;
    let mut code = ExitCode::SUCCESS;
    if options.follow {
        let clock = settings.driver.time.clock();
        match block_on(follow(&journal, clock, &run, printer))?? {
            Followed::Interrupted => return Ok(ExitCode::from(130)),
            Followed::Ended(ended) => code = ExitCode::from(ended),
        }
        run = block_on(runs.read(Some(run.head.id)))??;
    }
    write(&run, options.out, printer)?;
    Ok(code)
}

/// How following a run ended.
enum Followed {
    /// With the run, and this exit code.
    Ended(u8),
    /// By the user.
    Interrupted,
}

/// Shows the progress of a run until it ends. The first interrupt ends the command, not the run.
async fn follow(
    journal: &Arc<dyn Journal>,
    clock: SharedClock,
    run: &Run,
    printer: &Printer,
) -> Result<Followed, DriverError> {
    let screen = Screen::new(printer.output, false);
    screen.expect(&run.plan);
    let follower = RunFollower::new(journal, clock.clone(), run);
    let mut ended = pin!(follower.follow(&screen));
    let mut interrupted = pin!(shutdown_signal());
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let id = run.head.id;
    let ended = loop {
        tokio::select! {
            // Cancel safety: changes nothing.
            ended = &mut ended => break Some(ended?),
            // Cancel safety: only waited for.
            () = &mut interrupted => break None,
            // Cancel safety: a tick that is missed is only a redraw.
            _ = tick.tick() => screen.tick(clock.now()),
        }
    };
    screen.finish();
    Ok(match ended {
        Some(Some(ending)) => Followed::Ended(result::exit_code(ending)),
        Some(None) => {
            printer.message(&format!("Run {id} is unfinished, and nothing executes it."));
            Followed::Ended(result::exit_code(RunOutcome::Stopped))
        }
        None => {
            printer.message(&format!(
                "Interrupted. Run {id} is no longer followed, and continues."
            ));
            Followed::Interrupted
        }
    })
}

fn write(run: &Run, out: Option<&Path>, printer: &Printer) -> Result<(), DriverError> {
    let json = printer.output.json
        || out.is_some_and(|out| out.extension().is_some_and(|end| end == "json"));
    let text = if json {
        let report = wire::run::report(run, &run_report(run));
        let text = serde_json::to_string_pretty(&kind::MANIFEST_REPORT.document(&report));
        let text = text.map_err(|error| DriverError::failed(format!("Cannot write: {error}.")))?;
        text + "\n"
    } else {
        markdown(run)
    };
    match out {
        Some(out) => write_file(out, &text)?,
        None => printer.data(&text),
    }
    Ok(())
}

fn run_report(run: &Run) -> RunReport {
    let mut run_report = RunReport::of_run(run);
    run_report.mark_interrupted();
    run_report
}

fn markdown(run: &Run) -> String {
    let run_report = run_report(run);
    let head = &run.head;
    let mut text = format!("# Run {}: {} `{}`\n\n", head.id, head.verb, head.manifest);
    _ = writeln!(text, "- Hosts: {}", head.hosts.join(", "));
    _ = writeln!(text, "- Started: {}", format_time(head.started));
    if let Some((at, _)) = head.ended {
        _ = writeln!(text, "- Finished: {}", format_time(at));
    }
    _ = writeln!(text, "- Result: {}\n", outcome_name(head));
    if is_outdated(head) {
        _ = writeln!(text, "{}\n{}.\n", outdated(head), outdated_hint(head));
    }
    text += "```text\n";
    text += &result::render(&run_report);
    text += "```\n";
    for (row, error) in run_report.errors() {
        _ = writeln!(text, "\n## `{}`\n\n{}", row.name, error.message);
        for line in &error.log {
            _ = writeln!(text, "    {line}");
        }
        if !error.hint.is_empty() {
            _ = writeln!(text, "\nWhat to do: {}", error.hint);
        } else if error.needs_new_plan() {
            text += "\nWhat to do: create a new plan with homestak manifest apply\n";
        }
    }
    text
}
