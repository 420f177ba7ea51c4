//! The steps that apply, destroy, test and plan share: plan, show, confirm, execute, show the result.
//!
//! Nothing is removed without confirmation or `--yes`.

use std::process::ExitCode;
use std::sync::Arc;

use homestak_api::v1::{RollbackOutput, RunEnding, RunResult, RunVerb, kind};
use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{Plan, PlanOptions, Verb};
use homestak_driver::job::{self, refusals};
use homestak_driver::runs::{RunOutcome, RunSummary, UndoEffect, UndoItem, first};
use homestak_driver::select::ManifestSelector;
use homestak_driver::{Driver, DriverError, wire};
use serde::Serialize;

use crate::args::{ExecuteArgs, PlanOptionArgs, VmEngineArg};
use crate::commands::{Outcome, agree};
use crate::runtime::drive;
use crate::settings::Settings;
use crate::ui::progress::Screen;
use crate::ui::{Printer, plan as picture, result};

/// A command on a manifest: its job, its flags, and where results are shown.
pub(super) struct CommandContext<'a> {
    /// The command that was called.
    pub(super) verb: RunVerb,
    pub(super) job: job::Job,
    pub(super) screen: Arc<Screen>,
    pub(super) execute: &'a ExecuteArgs,
    pub(super) printer: &'a Printer,
}

/// Returns the options of a plan.
pub(super) fn options(args: &PlanOptionArgs) -> PlanOptions {
    PlanOptions {
        verb: Verb::Apply,
        prune: args.prune,
        depth: args.depth,
        on_error: args.on_error,
        parallelism: args.parallel.map(|n| n as usize),
    }
}

impl<'a> CommandContext<'a> {
    /// Resolves the manifest and opens what executing it needs.
    pub(super) fn open(
        verb: RunVerb,
        choice: ManifestSelector,
        execute: &'a ExecuteArgs,
        settings: &Settings,
        printer: &'a Printer,
    ) -> Result<Self, DriverError> {
        Self::of_site(verb, choice, execute, None, settings, printer)
    }

    /// The same, with the id of a written plan, and whether the site was given it for the plan.
    pub(super) fn of_site(
        verb: RunVerb,
        choice: ManifestSelector,
        execute: &'a ExecuteArgs,
        site: Option<(&SiteId, bool)>,
        settings: &Settings,
        printer: &'a Printer,
    ) -> Result<Self, DriverError> {
        let screen = Arc::new(Screen::new(printer.output, execute.events));
        let mut driver = settings.driver.clone();
        let engine = execute.vm_engine.map(VmEngineArg::engine);
        driver.vm_engine = engine.unwrap_or(driver.vm_engine);
        let job = job::Job::open(choice, site, settings.session()?, &driver, screen.clone())?;
        Ok(Self {
            verb,
            job,
            screen,
            execute,
            printer,
        })
    }

    /// Plans, shows the plan, asks for confirmation when something is removed, and executes it.
    pub(super) async fn run(&self, options: &PlanOptions, question: &str) -> Outcome {
        if self.execute.dry_run {
            return super::plan::show(&self.job.plan(options).await?, self, options);
        }
        let _lease = self.job.lock().await?;
        let earlier = self.job.unfinished().await?;
        let plan = Arc::new(self.job.plan(options).await?);
        self.execute_plan(&plan, &earlier, question).await
    }

    /// Shows a plan, asks for confirmation when something is removed, and executes it.
    pub(super) async fn execute_plan(
        &self,
        plan: &Arc<Plan>,
        earlier: &[RunSummary],
        question: &str,
    ) -> Outcome {
        self.show(plan)?;
        if plan.is_empty() {
            self.job.take_over(earlier).await?;
            return self.nothing(plan);
        }
        self.confirm(plan, question).await?;
        self.preflight(plan).await?;
        self.job.take_over(earlier).await?;
        let ended = self.carry_out(plan.clone()).await?;
        self.finish(plan, ended).await
    }

    /// Shows a plan before it is executed, and fails when it cannot be.
    pub(super) fn show(&self, plan: &Plan) -> Result<(), DriverError> {
        let more = self.printer.output.verbose > 0;
        self.printer.message(picture::render(plan, more).trim_end());
        refusals(plan)
    }

    /// Asks for confirmation when something is removed.
    async fn confirm(&self, plan: &Plan, question: &str) -> Result<(), DriverError> {
        if self.execute.yes {
            return Ok(());
        }
        if plan.removes() {
            return self.ask(question).await;
        }
        if plan.removes_inside() {
            return self
                .ask("Apply this plan? It removes accounts, packages or files inside nodes, or may do so.")
                .await;
        }
        Ok(())
    }

    /// Asks for confirmation.
    pub(super) async fn ask(&self, question: &str) -> Result<(), DriverError> {
        self.screen.set_asking(true);
        let agreed = agree(false, question, self.printer).await;
        self.screen.set_asking(false);
        agreed
    }

    /// Checks every host, unless `--skip-preflight` is given.
    pub(super) async fn preflight(&self, plan: &Plan) -> Result<(), DriverError> {
        let catalog = &self.job.driver.session.catalog;
        let is_here = |host: &String| catalog.traits_of(host).is_this_machine;
        if self.execute.setup && plan.hosts.iter().any(is_here) {
            crate::commands::local::install(self.printer).await?;
        }
        if plan.verb == Verb::Apply {
            self.job.require_keys().await?;
        }
        if self.execute.skip_preflight {
            return Ok(());
        }
        self.job.preflight(plan).await
    }

