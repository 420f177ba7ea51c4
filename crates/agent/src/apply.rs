//! A decision carried out, so that it may die at any moment and be begun again.
//!
//! In: a spec. Out: the machine as the spec says, markers.
//! Never: a first change before packages were tried out and files were checked as far as can be.

use homestak_core::converge::{Decision, Facts, Managed, Resource, Scope, State, Step, decide};

use crate::act::act;
use crate::error::AgentError;
use crate::files::Staged;
use crate::gather::gather;
use crate::{packages, settings, state};

/// The machine looked at, and what follows.
pub(crate) struct Look {
    pub(crate) last: State,
    pub(crate) decision: Decision,
}

/// Looks at the machine and decides.
pub(crate) fn look(wanted: &[Resource]) -> Result<Look, AgentError> {
    let last = state::load()?;
    let facts = facts(wanted, &last)?;
    let decision = decide(wanted, &facts, &last);
    Ok(Look { last, decision })
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

/// Does what was decided. `said` hears of each step before it is done.
pub(crate) fn carry_out(
    wanted: &[Resource],
    look: &Look,
    said: &dyn Fn(&Step),
) -> Result<(), AgentError> {
    require(&look.decision)?;
    if look.decision.steps.is_empty() {
        return settle(&look.decision);
    }
    let mut fuse = Fuse(settings::crash_after());
    let mut last = look.last.clone();
    let mut decision = look.decision.clone();
    if let Some(Step::Packages { install, remove }) = decision.steps.first() {
        if last.in_packages {
            said(&decision.steps[0]);
            packages::finish()?;
        }
        packages::rehearse(install, remove)?;
        state::begin()?;
        intend(&mut last, &decision.intent, &[], true)?;
        said(&decision.steps[0]);
        fuse.burn();
        packages::transact(install, remove)?;
        // Packages bring files, units and users: everything is looked at again.
        intend(&mut last, &Managed::default(), &[], false)?;
        decision = decide(wanted, &facts(wanted, &last)?, &last);
        require(&decision)?;
    }
    state::begin()?;
    intend(&mut last, &decision.intent, &decision.steps, false)?;
    // Users own files, so they come before all files are written beside their places.
    let users = |step: &&Step| matches!(step, Step::CreateUser { .. } | Step::OpenUser { .. });
    let mut none = Staged::write(&[])?;
    for step in decision.steps.iter().filter(users) {
        said(step);
        fuse.burn();
        act(step, &mut none)?;
    }
    let mut staged = Staged::write(&decision.steps)?;
    for step in decision.steps.iter().filter(|step| !users(step)) {
        said(step);
        fuse.burn();
        act(step, &mut staged)?;
        if last.pending.remove(step) {
            state::save(&last)?;
        }
    }
    fuse.burn();
    let mut check = last.clone();
    check.pending.clear();
    // The network and services take a moment to become what they were told to be.
    let seen = decide(wanted, &facts(wanted, &check)?, &check);
    require(&seen)?;
    if !seen.is_settled() {
        return Err(AgentError::Unsettled(seen.changes));
    }
    settle(&seen)
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

fn settle(decision: &Decision) -> Result<(), AgentError> {
    let mut next = decision.next.clone();
    next.pending.clear();
    if state::load()? == next {
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
