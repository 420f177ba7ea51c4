//! What apply, destroy, test and plan have in common: plan, show, ask, carry out, show what came of it.
//!
//! In: a manifest and flags. Out: a plan, or how a run ended.
//! Never: a removal that nobody agreed to.

use std::process::ExitCode;
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{Plan, PlanOptions, Verb};
use homestak_driver::hosts::local;
use homestak_driver::job::{self, refusals};
use homestak_driver::runs::{RowStatus, RunOutcome, RunSummary, UndoEffect, UndoItem, first};
use homestak_driver::select::ManifestSelector;
use homestak_driver::{Driver, DriverError};
use serde_json::json;

use crate::args::{CarryArgs, VmEngineArg, WishArgs};
use crate::commands::Outcome;
use crate::runtime::drive;
use crate::settings::Settings;
use crate::ui::ask::{Answer, ask};
use crate::ui::progress::Screen;
use crate::ui::{Printer, plan as picture, result, with_kind};

/// A command on a manifest: its job, its flags, and where results are shown.
pub(super) struct CommandContext<'a> {
    /// What the person calls it: `apply`, `destroy`, `test`.
    pub(super) verb: &'static str,
    pub(super) job: job::Job,
    pub(super) screen: Arc<Screen>,
    pub(super) carry: &'a CarryArgs,
    pub(super) printer: &'a Printer,
}

/// Turns flags into what is planned.
pub(super) fn options(wish: &WishArgs) -> PlanOptions {
    PlanOptions {
        verb: Verb::Apply,
        prune: wish.prune,
        depth: wish.depth,
        on_error: wish.on_error,
        parallelism: wish.parallel.map(|n| n as usize),
    }
}

impl<'a> CommandContext<'a> {
    /// Resolves the manifest and puts together what carrying it out needs.
    pub(super) fn open(
        verb: &'static str,
        choice: ManifestSelector,
        carry: &'a CarryArgs,
        settings: &Settings,
        printer: &'a Printer,
    ) -> Result<Self, DriverError> {
        Self::of_site(verb, choice, carry, None, settings, printer)
    }

    /// The same, with the id of a written plan, and whether the site was given it for the plan.
    pub(super) fn of_site(
        verb: &'static str,
        choice: ManifestSelector,
        carry: &'a CarryArgs,
        site: Option<(&SiteId, bool)>,
        settings: &Settings,
        printer: &'a Printer,
    ) -> Result<Self, DriverError> {
        let screen = Arc::new(Screen::new(printer.shape, carry.events));
        let mut told = settings.driver.clone();
        let engine = carry.vm_engine.map(VmEngineArg::engine);
        told.vm_engine = engine.unwrap_or(told.vm_engine);
        let job = job::Job::open(choice, site, settings.session()?, &told, screen.clone())?;
        Ok(Self {
            verb,
            job,
            screen,
            carry,
            printer,
        })
    }

    /// Plans, shows the plan, asks when something is removed, and carries it out.
    pub(super) async fn run(&self, options: &PlanOptions, question: &str) -> Outcome {
        if self.carry.dry_run {
            return super::plan::show(&self.job.plan(options).await?, self, options);
        }
        let _lease = self.job.lock().await?;
        let earlier = self.job.unfinished().await?;
        let plan = Arc::new(self.job.plan(options).await?);
        self.carry_through(&plan, &earlier, question).await
    }

