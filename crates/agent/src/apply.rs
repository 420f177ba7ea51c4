//! A decision carried out, so that it may die at any moment and be begun again.
//!
//! In: a spec. Out: the machine as the spec says, markers.
//! Never: a first change before it is known that packages can be had, and files were checked as far
//! as can be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_core::converge::{
    Change, Decision, Facts, Handling, Managed, Resource, Scope, State, Step, decide,
};

use crate::act::act;
use crate::error::AgentError;
use crate::files::Staged;
use crate::gather::gather;
use crate::path;
use crate::service::Before;
use crate::{clock, packages, settings, sound, state};

/// The machine looked at, and what follows.
pub(crate) struct Look {
    pub(crate) facts: Facts,
    pub(crate) last: State,
    pub(crate) decision: Decision,
}

/// Looks at the machine and decides.
pub(crate) fn look(wanted: &[Resource]) -> Result<Look, AgentError> {
    let last = state::load()?;
    let facts = facts(wanted, &last)?;
    let mut decision = decide(wanted, &facts, &last);
    let faults = sound::faults(&decision.steps)?;
    if !faults.is_empty() {
        decision.refusals.extend(faults);
        decision.steps.clear();
    }
    Ok(Look {
        facts,
        last,
        decision,
    })
}

fn facts(wanted: &[Resource], last: &State) -> Result<Facts, AgentError> {
    gather(&Scope::of(wanted, last))
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

/// Who hears of a run, and may have a say in it.
pub(crate) trait Party {
    /// What differs, before anything is done.
    fn begins(&mut self, _changes: &[Change]) {}
    /// A step begins.
    fn step(&mut self, _step: &Step) {}
    /// Packages are as they should be, and the first of the other steps is about to be done.
    fn keeps(&mut self, _decision: &Decision, _look: &Seen) -> Result<(), AgentError> {
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

impl Party for Quiet {}

/// What the machine is like before the first step.
pub(crate) struct Seen {
    pub(crate) facts: Facts,
    /// What was remembered when the run began.
    pub(crate) before: State,
    pub(crate) last: State,
}

/// Does what was decided, and returns what was refused by itself. `party` is notified of each step before
/// it is done.
pub(crate) fn carry_out(
    wanted: &[Resource],
    look: Look,
    lock_wait: u64,
    party: &mut dyn Party,
) -> Result<Refused, AgentError> {
    require(&look.decision)?;
    if look.decision.steps.is_empty() {
        settle(&look.last, &look.decision)?;
        return Ok(look.decision.refused);
    }
    let mut fuse = Fuse(settings::crash_after());
    let Look {
        mut facts,
        mut last,
        mut decision,
    } = look;
    let before = last.clone();
    if let Some(Step::Packages { install, remove }) = decision.steps.first() {
        // Finding out what is to be had takes long enough to be heard of.
        party.step(&decision.steps[0]);
        if last.in_packages {
            packages::finish(lock_wait)?;
        }
        if !remove.is_empty() {
            packages::rehearse(install, remove, lock_wait)?;
        }
        state::begin()?;
        intend(&mut last, &decision.intent, &[], true)?;
        fuse.burn();
        if let Err(fault) = packages::transact(install, remove, lock_wait) {
            if !fault.begun {
                // Why it failed counts for more than what is remembered of it.
                _ = state::save(&before);
            }
            return Err(fault.error);
        }
        // Packages bring files, units and users: everything is looked at again.
        intend(&mut last, &Managed::default(), &[], false)?;
        facts = self::facts(wanted, &last)?;
        let installed = decision.steps.first().map(Step::words);
        decision = decide(wanted, &facts, &last);
        require(&decision).map_err(|first| AgentError::Halfway {
            first: Box::new(first),
            done: installed.into_iter().collect(),
            left: Vec::new(),
        })?;
    }
    state::begin()?;
    let read = Before::of(wanted, &decision.steps, &facts);
    let seen = Seen {
        facts,
        before,
        last,
    };
    party.keeps(&decision, &seen)?;
    let mut last = seen.last;
    intend(&mut last, &decision.intent, &decision.steps, false)?;
    let mut done = Vec::new();
    let mut staged = Staged::default();
    let walked = walk(
        &decision.steps,
        &mut staged,
        &mut last,
        &mut done,
        &mut fuse,
        party,
    );
    let walked = walked.and_then(|()| read.require_running(&decision.steps));
    if let Err(first) = walked.map_err(|first| read.judge(first)) {
        done.retain(|step| !first.reverts(step));
        let words = |step: &&Step| !done.contains(*step);
        let left = decision.steps.iter().filter(words).map(Step::words);
        return Err(if done.is_empty() {
            first
        } else {
            AgentError::Halfway {
                first: Box::new(first),
                left: left.collect(),
                done: done.iter().map(Step::words).collect(),
            }
        });
    }
    fuse.burn();
    let seen = look_again(wanted, &last, staged.skipped())?;
    party.holds()?;
    settle(&last, &seen)?;
    Ok(seen.refused)
}

/// Does steps. Users own files, so they are made before their files are written beside their
/// places; all other files are written and checked before the first step.
fn walk(
    steps: &[Step],
    staged: &mut Staged,
    last: &mut State,
    done: &mut Vec<Step>,
    fuse: &mut Fuse,
    party: &mut dyn Party,
) -> Result<(), AgentError> {
    let users = |step: &&Step| matches!(step, Step::CreateUser { .. } | Step::OpenUser { .. });
    let made = steps.iter().filter_map(|step| match step {
        Step::CreateUser { name, .. } => Some(name.as_str()),
        _ => None,
    });
    let made: BTreeSet<&str> = made.collect();
    let later = |step: &&Step| waits(step, &made);
    staged.add(steps.iter().filter(|step| !later(step)))?;
    for step in steps.iter().filter(users) {
        party.step(step);
        fuse.burn();
        act(step, staged)?;
        done.push(step.clone());
    }
    staged.add(steps.iter().filter(later))?;
    for step in steps.iter().filter(|step| !users(step)) {
        party.step(step);
        fuse.burn();
        act(step, staged)?;
        done.push(step.clone());
        if last.pending.remove(step) {
            state::save(last)?;
        }
    }
    Ok(())
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
    wanted: &[Resource],
    last: &State,
    skipped: &BTreeMap<String, String>,
) -> Result<Decision, AgentError> {
    let mut check = last.clone();
    check.pending.clear();
    let mut n_looks = 0;
    loop {
        let mut seen = decide(wanted, &facts(wanted, &check)?, &check);
        require(&seen)?;
        let enforced = |change: &&Change| change.handling == Handling::Enforce;
        let left: Vec<&Change> = seen.changes.iter().filter(enforced).collect();
        if left.iter().all(|change| is_users(change)) {
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
        clock::moment(200);
    }
}

/// Tells whether a difference is in a file that a user can change at any time.
fn is_users(change: &Change) -> bool {
    if let Some(user) = change.resource.strip_prefix("keys:") {
        return user != "root";
    }
    let Some(path) = change.resource.strip_prefix("file:") else {
        return false;
    };
    path::is_users(Path::new(path))
}

/// Writes down what is about to be done: whatever happens then, it can be finished and taken away.
fn intend(
    last: &mut State,
    managed: &Managed,
    steps: &[Step],
    in_packages: bool,
) -> Result<(), AgentError> {
    last.managed = last.managed.with(managed);
    last.in_packages = in_packages;
    let follow = steps.iter().filter(|step| step.follows_files());
    last.pending.extend(follow.cloned());
    state::save(last)
}

fn settle(last: &State, decision: &Decision) -> Result<(), AgentError> {
    let mut next = decision.next.clone();
    next.pending.clear();
    if *last == next {
        return Ok(());
    }
    state::save(&next)
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
mod tests {
    use super::{BTreeSet, Step, waits};

    #[test]
    fn files_below_the_home_of_a_new_user_wait_for_it_whoever_owns_them() {
        let made = BTreeSet::from(["alice"]);
        for (path, owner, expected) in [
            ("/home/alice/.config/app", "root", true),
            ("/srv/alice", "alice", true),
            ("/home/alice2/x", "root", false),
            ("/etc/alice", "root", false),
        ] {
            let write = Step::Write {
                path: path.to_owned(),
                content: String::new(),
                mode: 0o644,
                owner: owner.to_owned(),
                group: owner.to_owned(),
            };
            assert_eq!(waits(&write, &made), expected, "{path}");
        }
    }
}
