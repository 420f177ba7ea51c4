//! What apply, destroy, test and plan have in common: look, plan, show, ask, carry out.
//!
//! In: a manifest and flags. Out: a plan, or how a run ended.
//! Never: a removal that nobody agreed to; a plan with refusals carried out.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{OnError, Options, Plan, Verb};
use homestak_core::resolve::{Request, Resolved};
use homestak_engine::chronicle::Status;
use homestak_engine::journal::{Ending, Lease, RunHead, RunId, Scope};
use homestak_engine::operate::{UndoEffect, UndoItem, rollback_plan};
use homestak_providers::pve::preflight::Severity;
use homestak_site::Chosen;
use serde_json::json;

use super::runs::{has_runs, is_unfinished, lost_id, of_others, whose};
use super::select::{Selected, request, select};
use crate::args::{CarryArgs, ManifestArgs, OnErrorArg, VmEngineArg, WishArgs};
use crate::commands::Outcome;
use crate::commands::host::preflight::before_a_run;
use crate::commands::local::{check_machine, install};
use crate::connect::failed;
use crate::error::CommandError;
use crate::local_host::LOCAL;
use crate::operator::{Bench, hold, scopes};
use crate::places::SIM;
use crate::settings::Settings;
use crate::ui::ask::{Answer, ask};
use crate::ui::progress::Screen;
use crate::ui::{Printer, count, plan as picture, result, with_kind};

/// A manifest on its way.
pub(super) struct Job<'a> {
    /// What the person calls it: `apply`, `destroy`, `test`.
    pub(super) verb: &'static str,
    pub(super) resolved: Resolved,
    pub(super) request: Request,
    /// How the manifest was named.
    pub(super) manifest: ManifestArgs,
    pub(super) bench: Bench,
    pub(super) carry: &'a CarryArgs,
    pub(super) printer: &'a Printer,
}

/// Turns flags into what is planned.
pub(super) fn options(wish: &WishArgs) -> Options {
    Options {
        verb: Verb::Apply,
        prune: wish.prune,
        depth: wish.depth,
        on_error: wish.on_error.map(on_error),
        parallelism: wish.parallel.map(|n| n as usize),
    }
}

pub(super) fn on_error(arg: OnErrorArg) -> OnError {
    match arg {
        OnErrorArg::Stop => OnError::Stop,
        OnErrorArg::Rollback => OnError::Rollback,
        OnErrorArg::Continue => OnError::Continue,
    }
}

impl<'a> Job<'a> {
    /// Resolves the manifest and puts together what carrying it out needs.
    pub(super) fn open(
        verb: &'static str,
        args: &ManifestArgs,
        carry: &'a CarryArgs,
        settings: &Settings,
        printer: &'a Printer,
    ) -> Result<Self, CommandError> {
        Self::of_site(verb, args, carry, None, settings, printer)
    }

    /// The same, with the id of a written plan, and whether the site was given it for the plan.
    pub(super) fn of_site(
        verb: &'static str,
        args: &ManifestArgs,
        carry: &'a CarryArgs,
        site: Option<(&SiteId, bool)>,
        settings: &Settings,
        printer: &'a Printer,
    ) -> Result<Self, CommandError> {
        let Selected {
            mut session,
            resolved,
            ..
        } = select(args, settings, printer)?;
        session.id()?;
        if let Some((id, is_new)) = site {
            session.expect_id(id, is_new)?;
        }
        let request = request(args, &session)?;
        session.limit(&resolved.settings.limits());
        let screen = Screen::new(printer.shape, carry.events);
        let engine = carry.vm_engine.map(VmEngineArg::engine);
        let bench = Bench::with_engine(Arc::new(session), settings, screen, engine)?;
        Ok(Self {
            verb,
            resolved,
            request,
            manifest: args.clone(),
            bench,
            carry,
            printer,
        })
    }

    /// Returns what excludes what.
    pub(super) fn scopes(&self) -> Result<Vec<Scope>, CommandError> {
        Ok(scopes(self.bench.session.id()?, &self.resolved))
    }

