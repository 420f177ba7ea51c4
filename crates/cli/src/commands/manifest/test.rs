//! `homestak manifest test`: apply, verify and destroy, with a report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use homestak_api::v1::{RunResult, RunVerb};
use homestak_core::plan::{OnError, Plan, PlanOptions, Verb};
use homestak_driver::configure::notice_not_applied;
use homestak_driver::hosts::{built_in_host, local};
use homestak_driver::preflight::FindingSeverity;
use homestak_driver::runs::{RunOutcome, RunReport, UndoEffect};
use homestak_driver::{DriverError, wire};
use jiff::Timestamp;

use super::context::{CommandContext, options, print_result};
use super::plan;
use super::test_report::{Phase, Report};
use crate::args::TestArgs;
use crate::commands::Outcome;
use crate::commands::local::install;
use crate::runtime::{block_on, drive, run_command};
use crate::settings::Settings;
use crate::ui::{Printer, result};

/// Tests a manifest.
pub(super) fn run(args: &TestArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let args = &prepared(args, settings, printer);
    let context = CommandContext::open(
        RunVerb::Test,
        args.manifest.choice(),
        &args.execute,
        settings,
        printer,
    )?;
    let directory = args.report_dir.clone();
    let directory = directory.unwrap_or_else(|| settings.driver.state.join("reports"));
    run_command(test(&context, args, &directory), &context.screen, printer)
}

/// Sets up this machine with `--setup`. When it cannot run real nodes, the simulator is used: a
/// test leaves nothing behind, wherever it runs.
fn prepared(args: &TestArgs, settings: &Settings, printer: &Printer) -> TestArgs {
    let mut args = args.clone();
    let host = args.manifest.host.as_deref();
    let is_here =
        host.is_some() && host == built_in_host(&settings.driver, |it| it.is_this_machine);
    if !args.execute.setup || args.execute.dry_run || !is_here {
        return args;
    }
    args.execute.setup = false;
    if let Err(why) = set_up(settings, printer) {
        printer.message(&format!("This machine cannot run real nodes: {why}"));
        if let Some(host) = built_in_host(&settings.driver, |it| it.is_simulated) {
            let text = "Using the simulator instead";
            printer.message(&format!("{text} (-H {host}); no real nodes are created."));
            args.manifest.host = Some(host.to_owned());
        }
    }
    args
}

/// Installs what is missing and checks the machine.
fn set_up(settings: &Settings, printer: &Printer) -> Result<(), String> {
    let with_hint = |error: DriverError| match error.hints.first() {
        Some(hint) => format!("{} ({hint})", error.message),
        None => error.message,
    };
    block_on(install(printer)).flatten().map_err(with_hint)?;
    let findings = local::check(&settings.driver).map_err(with_hint)?;
    let bad = findings
        .iter()
        .filter(|finding| finding.severity == FindingSeverity::Failure);
    let bad: Vec<String> = bad
        .map(|finding| format!("{}: {}", finding.check, finding.detail))
        .collect();
    if bad.is_empty() {
        return Ok(());
    }
    Err(bad.join("; "))
}

async fn test(context: &CommandContext<'_>, args: &TestArgs, directory: &Path) -> Outcome {
    let options = options(&args.options);
    if context.execute.dry_run {
        let made = context.job.plan(&options).await?;
        return plan::show(&made, context, &options);
    }
    let _lease = context.job.lock().await?;
    let earlier = context.job.unfinished().await?;
    let mut plan = context.job.plan(&options).await?;
    let keep = args.keep_on_failure || !context.job.resolved.settings.cleanup_on_failure.value;
    if plan.on_error == OnError::Rollback {
        // What a failed test created is kept for inspection or destroyed, never rolled back.
        plan.on_error = OnError::Stop;
    }
    context.show(&plan)?;
    guard(context, &plan).await?;
    context.preflight(&plan).await?;
    context.job.take_over(&earlier).await?;
    let mut report = Report::new(context, &plan);
    let ended = create(context, &plan, &mut report).await?;
    let Some(created) = ended else {
        return context.finish(&plan, None).await;
    };
    if created == RunOutcome::Stopped {
        return context.finish(&plan, Some(created)).await;
    }
    if created == RunOutcome::Done {
        if !verify_nodes(context, &plan, &mut report).await? {
            return context.finish(&plan, None).await;
        }
    } else {
        report.skip("verify", "Check that every node runs and is reachable");
    }
    let made = context.screen.report();
    let ended = if report.success() || !keep {
        destroy(context, &options, &mut report).await?
    } else {
        context.printer.message("Everything is kept.");
        report.skip("destroy", "Destroy every node");
        Some(RunOutcome::Done)
    };
    let written = report.write(directory, &made, now(context))?;
    finish(context, &report, &made, &written, ended).await
}

fn now(context: &CommandContext<'_>) -> Timestamp {
    context.job.driver.operator.clock.now()
}