    /// Shows a plan, asks when something is removed, and carries it out.
    pub(super) async fn carry_through(
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

    /// Shows a plan before it is carried out, and stops when it cannot be.
    pub(super) fn show(&self, plan: &Plan) -> Result<(), DriverError> {
        let more = self.printer.shape.verbose > 0;
        self.printer.say(picture::render(plan, more).trim_end());
        refusals(plan)
    }

    /// Asks when something is removed.
    async fn confirm(&self, plan: &Plan, question: &str) -> Result<(), DriverError> {
        if self.carry.yes {
            return Ok(());
        }
        if plan.removes() {
            return self.ask(question).await;
        }
        if plan.removes_inside() {
            return self
                .ask("Carry this out? It removes accounts, packages or files inside nodes, or may do so.")
                .await;
        }
        Ok(())
    }

    /// Asks, whatever it is about.
    pub(super) async fn ask(&self, question: &str) -> Result<(), DriverError> {
        let verb = self.verb;
        match ask(question, self.printer).await {
            Answer::Yes => Ok(()),
            Answer::No => Err(DriverError::refused("Nothing was done.")),
            Answer::Nobody => Err(DriverError::refused(
                "This removes guests, or accounts and data inside them, or may do so, and there is no terminal to ask at.",
            )
            .hint(format!(
                "homestak manifest {verb} ... --dry-run shows what goes; --yes agrees"
            ))),
        }
    }

    /// Checks every host, unless that is not wanted.
    pub(super) async fn preflight(&self, plan: &Plan) -> Result<(), DriverError> {
        if self.carry.setup && plan.hosts.iter().any(|host| host == local::LOCAL) {
            crate::commands::local::install(self.printer).await?;
        }
        if plan.verb == Verb::Apply {
            self.job.require_keys().await?;
        }
        if self.carry.skip_preflight {
            return Ok(());
        }
        self.job.preflight(plan).await
    }

    /// Carries a plan out; `None` when a person left at once.
    pub(super) async fn carry_out(
        &self,
        plan: impl Into<Arc<Plan>>,
    ) -> Result<Option<RunOutcome>, DriverError> {
        let plan = plan.into();
        self.screen.expect(&plan);
        let work = async |interrupt| {
            let job = &self.job;
            job.carry_out(self.verb, plan.clone(), interrupt).await
        };
        drive(work, &self.screen, &self.job.driver, self.printer).await
    }

    /// Shows what came of a plan that had nothing in it.
    fn nothing(&self, plan: &Plan) -> Outcome {
        self.screen.expect(plan);
        let run_report = self.screen.report();
        self.finish_json(|| {
            let mut body = result::json(self.verb, &run_report, true);
            body["ending"] = "done".into();
            body
        });
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the result as JSON, when it is asked for.
    pub(super) fn finish_json(&self, body: impl FnOnce() -> serde_json::Value) {
        if !self.printer.shape.json {
            return;
        }
        let kind = format!("manifest.{}", self.verb);
        if self.carry.events {
            self.printer.json_line(&with_kind(&kind, body()));
        } else {
            self.printer.json(&kind, body());
        }
    }

    /// Shows what came of a run, and returns the exit code.
    pub(super) async fn finish(&self, plan: &Plan, ended: Option<RunOutcome>) -> Outcome {
        let driver = &self.job.driver;
        let shown = Shown {
            verb: self.verb,
            manifest: &self.job.resolved.name,
            // Which of several hosts a new plan needs is what was said for this one.
            host: match &self.job.choice.host {
                Some(host) => host,
                None => first(&plan.hosts),
            },
            events: self.carry.events,
        };
        show_result(&shown, (driver, &self.screen), ended, self.printer).await
    }
}

/// Whose result is shown, and how.
pub(super) struct Shown<'a> {
    pub(super) verb: &'a str,
    pub(super) manifest: &'a str,
    pub(super) host: &'a str,
    pub(super) events: bool,
}

impl<'a> Shown<'a> {
    /// The result of what was done to a recorded run.
    pub(super) fn of(verb: &'a str, run: &'a RunSummary, events: bool) -> Self {
        Self {
            verb,
            manifest: &run.manifest,
            host: first(&run.hosts),
            events,
        }
    }
}

/// Shows what came of a run, and returns the exit code.
pub(super) async fn show_result(
    shown: &Shown<'_>,
    (driver, screen): (&Driver, &Screen),
    ended: Option<RunOutcome>,
    printer: &Printer,
) -> Outcome {
    let run_report = screen.report();
    let kind = format!("manifest.{}", shown.verb);
    let wanted = match shown.verb {
        "rollback" => RunOutcome::RolledBack,
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
    if printer.shape.json {
        let mut body = with_kind(&kind, result::json(shown.verb, &run_report, success));
        if let Some(RunOutcome::RolledBack | RunOutcome::Stuck) = ended {
            let left = left.iter().map(|item| (&item.subject, &item.text));
            let stuck = run_report
                .errors()
                .filter(|(row, _)| row.status == RowStatus::Stuck);
            let stuck = stuck.map(|(row, trouble)| (&row.name, &trouble.message));
            body["not_undone"] = left
                .chain(stuck)
                .map(|(name, text)| json!({ "name": name, "text": text }))
                .collect();
        }
        if shown.events {
            printer.json_line(&body);
        } else {
            printer.raw_json(&body);
        }
    } else if !shown.events {
        printer.data(&result::render(&run_report));
    }
    result::troubles(&run_report, printer);
    let host = shown.host;
    match ended {
        Some(ending) => {
            if ending == RunOutcome::RolledBack && !left.is_empty() {
                printer.say("Undone, except for what cannot be undone:");
                for item in &left {
                    printer.say(&format!("  `{}`: {}", item.subject, item.text));
                }
            } else {
                let undoable = of(UndoEffect::Undone).next().is_some();
                let names = (shown.manifest, host);
                result::ending(ending, &run_report, names, undoable, printer);
            }
            Ok(match success {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(result::exit_code(ending)),
            })
        }
        None => {
            printer.say(&format!(
                "Left at once. What was being done may be done or not; homestak manifest resume -M {} -H {host} looks and goes on.",
                shown.manifest
            ));
            Ok(ExitCode::from(130))
        }
    }
}