    /// Makes sure that nobody else works on the same, and that a site without an id is not one
    /// that has lost it.
    pub(super) async fn hold(&self) -> Result<Box<dyn Lease>, CommandError> {
        let lease = hold(self.bench.journal(), &self.scopes()?).await?;
        let session = &self.bench.session;
        if session.has_id {
            return Ok(lease);
        }
        let mut others = self.of_others().await?;
        if others.is_empty() && matches!(session.find.chosen, Chosen::Directory(_)) {
            others = self.of_any_manifest().await?;
        }
        if others.is_empty() {
            return Ok(lease);
        }
        session.require_none_yet()?;
        let refused = CommandError::refused("The site has no id, and it may have had one.");
        let hints = others.iter().map(whose);
        Err(hints
            .fold(refused, CommandError::hint)
            .hint("homestak site new-id gives it an id of its own"))
    }

    /// Returns runs of other sites on the same manifest and hosts.
    async fn of_others(&self) -> Result<Vec<RunHead>, CommandError> {
        let scopes = self.scopes()?;
        let hosts: Vec<&str> = scopes.iter().map(|scope| &*scope.host).collect();
        let (journal, site) = (self.bench.journal(), self.bench.session.id()?);
        of_others(
            Some(&self.resolved.name),
            &hosts,
            journal.as_ref(),
            Some(site),
        )
        .await
    }

    /// Returns runs of other sites on any manifest, unless an older homestak left some without a
    /// site: then this site may be one that never had an id.
    async fn of_any_manifest(&self) -> Result<Vec<RunHead>, CommandError> {
        let journal = self.bench.journal();
        let runs = journal.runs(None).await?;
        if runs.iter().any(|run| run.site.is_none()) {
            return Ok(Vec::new());
        }
        of_others(None, &[], journal.as_ref(), Some(self.bench.session.id()?)).await
    }

    /// Looks and plans.
    pub(super) async fn plan(&self, options: &Options) -> Result<Plan, CommandError> {
        let Self {
            resolved, request, ..
        } = self;
        let plan = self
            .bench
            .plan(resolved, request, options, self.printer)
            .await?;
        self.notice_other_ids(&plan).await?;
        Ok(plan)
    }

    /// Names other sites that this one may be, when it has no id or the plan finds nothing of its
    /// own: by runs on the same manifest and hosts, and by guests of a manifest of that name.
    async fn notice_other_ids(&self, plan: &Plan) -> Result<(), CommandError> {
        let finds_none = plan.nodes.iter().all(|node| node.found.is_none());
        let removes_none = plan.verb != Verb::Apply && plan.is_empty();
        let mut named = BTreeSet::new();
        if !self.bench.session.has_id || removes_none {
            for run in self.of_others().await? {
                self.printer.say(&format!("notice: {}", whose(&run)));
                named.extend(run.site);
            }
        }
        let (journal, own) = (self.bench.journal(), self.bench.session.id()?);
        // A site that has runs of its own has not lost its id.
        let lost = finds_none && !has_runs(journal.as_ref(), own).await?;
        let guests = plan
            .foreign
            .iter()
            .filter(|guest| lost && guest.manifest.as_deref() == Some(plan.manifest.as_str()));
        for id in guests.filter_map(|guest| guest.site.as_ref()) {
            if id != own && named.insert(id.clone()) {
                let notice = lost_id(&plan.manifest, id);
                self.printer.say(&format!("notice: {notice}"));
            }
        }
        Ok(())
    }

    /// Looks, plans, shows the plan, asks when something is removed, and carries it out.
    pub(super) async fn run(&self, options: &Options, question: &str) -> Outcome {
        if self.carry.dry_run {
            return super::plan::show(&self.plan(options).await?, self, options);
        }
        let _lease = self.hold().await?;
        let earlier = self.unfinished().await?;
        let plan = self.plan(options).await?;
        self.carry_through(&plan, &earlier, question).await
    }

    /// Shows a plan, asks when something is removed, and carries it out.
    pub(super) async fn carry_through(
        &self,
        plan: &Plan,
        earlier: &[RunHead],
        question: &str,
    ) -> Outcome {
        self.show(plan)?;
        if plan.is_empty() {
            self.take_over(earlier).await?;
            return self.nothing(plan);
        }
        self.confirm(plan, question)?;
        self.preflight(plan).await?;
        self.take_over(earlier).await?;
        let ended = self.carry_out(plan).await?;
        self.finish(plan, ended).await
    }

