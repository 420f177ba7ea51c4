//! Executes a decision. It may be killed at any point and repeated. Nothing is changed before
//! packages are known to be available and files have been checked as far as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_core::converge::{
    Change, ConvergeStep, Decision, FactScope, Facts, Handling, KEY_FILES, Managed, Resource,
    State, UndoPlan, UserFact, decide,
};

use crate::error::AgentError;
use crate::settings;
use crate::system::System;

/// The observed machine, and the decision that follows.
pub(crate) struct Observation {
    pub(crate) facts: Facts,
    pub(crate) last: State,
    pub(crate) decision: Decision,
}

/// Observes the machine and decides.
pub(crate) fn observe(system: &dyn System, wanted: &[Resource]) -> Result<Observation, AgentError> {
    let last = system.load_state()?;
    let facts = system.facts(&FactScope::of(wanted, &last))?;
    let mut decision = decide(wanted, &facts, &last);
    let (changes, steps) = (decision.changes.len(), decision.steps.len());
    tracing::debug!(changes, steps, refused = decision.refused.len(), "decided");
    let errors = system.config_errors(&decision.steps)?;
    if !errors.is_empty() {
        decision.refusals.extend(errors);
        decision.steps.clear();
    }
    Ok(Observation {
        facts,
        last,
        decision,
    })
}

/// Returns an error when something is refused.
pub(crate) fn require(decision: &Decision) -> Result<(), AgentError> {
    if decision.refusals.is_empty() {
        return Ok(());
    }
    Err(AgentError::Refused(decision.refusals.clone()))
}

/// Changes that were refused while everything else was done: the reason by the id of the change.
pub(crate) type Refused = BTreeMap<String, String>;

/// Returns an error when any change was refused.
pub(crate) fn require_all(refused: &Refused) -> Result<(), AgentError> {
    if refused.is_empty() {
        return Ok(());
    }
    let reasons = refused.iter().map(|(id, why)| format!("{id}: {why}"));
    Err(AgentError::PartlyRefused(reasons.collect()))
}

/// Is notified of the progress of a run, and can stop it.
pub(crate) trait ApplyObserver {
    /// The differences are known; nothing was changed yet.
    fn started(&mut self, _changes: &[Change]) {}
    /// A step begins.
    fn step(&mut self, _step: &ConvergeStep) {}
    /// Packages are done, and the first of the other steps follows. `back` is the state to record when
    /// these steps are reverted.
    fn before_changes(&mut self, _: &Decision, _: &Facts, _back: State) -> Result<(), AgentError> {
        Ok(())
    }
    /// All steps are done, and verified on this node.
    fn verified(&mut self) -> Result<(), AgentError> {
        Ok(())
    }
    /// The run failed. Returns the error to report.
    fn failed(&mut self, error: AgentError) -> AgentError {
        error
    }
}

/// Ignores everything.
pub(crate) struct NoObserver;

impl ApplyObserver for NoObserver {}

