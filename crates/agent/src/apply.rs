//! A decision carried out, so that it may die at any moment and be begun again. Nothing is changed
//! before it is known that packages are available and files were checked as far as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_core::converge::{
    Change, Decision, FactScope, Facts, Handling, Managed, Resource, State, Step, UndoPlan, decide,
};

use crate::error::AgentError;
use crate::settings;
use crate::system::System;

/// The machine looked at, and what follows.
pub(crate) struct Observation {
    pub(crate) facts: Facts,
    pub(crate) last: State,
    pub(crate) decision: Decision,
}

/// Looks at the machine and decides.
pub(crate) fn look(system: &dyn System, wanted: &[Resource]) -> Result<Observation, AgentError> {
    let last = system.recall()?;
    let facts = system.facts(&FactScope::of(wanted, &last))?;
    let mut decision = decide(wanted, &facts, &last);
    let faults = system.faults(&decision.steps)?;
    if !faults.is_empty() {
        decision.refusals.extend(faults);
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

/// What was refused while everything else was done: why, by the id of a change.
pub(crate) type Refused = BTreeMap<String, String>;

/// Returns an error when anything was refused by itself.
pub(crate) fn require_all(refused: &Refused) -> Result<(), AgentError> {
    if refused.is_empty() {
        return Ok(());
    }
    let words = refused.iter().map(|(id, why)| format!("{id}: {why}"));
    Err(AgentError::Partly(words.collect()))
}

/// Who is notified of a run, and may keep it from going on.
pub(crate) trait Observer {
    /// What differs, before anything is done.
    fn begins(&mut self, _changes: &[Change]) {}
    /// A step begins.
    fn step(&mut self, _step: &Step) {}
    /// Packages are as they should be, and the first of the other steps is about to be done.
    /// `back` is what is remembered once they are taken back.
    fn keeps(&mut self, _: &Decision, _: &Facts, _back: State) -> Result<(), AgentError> {
        Ok(())
    }
    /// All is done, and holds as far as the node can tell.
    fn holds(&mut self) -> Result<(), AgentError> {
        Ok(())
    }
    /// It failed. Returns what is told of it.
    fn failed(&mut self, error: AgentError) -> AgentError {
        error
    }
}

/// Nobody hears, and nothing is kept.
pub(crate) struct Quiet;

impl Observer for Quiet {}

/// Does what was decided, and returns what was refused by itself.
pub(crate) fn carry_out(
    system: &mut dyn System,
    wanted: &[Resource],
    look: Observation,
    observer: &mut dyn Observer,
) -> Result<Refused, AgentError> {
    require(&look.decision)?;
    let Observation {
        mut facts,
        last,
        mut decision,
    } = look;
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
        fuse: Fuse(settings::crash_after()),
    };
    if let Some(step @ Step::Packages { .. }) = decision.steps.first() {
        run.change_packages(step, &decision.intent)?;
        // Packages bring files, units and users: everything is looked at again.
        let done = vec![step.description()];
        facts = run.system.facts(&FactScope::of(wanted, &run.last))?;
        decision = decide(wanted, &facts, &run.last);
        require(&decision).map_err(|first| AgentError::Halfway {
            first: Box::new(first),
            done,
            left: Vec::new(),
        })?;
    }
    let steps = &decision.steps;
    run.system.begin()?;
    run.system.keep(wanted, steps, &facts);
    let back = UndoPlan::reverted_state(&before, &run.last);
    run.observer.keeps(&decision, &facts, back)?;
    run.intend(&decision.intent, steps, false)?;
    let walked = run.walk(steps);
    if let Err(first) = run.system.judge(steps, walked) {
        let mut done = run.done;
        done.retain(|step| !first.reverts(step));
        let left = steps.iter().filter(|step| !done.contains(*step));
        return Err(if done.is_empty() {
            first
        } else {
            AgentError::Halfway {
                first: Box::new(first),
                left: left.map(Step::description).collect(),
                done: done.iter().map(Step::description).collect(),
            }
        });
    }
    run.fuse.burn();
    let seen = look_again(run.system, wanted, &run.last)?;
    run.observer.holds()?;
    settle(run.system, &run.last, &seen)?;
    Ok(seen.refused)
}

/// A run at work.
struct Run<'a> {
    system: &'a mut dyn System,
    observer: &'a mut dyn Observer,
    /// What is remembered.
    last: State,
    done: Vec<Step>,
    fuse: Fuse,
}