/// A test destroys all nodes at its end, so existing ones need confirmation.
async fn guard(context: &CommandContext<'_>, plan: &Plan) -> Result<(), DriverError> {
    let there = plan.nodes.iter().filter(|node| node.found.is_some());
    let there: Vec<&str> = there.map(|node| node.name.as_str()).collect();
    if there.is_empty() || context.execute.yes {
        return Ok(());
    }
    context
        .ask(&format!(
            "The test destroys all nodes at its end, including existing ones: {}. Continue?",
            there.join(", ")
        ))
        .await
}

async fn create(
    context: &CommandContext<'_>,
    plan: &Plan,
    report: &mut Report,
) -> Result<Option<RunOutcome>, DriverError> {
    let begun = now(context);
    let ended = context.carry_out(plan).await?;
    let run_report = context.screen.report();
    report.add(Phase {
        name: "create",
        description: "Create every node of the manifest",
        passed: Some(ended == Some(RunOutcome::Done)),
        message: error_text(&run_report),
        seconds: now(context).duration_since(begun).as_secs_f64(),
    });
    result::print_errors(&run_report, context.printer);
    Ok(ended)
}

/// Verifies; returns whether a person waited for it.
async fn verify_nodes(
    context: &CommandContext<'_>,
    plan: &Plan,
    report: &mut Report,
) -> Result<bool, DriverError> {
    let begun = now(context);
    let driver = &context.job.driver;
    let work = async |_| context.job.verify(plan).await;
    let Some(checks) = drive(work, &context.screen, driver, context.printer).await? else {
        return Ok(false);
    };
    // Errors, and specs that were not applied and therefore not verified.
    let mut notes = Vec::new();
    for check in &checks {
        let mark = if check.good { "verified" } else { "error" };
        let text = format!("{}: {}", check.node, check.detail);
        context.printer.message(&format!("{mark}: {text}"));
        if !check.good {
            notes.push(text);
        }
        let node = plan.node(&check.node);
        if let Some(notice) = node.and_then(|node| {
            notice_not_applied(&driver.session.catalog, &context.job.resolved, node)
        }) {
            let text = format!("{}: {notice}", check.node);
            context.printer.message(&format!("notice: {text}"));
            notes.push(text);
        }
    }
    report.add(Phase {
        name: "verify",
        description: "Check that every node runs and is reachable",
        passed: Some(checks.iter().all(|check| check.good)),
        message: notes.join("; "),
        seconds: now(context).duration_since(begun).as_secs_f64(),
    });
    Ok(true)
}

async fn destroy(
    context: &CommandContext<'_>,
    options: &PlanOptions,
    report: &mut Report,
) -> Result<Option<RunOutcome>, DriverError> {
    let begun = now(context);
    let options = PlanOptions {
        on_error: options.on_error,
        parallelism: options.parallelism,
        ..PlanOptions::new(Verb::Destroy)
    };
    let plan = context.job.plan(&options).await?;
    let ended = if plan.is_empty() {
        context.screen.expect(&plan);
        Some(RunOutcome::Done)
    } else {
        context.carry_out(&plan).await?
    };
    let run_report = context.screen.report();
    report.add(Phase {
        name: "destroy",
        description: "Destroy every node",
        passed: Some(ended == Some(RunOutcome::Done)),
        message: error_text(&run_report),
        seconds: now(context).duration_since(begun).as_secs_f64(),
    });
    result::print_errors(&run_report, context.printer);
    Ok(ended)
}

fn error_text(run_report: &RunReport) -> String {
    let messages = run_report
        .errors()
        .map(|(row, error)| format!("{}: {}", row.name, error.message));
    messages.collect::<Vec<_>>().join("; ")
}

async fn finish(
    context: &CommandContext<'_>,
    report: &Report,
    made: &RunReport,
    written: &[PathBuf],
    ended: Option<RunOutcome>,
) -> Outcome {
    let printer = context.printer;
    let reports = written.iter().map(|path| path.display().to_string());
    let result = RunResult {
        duration_seconds: wire::run::milliseconds(report.seconds()),
        phases: Some(report.wire_phases()),
        reports: Some(reports.collect()),
        ..wire::run::result(context.verb, made, report.success())
    };
    print_result(result, context.execute.events, printer);
    if !printer.output.json && !context.execute.events {
        printer.data(&result::render(made));
        printer.data(&report.table());
    }
    for path in written {
        printer.message(&format!("Report: {}", path.display()));
    }
    match ended {
        None => return Ok(ExitCode::from(130)),
        Some(ending) if ending != RunOutcome::Done => {
            // It is the removal that did not end well.
            let removal = context.screen.report();
            let items = context.job.driver.undo_items(removal.run).await?;
            let undoable = items.iter().any(|item| item.effect == UndoEffect::Undone);
            let names = (context.job.resolved.name.as_str(), report.host());
            result::ending(ending, &removal, names, undoable, printer);
            return Ok(ExitCode::from(result::exit_code(ending)));
        }
        Some(_) => {}
    }
    printer.message(if report.success() {
        "Passed."
    } else {
        "Failed."
    });
    Ok(ExitCode::from(u8::from(!report.success())))
}