/// Executes a decision, and returns the changes that were refused.
pub(crate) fn carry_out(
    system: &mut dyn System,
    wanted: &[Resource],
    observation: Observation,
    observer: &mut dyn ApplyObserver,
) -> Result<Refused, AgentError> {
    require(&observation.decision)?;
    let Observation {
        mut facts,
        last,
        mut decision,
    } = observation;
    if decision.steps.is_empty() {
        settle(system, &last, &decision)?;
        return Ok(decision.refused);
    }
    let before = last.clone();
    let mut run = Run {
        system,
        observer,
        last,
        done: Vec::new(),
        crash_point: CrashPoint(settings::crash_after()),
    };
    if let Some(step @ ConvergeStep::Packages { .. }) = decision.steps.first() {
        run.change_packages(step, &decision.intent)?;
        // Packages bring files, units and users, so everything is observed again.
        let done = vec![step.description()];
        facts = run.system.facts(&FactScope::of(wanted, &run.last))?;
        decision = decide(wanted, &facts, &run.last);
        require(&decision).map_err(|first| AgentError::Incomplete {
            first: Box::new(first),
            done,
            left: Vec::new(),
        })?;
    }
    let steps = &decision.steps;
    run.system.remove_marker()?;
    run.system.back_up(wanted, steps, &facts);
    let back = UndoPlan::reverted_state(&before, &run.last);
    run.observer.before_changes(&decision, &facts, back)?;
    run.record_intent(&decision.intent, steps, false)?;
    let result = run.execute_all(steps);
    if let Err(first) = run.system.restore_rejected(steps, result) {
        let mut done = run.done;
        done.retain(|step| !first.reverts(step));
        let left = steps.iter().filter(|step| !done.contains(*step));
        return Err(if done.is_empty() {
            first
        } else {
            AgentError::Incomplete {
                first: Box::new(first),
                left: left.map(ConvergeStep::description).collect(),
                done: done.iter().map(ConvergeStep::description).collect(),
            }
        });
    }
    run.crash_point.pass();
    let seen = verify(run.system, wanted, &run.last)?;
    run.observer.verified()?;
    settle(run.system, &run.last, &seen)?;
    Ok(seen.refused)
}

/// A run in progress.
struct Run<'a> {
    system: &'a mut dyn System,
    observer: &'a mut dyn ApplyObserver,
    /// The recorded state.
    last: State,
    done: Vec<ConvergeStep>,
    crash_point: CrashPoint,
}

impl Run<'_> {
    fn change_packages(&mut self, step: &ConvergeStep, intent: &Managed) -> Result<(), AgentError> {
        let ConvergeStep::Packages { install, remove } = step else {
            return Ok(());
        };
        let before = self.last.clone();
        let _span = tracing::error_span!("step", name = step.description()).entered();
        // Resolving packages may take long, so the step is reported first.
        self.observer.step(step);
        self.system
            .prepare_packages(install, remove, before.in_packages)?;
        self.system.remove_marker()?;
        self.record_intent(intent, &[], true)?;
        self.crash_point.pass();
        if let Err(failure) = self.system.change_packages(install, remove) {
            if !failure.begun {
                // The first error is the one to report.
                _ = self.system.save_state(&before);
            }
            return Err(failure.error);
        }
        tracing::info!("done");
        self.record_intent(&Managed::default(), &[], false)
    }

    /// Records what is about to be done, so that a later run can finish or remove it.
    fn record_intent(
        &mut self,
        managed: &Managed,
        steps: &[ConvergeStep],
        in_packages: bool,
    ) -> Result<(), AgentError> {
        self.last.managed = self.last.managed.with(managed);
        self.last.in_packages = in_packages;
        let follow = steps.iter().filter(|step| step.follows_files());
        self.last.pending.extend(follow.cloned());
        self.system.save_state(&self.last)
    }

    /// Executes steps. Users are created before their files are staged; all other files are staged and
    /// checked before the first step.
    fn execute_all(&mut self, steps: &[ConvergeStep]) -> Result<(), AgentError> {
        let is_user = |step: &&ConvergeStep| {
            matches!(
                step,
                ConvergeStep::CreateUser { .. } | ConvergeStep::EnableLogin { .. }
            )
        };
        let created = steps.iter().filter_map(|step| match step {
            ConvergeStep::CreateUser { name, .. } => Some(name.as_str()),
            _ => None,
        });
        let created: BTreeSet<&str> = created.collect();
        let (later, now): (Vec<_>, Vec<_>) =
            steps.iter().partition(|step| needs_user(step, &created));
        let (users, others): (Vec<_>, Vec<_>) = steps.iter().partition(is_user);
        self.system.stage(&now)?;
        for step in users {
            self.execute(step)?;
        }
        self.system.stage(&later)?;
        for step in others {
            self.execute(step)?;
            if self.last.pending.remove(step) {
                self.system.save_state(&self.last)?;
            }
        }
        Ok(())
    }

    fn execute(&mut self, step: &ConvergeStep) -> Result<(), AgentError> {
        let _span = tracing::error_span!("step", name = step.description()).entered();
        self.observer.step(step);
        self.crash_point.pass();
        self.system.execute(step)?;
        tracing::info!("done");
        self.done.push(step.clone());
        Ok(())
    }
}