    /// Returns earlier runs on the same manifest and hosts that were not brought to an end.
    pub(super) async fn unfinished(&self) -> Result<Vec<RunHead>, CommandError> {
        let scopes = self.scopes()?;
        let site = self.bench.session.id()?;
        let shares = |run: &RunHead| {
            run.is_of(site) && scopes.iter().any(|scope| run.hosts.contains(&scope.host))
        };
        let runs = self.bench.journal().runs(Some(&self.resolved.name)).await?;
        let mut runs: Vec<RunHead> = runs.into_iter().filter(shares).collect();
        // One that failed stays as it ended, but only the newest can still be resumed.
        let newest = runs.first().map(|run| run.id);
        runs.retain(|run| {
            let open = matches!(run.ended, None | Some((_, Ending::Stopped)));
            open || is_unfinished(run) && Some(run.id) == newest
        });
        Ok(runs)
    }

    /// Says that earlier runs are left behind, and ends those that are still open.
    pub(super) async fn take_over(&self, runs: &[RunHead]) -> Result<(), CommandError> {
        for run in runs {
            let how = run.ended.map_or("was cut off", |(_, ending)| match ending {
                Ending::Stopped => "was stopped",
                Ending::Stuck => "got stuck",
                _ => "failed",
            });
            self.printer.say(&format!(
                "Run {} ({}) {how}; this one takes over from what is there.",
                run.id, run.verb
            ));
        }
        let open = |run: &&RunHead| matches!(run.ended, None | Some((_, Ending::Stopped)));
        let open: Vec<RunHead> = runs.iter().filter(open).cloned().collect();
        self.bench.supersede(&open).await
    }

    /// Shows a plan before it is carried out, and stops when it cannot be.
    pub(super) fn show(&self, plan: &Plan) -> Result<(), CommandError> {
        let more = self.printer.shape.verbose > 0;
        self.printer.say(picture::render(plan, more).trim_end());
        refusals(plan)
    }

    /// Asks when something is removed.
    pub(super) fn confirm(&self, plan: &Plan, question: &str) -> Result<(), CommandError> {
        if self.carry.yes {
            return Ok(());
        }
        if plan.removes() {
            return self.ask(question);
        }
        if plan.removes_inside() {
            return self
                .ask("Carry this out? It removes accounts, packages or files inside nodes, or may do so.");
        }
        Ok(())
    }

    /// Asks, whatever it is about.
    pub(super) fn ask(&self, question: &str) -> Result<(), CommandError> {
        let verb = self.verb;
        match ask(question, self.printer) {
            Answer::Yes => Ok(()),
            Answer::No => Err(CommandError::refused("Nothing was done.")),
            Answer::Nobody => Err(CommandError::refused(
                "This removes guests, or accounts and data inside them, or may do so, and there is no terminal to ask at.",
            )
            .hint(format!(
                "homestak manifest {verb} ... --dry-run shows what goes; --yes agrees"
            ))),
        }
    }