impl Run<'_> {
    fn change_packages(&mut self, step: &Step, intent: &Managed) -> Result<(), AgentError> {
        let Step::Packages { install, remove } = step else {
            return Ok(());
        };
        let before = self.last.clone();
        // Finding out what is to be had takes long enough to be heard of.
        self.observer.step(step);
        self.system
            .prepare_packages(install, remove, before.in_packages)?;
        self.system.begin()?;
        self.intend(intent, &[], true)?;
        self.fuse.burn();
        if let Err(fault) = self.system.change_packages(install, remove) {
            if !fault.begun {
                // Why it failed counts for more than what is remembered of it.
                _ = self.system.remember(&before);
            }
            return Err(fault.error);
        }
        self.intend(&Managed::default(), &[], false)
    }

    /// Writes down what is about to be done: whatever happens then, it can be finished and taken
    /// away.
    fn intend(
        &mut self,
        managed: &Managed,
        steps: &[Step],
        in_packages: bool,
    ) -> Result<(), AgentError> {
        self.last.managed = self.last.managed.with(managed);
        self.last.in_packages = in_packages;
        let follow = steps.iter().filter(|step| step.follows_files());
        self.last.pending.extend(follow.cloned());
        self.system.remember(&self.last)
    }

    /// Does steps. Users own files, so they are made before their files are written beside their
    /// places; all other files are written and checked before the first step.
    fn walk(&mut self, steps: &[Step]) -> Result<(), AgentError> {
        let is_user =
            |step: &&Step| matches!(step, Step::CreateUser { .. } | Step::EnableLogin { .. });
        let made = steps.iter().filter_map(|step| match step {
            Step::CreateUser { name, .. } => Some(name.as_str()),
            _ => None,
        });
        let made: BTreeSet<&str> = made.collect();
        let (later, now): (Vec<_>, Vec<_>) = steps.iter().partition(|step| waits(step, &made));
        let (users, others): (Vec<_>, Vec<_>) = steps.iter().partition(is_user);
        self.system.stage(&now)?;
        for step in users {
            self.act(step)?;
        }
        self.system.stage(&later)?;
        for step in others {
            self.act(step)?;
            if self.last.pending.remove(step) {
                self.system.remember(&self.last)?;
            }
        }
        Ok(())
    }

    fn act(&mut self, step: &Step) -> Result<(), AgentError> {
        self.observer.step(step);
        self.fuse.burn();
        self.system.act(step)?;
        self.done.push(step.clone());
        Ok(())
    }
}

/// Tells whether a step needs a user who is made: a file is theirs, or below their home, which would
/// be a directory of root otherwise.
fn waits(step: &Step, made: &BTreeSet<&str>) -> bool {
    let (Step::Directory { path, owner, .. } | Step::Write { path, owner, .. }) = step else {
        return false;
    };
    let home = Path::new(path).strip_prefix("/home").ok(); // tidy: where `useradd` of every Debian puts it
    let of = home.and_then(|rest| rest.iter().next()?.to_str());
    made.contains(owner.as_str()) || of.is_some_and(|name| made.contains(name))
}

/// How often the network and services are looked at until they are what they were told to be, five
/// times a second.
const LOOKS: usize = 50;

/// Looks whether all is as it should be now. What a user kept from being so is refused; it is no
/// reason to fail for everyone else.
fn look_again(
    system: &mut dyn System,
    wanted: &[Resource],
    last: &State,
) -> Result<Decision, AgentError> {
    let mut check = last.clone();
    check.pending.clear();
    let mut n_looks = 0;
    loop {
        let facts = system.facts(&FactScope::of(wanted, &check))?;
        let mut seen = decide(wanted, &facts, &check);
        require(&seen)?;
        let enforced = |change: &&Change| change.handling == Handling::Enforce;
        let left: Vec<&Change> = seen.changes.iter().filter(enforced).collect();
        if left.iter().all(|change| is_users(system, change)) {
            let skipped = system.skipped();
            for change in left {
                let path = skipped
                    .keys()
                    .find(|path| change.id.contains(path.as_str()));
                let why = path.map_or("it was changed while it was written", |path| {
                    skipped[path].as_str()
                });
                seen.refused.insert(change.id.clone(), why.to_owned());
            }
            return Ok(seen);
        }
        let moves = |change: &&Change| {
            change.resource == "network"
                || matches!(
                    change.found.as_str(),
                    "activating" | "deactivating" | "reloading"
                )
        };
        n_looks += 1;
        if n_looks == LOOKS || !seen.changes.iter().any(|change| moves(&change)) {
            return Err(AgentError::Unsettled(seen.changes));
        }
        system.pause();
    }
}

/// Tells whether a difference is in a file that a user can change at any time.
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
    system.remember(&next)
}

/// Ends the program after a number of steps, in tests.
struct Fuse(Option<usize>);

impl Fuse {
    fn burn(&mut self) {
        match self.0 {
            Some(0) => std::process::abort(),
            Some(left) => self.0 = Some(left - 1),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