/// Returns whether a step needs a user who is created by this run: as owner, or because the file is
/// below their home directory, which root would own otherwise.
fn needs_user(step: &ConvergeStep, created: &BTreeSet<&str>) -> bool {
    let (ConvergeStep::Directory { path, owner, .. } | ConvergeStep::Write { path, owner, .. }) =
        step
    else {
        return false;
    };
    let home = Path::new(path).strip_prefix("/home").ok(); // tidy: where `useradd` of every Debian puts it
    let of = home.and_then(|rest| rest.iter().next()?.to_str());
    created.contains(owner.as_str()) || of.is_some_and(|name| created.contains(name))
}

/// How often the network and services are observed until they have settled, five times a second.
const MAX_CHECKS: usize = 50;

/// Observes the machine until nothing differs. Differences in files that a user can change are refused,
/// and do not fail the run.
fn verify(
    system: &mut dyn System,
    wanted: &[Resource],
    last: &State,
) -> Result<Decision, AgentError> {
    let mut check = last.clone();
    check.pending.clear();
    let mut n_checks = 0;
    loop {
        let facts = system.facts(&FactScope::of(wanted, &check))?;
        let mut seen = decide(wanted, &facts, &check);
        require(&seen)?;
        let enforced = |change: &&Change| change.handling == Handling::Enforce;
        let open: Vec<&Change> = seen.changes.iter().filter(enforced).collect();
        if open.iter().all(|change| is_users(system, change)) {
            let skipped = system.skipped();
            for change in open {
                let why = files_of(change, &facts).find_map(|path| skipped.get(&path));
                let why = why.map_or("it was changed while it was written", String::as_str);
                seen.refused.insert(change.id.clone(), why.to_owned());
            }
            return Ok(seen);
        }
        let is_changing = |change: &&Change| {
            change.resource == "network"
                || matches!(
                    change.found.as_str(),
                    "activating" | "deactivating" | "reloading"
                )
        };
        n_checks += 1;
        if n_checks == MAX_CHECKS || !seen.changes.iter().any(|change| is_changing(&change)) {
            return Err(AgentError::StillDiffers(seen.changes));
        }
        system.wait();
    }
}

/// Returns the files that correcting a difference writes.
fn files_of(change: &Change, facts: &Facts) -> impl Iterator<Item = String> {
    let (file, user) = match change.resource.split_once(':') {
        Some(("file", path)) => (Some(path.to_owned()), None),
        Some(("keys", name)) => (None, facts.users.get(name)),
        _ => (None, None),
    };
    let of_user = |user: &UserFact| KEY_FILES.map(|name| format!("{}/{name}", user.home));
    file.into_iter()
        .chain(user.map(of_user).into_iter().flatten())
}

/// Returns whether a user can change the file of a difference at any time.
fn is_users(system: &dyn System, change: &Change) -> bool {
    match change.resource.split_once(':') {
        Some(("keys", user)) => user != "root",
        Some(("file", path)) => system.is_users(path),
        _ => false,
    }
}

fn settle(system: &mut dyn System, last: &State, decision: &Decision) -> Result<(), AgentError> {
    let mut next = decision.next.clone();
    next.pending.clear();
    if *last == next {
        return Ok(());
    }
    system.save_state(&next)
}

/// Aborts the program after a number of steps, in tests.
struct CrashPoint(Option<usize>);

impl CrashPoint {
    fn pass(&mut self) {
        match self.0 {
            Some(0) => std::process::abort(),
            Some(left) => self.0 = Some(left - 1),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