    /// Checks every real host, unless that is not wanted.
    pub(super) async fn preflight(&self, plan: &Plan) -> Result<(), CommandError> {
        if self.carry.setup && plan.hosts.iter().any(|host| host == LOCAL) {
            install(self.printer)?;
        }
        if plan.verb == Verb::Apply {
            // Before anything is made, rather than in the middle of it.
            let own = self.bench.keyring.own();
            own.map_err(|error| failed("the driver", &error))?;
        }
        if self.carry.skip_preflight {
            return Ok(());
        }
        let makes = (plan.verb == Verb::Apply).then_some(&self.resolved);
        let mut failures = Vec::new();
        for host in plan.hosts.iter().filter(|host| *host != SIM) {
            self.printer.detail(&format!("checking {host}"));
            let findings = if host == LOCAL {
                check_machine(&self.bench.local, makes)?
            } else {
                before_a_run(host, makes, &self.bench.session).await?
            };
            for finding in findings {
                let text = format!("{host}: {}: {}", finding.check, finding.detail);
                match finding.severity {
                    Severity::Good => {}
                    Severity::Unknown => self.printer.detail(&format!("unknown: {text}")),
                    Severity::Warning => self.printer.say(&format!("warning: {text}")),
                    Severity::Failure => {
                        self.printer.say(&format!("failure: {text}"));
                        failures.push(finding.fix);
                    }
                }
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        let refused = CommandError::refused(format!(
            "The hosts are not ready: {}.",
            count(failures.len(), "failure")
        ));
        let refused = failures
            .into_iter()
            .filter(|fix| !fix.is_empty())
            .fold(refused, CommandError::hint);
        Err(refused.hint("--skip-preflight goes on without these checks"))
    }

    /// Carries a plan out; `None` when a person left at once.
    pub(super) async fn carry_out(&self, plan: &Plan) -> Result<Option<Ending>, CommandError> {
        // What is written down is found again by the site's id.
        self.bench.session.keep_id(self.printer)?;
        self.bench.screen.expect(plan);
        let operator = &self.bench.operator;
        let ended = self
            .bench
            .drive(
                async |interrupt| operator.carry_out(self.verb, plan, interrupt).await,
                self.printer,
            )
            .await?;
        Ok(ended.map(|(_, ending)| ending))
    }

    /// Shows what came of a plan that had nothing in it.
    pub(super) fn nothing(&self, plan: &Plan) -> Outcome {
        self.bench.screen.expect(plan);
        let chronicle = self.bench.screen.chronicle();
        self.finish_json(|| {
            let mut body = result::json(self.verb, &chronicle, true);
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
    pub(super) async fn finish(&self, plan: &Plan, ended: Option<Ending>) -> Outcome {
        let run = self.bench.screen.chronicle().run;
        let left = self.bench.lost(ended, run).await?;
        let shown = Shown {
            verb: self.verb,
            manifest: &self.resolved.name,
            // Which of several hosts a new plan needs is what was said for this one.
            host: match &self.manifest.host {
                Some(host) => host,
                None => first(&plan.hosts),
            },
            events: self.carry.events,
        };
        show_result(&shown, &self.bench, ended, &left, self.printer).await
    }
}

/// Whose result is shown, and how.
pub(super) struct Shown<'a> {
    pub(super) verb: &'a str,
    pub(super) manifest: &'a str,
    pub(super) host: &'a str,
    pub(super) events: bool,
}

/// Returns the host that a run is named by.
pub(super) fn first(hosts: &[String]) -> &str {
    hosts.first().map_or("", String::as_str)
}

/// Tells whether rolling a run back would undo anything of it.
pub(super) async fn is_undoable(bench: &Bench, run: Option<RunId>) -> Result<bool, CommandError> {
    let Some(id) = run else {
        return Ok(false);
    };
    let run = bench.journal().run(id).await?;
    let items = run.as_ref().map(rollback_plan).unwrap_or_default();
    Ok(items.iter().any(|item| item.effect == UndoEffect::Undone))
}

/// Shows what came of a run, and returns the exit code.
pub(super) async fn show_result(
    shown: &Shown<'_>,
    bench: &Bench,
    ended: Option<Ending>,
    left: &[UndoItem],
    printer: &Printer,
) -> Outcome {
    let chronicle = bench.screen.chronicle();
    let kind = format!("manifest.{}", shown.verb);
    let wanted = match shown.verb {
        "rollback" => Ending::RolledBack,
        _ => Ending::Done,
    };
    let success = ended == Some(wanted) && left.is_empty();
    if printer.shape.json {
        let mut body = with_kind(&kind, result::json(shown.verb, &chronicle, success));
        if let Some(Ending::RolledBack | Ending::Stuck) = ended {
            let left = left.iter().map(|item| (&item.subject, &item.text));
            let stuck = chronicle
                .troubles()
                .filter(|(row, _)| row.status == Status::Stuck);
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
        printer.data(&result::render(&chronicle));
    }
    result::troubles(&chronicle, printer);
    let host = shown.host;
    match ended {
        Some(ending) => {
            if ending == Ending::RolledBack && !left.is_empty() {
                printer.say("Undone, except for what cannot be undone:");
                for item in left {
                    printer.say(&format!("  `{}`: {}", item.subject, item.text));
                }
            } else {
                let undoable = is_undoable(bench, chronicle.run).await?;
                let names = (shown.manifest, host);
                result::ending(ending, &chronicle, names, undoable, printer);
            }
            Ok(ExitCode::from(result::exit_code(ending)))
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

/// Stops a plan that cannot be carried out.
pub(super) fn refusals(plan: &Plan) -> Result<(), CommandError> {
    if plan.refusals.is_empty() {
        return Ok(());
    }
    let refused = CommandError::refused(format!(
        "The plan cannot be carried out: {}.",
        count(plan.refusals.len(), "refusal")
    ));
    Err(CommandError {
        diagnostics: Some(Box::new(json!(plan.refusals))),
        ..refused
    })
}