    /// Executes a plan; `None` when a second interrupt aborted it.
    pub(super) async fn carry_out(
        &self,
        plan: impl Into<Arc<Plan>>,
    ) -> Result<Option<RunOutcome>, DriverError> {
        let plan = plan.into();
        self.screen.expect(&plan);
        let work = async |interrupt| {
            let job = &self.job;
            job.carry_out(self.verb.name(), plan.clone(), interrupt)
                .await
        };
        drive(work, &self.screen, &self.job.driver, self.printer).await
    }

    /// Shows the result of an empty plan.
    fn nothing(&self, plan: &Plan) -> Outcome {
        self.screen.expect(plan);
        let run_report = self.screen.report();
        let result = RunResult {
            ending: Some(RunEnding::Done),
            ..wire::run::result(self.verb, &run_report, true)
        };
        print_result(result, self.execute.events, self.printer);
        Ok(ExitCode::SUCCESS)
    }

    /// Shows the result of a run, and returns the exit code.
    pub(super) async fn finish(&self, plan: &Plan, ended: Option<RunOutcome>) -> Outcome {
        let driver = &self.job.driver;
        let options = ResultOptions {
            verb: self.verb,
            manifest: &self.job.resolved.name,
            // With several hosts, a new plan needs the same `-H` as this one.
            host: match &self.job.choice.host {
                Some(host) => host,
                None => first(&plan.hosts),
            },
            events: self.execute.events,
        };
        show_result(&options, (driver, &self.screen), ended, self.printer).await
    }
}

/// The names and the format to show a result with.
pub(super) struct ResultOptions<'a> {
    pub(super) verb: RunVerb,
    pub(super) manifest: &'a str,
    pub(super) host: &'a str,
    pub(super) events: bool,
}

impl<'a> ResultOptions<'a> {
    /// Returns those of a recorded run.
    pub(super) fn of(verb: RunVerb, run: &'a RunSummary, events: bool) -> Self {
        Self {
            verb,
            manifest: &run.manifest,
            host: first(&run.hosts),
            events,
        }
    }
}

/// Shows the result of a run, and returns the exit code.
pub(super) async fn show_result(
    options: &ResultOptions<'_>,
    (driver, screen): (&Driver, &Screen),
    ended: Option<RunOutcome>,
    printer: &Printer,
) -> Outcome {
    let run_report = screen.report();
    let wanted = match options.verb {
        RunVerb::Rollback => RunOutcome::RolledBack,
        _ => RunOutcome::Done,
    };
    let items = match ended {
        Some(_) => driver.undo_items(run_report.run).await?,
        None => Vec::new(),
    };
    let of = |effect: UndoEffect| items.iter().filter(move |item| item.effect == effect);
    let left: Vec<&UndoItem> = match ended {
        Some(RunOutcome::RolledBack) => of(UndoEffect::Lost).collect(),
        _ => Vec::new(),
    };
    let success = ended == Some(wanted) && left.is_empty();
    if printer.output.json {
        let mut body = wire::run::result(options.verb, &run_report, success);
        if let Some(RunOutcome::RolledBack | RunOutcome::Stuck) = ended {
            body.not_undone = Some(wire::run::not_reverted(&left, &run_report));
        }
        print_result(body, options.events, printer);
    } else if !options.events {
        printer.data(&result::render(&run_report));
    }
    result::print_errors(&run_report, printer);
    let host = options.host;
    match ended {
        Some(ending) => {
            if ending == RunOutcome::RolledBack && !left.is_empty() {
                printer.message("Reverted, except for what cannot be reverted:");
                for item in &left {
                    printer.message(&format!("  `{}`: {}", item.subject, item.text));
                }
            } else {
                let undoable = of(UndoEffect::Undone).next().is_some();
                let names = (options.manifest, host);
                result::ending(ending, &run_report, names, undoable, printer);
            }
            Ok(match success {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(result::exit_code(ending)),
            })
        }
        None => {
            printer.message(&format!(
                "Aborted. Steps in progress may or may not have completed; homestak manifest resume -M {} -H {host} checks them and continues.",
                options.manifest
            ));
            Ok(ExitCode::from(130))
        }
    }
}

/// Prints the result of a run as JSON, when it is asked for.
pub(super) fn print_result(result: RunResult, events: bool, printer: &Printer) {
    if !printer.output.json {
        return;
    }
    let kind = match result.verb {
        RunVerb::Apply => kind::MANIFEST_APPLY,
        RunVerb::Configure => kind::MANIFEST_CONFIGURE,
        RunVerb::Destroy => kind::MANIFEST_DESTROY,
        RunVerb::Test => kind::MANIFEST_TEST,
        RunVerb::Resume => kind::MANIFEST_RESUME,
        RunVerb::Reidentify => kind::MANIFEST_REIDENTIFY,
        RunVerb::Rollback => {
            let result = RollbackOutput::Run(result);
            return print_document(&kind::MANIFEST_ROLLBACK.document(&result), events, printer);
        }
    };
    print_document(&kind.document(&result), events, printer);
}

/// Prints a document, in one line after lines of events.
fn print_document(document: &impl Serialize, events: bool, printer: &Printer) {
    match events {
        true => printer.json_line(document),
        false => printer.raw_json(document),
    }
}
