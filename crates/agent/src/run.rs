//! Looking after the machine: one look, and what follows from it. No field is corrected against
//! the policy, or again and again.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::converge::{Change, ChangeCause, Decision, DriftState, Handling, OpenDrift};
use homestak_core::error::chain;

use crate::apply::{self, Observation, Quiet, Refused};
use crate::converge::{compare, mark_complete};
use crate::error::AgentError;
use crate::spec::{self, Spec};
use crate::state::drift;
use crate::system::Machine;
use crate::{clock, state, ui, undo};

/// So many fields of a resource are logged one by one; more are counted.
const LOGGED: usize = 8;

/// Longer values are not put into a line.
const SHORT: usize = 80;

/// What may be mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mends {
    /// Everything that the policy mends: someone asked.
    All,
    /// The same, but for what is held.
    Most,
    /// Nothing.
    None,
}

/// What came of a look.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) changes: Vec<Change>,
    pub(crate) mended: Vec<String>,
    /// Why something could not be mended.
    pub(crate) error: Option<AgentError>,
}

fn look(spec: &Spec, held: &BTreeSet<String>) -> Result<Observation, AgentError> {
    let policy = spec.policy.with_held(held.iter().cloned());
    apply::look(&Machine::default(), &policy.attach_to(&spec.wanted))
}

fn carry_out(
    spec: &Spec,
    held: &BTreeSet<String>,
    look: Observation,
) -> Result<Refused, AgentError> {
    let policy = spec.policy.with_held(held.iter().cloned());
    let wanted = policy.attach_to(&spec.wanted);
    // Nothing is confirmed: what is mended was confirmed before.
    apply::carry_out(&mut Machine::waiting(LOCK_WAIT), &wanted, look, &mut Quiet)
}

/// How long another user of the package database is waited for, in seconds. The watch comes back.
const LOCK_WAIT: u64 = 10;

fn ids(changes: &[Change]) -> BTreeSet<String> {
    changes.iter().map(|change| change.id.clone()).collect()
}

fn enforced(look: &Observation) -> Vec<&Change> {
    let changes = look.decision.changes.iter();
    let is_enforced = |change: &&Change| change.handling == Handling::Enforce;
    changes.filter(is_enforced).collect()
}

/// What a look may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) mends: Mends,
    /// Whether it says how the machine is: after a `config apply` that failed, that failure counts.
    pub(crate) marks: bool,
}

/// Looks, and mends what may be mended. Whoever calls has the turn.
pub(crate) fn round(
    spec: &Spec,
    drift: &mut DriftState,
    charge: Charge,
) -> Result<Round, AgentError> {
    let held = match charge.mends {
        Mends::All => BTreeSet::new(),
        Mends::Most | Mends::None => drift.held_fields(clock::both()),
    };
    let look = look(spec, &held)?;
    apply::require(&look.decision)?;
    let new = drift.record_check(&look.decision.changes, clock::both());
    let new: BTreeSet<String> = new.into_iter().collect();
    drift.refused.clone_from(&look.decision.refused);
    let mut round = Round {
        changes: look.decision.changes.clone(),
        ..Round::default()
    };
    let only_named = round.changes.iter().filter(|change| {
        let only_named = change.handling == Handling::Report || charge.mends == Mends::None;
        only_named && new.contains(&change.id)
    });
    tell(only_named, "only reported");
    if charge.mends == Mends::None {
        return Ok(round);
    }
    if !enforced(&look).is_empty() {
        // Seen is seen, whatever becomes of it.
        drift::save(drift)?;
        mend(spec, &held, look, drift, &mut round)?;
    }
    if !charge.marks {
        return Ok(round);
    }
    let is_open = |id: &String| {
        drift
            .backoff
            .get(id)
            .is_some_and(|field| field.n_failures > 0)
    };
    let refused = apply::require_all(&drift.refused).err();
    match (&round.error, &refused) {
        (Some(error), _) | (None, Some(error)) => state::fail_in("run", error, &spec.name)?,
        (None, None) if drift.open.keys().any(is_open) => {}
        (None, None) => {
            mark_complete(spec)?;
        }
    }
    Ok(round)
}

fn mend(
    spec: &Spec,
    held: &BTreeSet<String>,
    look: Observation,
    drift: &mut DriftState,
    round: &mut Round,
) -> Result<(), AgentError> {
    drift::note_mending(true)?;
    let mut wanted: Vec<Change> = enforced(&look).into_iter().cloned().collect();
    let mut left = BTreeSet::new();
    let done = if look.decision.steps.is_empty() {
        // Something changed while it was looked at, so that what was seen does not fit together.
        Err(AgentError::Unsettled(round.changes.clone()))
    } else {
        carry_out(spec, held, look)
    };
    match done {
        Ok(refused) => {
            left.extend(refused.keys().cloned());
            drift.refused.extend(refused);
        }
        Err(error) => {
            let changed = matches!(error, AgentError::Unsettled(_));
            let (mut seen, still) = one_by_one(spec, held, changed)?;
            left = still;
            round.error = Some(error);
            // What was changed meanwhile is seen and corrected as well.
            let known = ids(&wanted);
            seen.retain(|change| !known.contains(&change.id));
            if !seen.is_empty() {
                round.changes.extend(seen.iter().cloned());
                drift.record_check(&round.changes, clock::both());
                wanted.extend(seen);
            }
        }
    }
    let now = clock::both();
    let mended = wanted.iter().filter(|change| !left.contains(&change.id));
    round.mended = mended.clone().map(|change| change.id.clone()).collect();
    tell(mended, "mended");
    for id in drift.record_corrected(&round.mended, now) {
        let until = drift.held_until(&id, now);
        ui::say(&format!(
            "{id} is changed again and again, so it is only reported until {until:.0}"
        ));
    }
    let why = match &round.error {
        Some(error) => chain(error),
        None => String::new(),
    };
    let wanted = ids(&wanted);
    left.retain(|id| wanted.contains(id));
    for id in &left {
        let why = drift.refused.get(id).unwrap_or(&why).clone();
        drift.record_failed(std::slice::from_ref(id), &why, now);
        let until = drift.held_until(id, now);
        ui::say(&format!(
            "{id} could not be corrected, next attempt at {until:.0}: {why}"
        ));
    }
    if left.is_empty() {
        // What was in the way has gone.
        round.error = None;
    }
    drift::note_mending(false)
}

/// Mends each resource for itself, so that one that cannot be mended does not keep the others from
/// it. One alone is tried again when someone changed it meanwhile. Returns what was seen first, and
/// what is left.
fn one_by_one(
    spec: &Spec,
    held: &BTreeSet<String>,
    changed: bool,
) -> Result<(Vec<Change>, BTreeSet<String>), AgentError> {
    let seen = look(spec, held)?;
    let seen: Vec<Change> = enforced(&seen).into_iter().cloned().collect();
    let resources: BTreeSet<&String> = seen.iter().map(|change| &change.resource).collect();
    if resources.len() > 1 || changed {
        for resource in resources {
            let others = seen.iter().filter(|other| other.resource != *resource);
            let mut all = held.clone();
            all.extend(others.map(|other| other.id.clone()));
            // What cannot be mended is found by the last look.
            _ = look(spec, &all).and_then(|look| carry_out(spec, &all, look).map(drop));
        }
    }
    let left = look(spec, held)?;
    let left = enforced(&left).into_iter();
    let left = left.map(|change| change.id.clone()).collect();
    Ok((seen, left))
}

/// Says what was found, with values that fit into a line.
fn found(change: &Change) -> String {
    let who = match change.cause {
        ChangeCause::Node => "was changed",
        ChangeCause::Spec | ChangeCause::FirstRun => "differs",
    };
    let fits = |text: &str| text.len() <= SHORT && !text.contains('\n');
    if change.field.ends_with("content") || !fits(&change.expected) || !fits(&change.found) {
        return format!("{} {who}", change.id);
    }
    let (is, should) = (&change.found, &change.expected);
    format!("{} {who} (is {is}, should be {should})", change.id)
}

/// What came of one look that somebody asked for.
pub(crate) struct Once {
    pub(crate) spec: String,
    pub(crate) round: Round,
    /// What still differs.
    pub(crate) left: Vec<Change>,
    /// Whether nothing is to be done about that.
    pub(crate) settled: bool,
}

/// Looks once.
pub(crate) fn once() -> Result<Once, AgentError> {
    let _turn = undo::turn()?;
    let spec = spec::kept()?;
    let mut drift = drift::load();
    let charge = Charge {
        mends: Mends::All,
        marks: true,
    };
    let round = round(&spec, &mut drift, charge);
    drift::save(&drift)?;
    let mut round = round?;
    if let Some(error) = round.error.take() {
        return Err(error);
    }
    apply::require_all(&drift.refused)?;
    // Whoever asks for the spec would get this as well.
    let (decision, left) = compare(&spec)?;
    Ok(Once {
        settled: decision.is_converged(),
        spec: spec.name,
        round,
        left,
    })
}

/// Decides what a look would mend, and mends nothing.
pub(crate) fn decide(spec: &Spec) -> Result<Decision, AgentError> {
    Ok(look(spec, &BTreeSet::new())?.decision)
}

/// Logs what was done about changes: one line each, or one for a resource of which many differ. A
/// user who writes many keys does not fill the log.
fn tell<'a>(changes: impl Iterator<Item = &'a Change>, what: &str) {
    let mut all: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
    for change in changes {
        all.entry(&change.resource).or_default().push(change);
    }
    for (resource, changes) in all {
        if changes.len() > LOGGED {
            ui::say(&format!("{resource}: {} fields: {what}", changes.len()));
            continue;
        }
        for change in changes {
            ui::say(&format!("{}: {what}", found(change)));
        }
    }
}

/// Tells whether something differs that should not, or that is not corrected.
pub(crate) fn differs(drift: &DriftState) -> bool {
    let held = drift.held_fields(clock::both());
    let is_left = |(id, open): (&String, &OpenDrift)| {
        open.handling == Handling::Enforce || open.error.is_some() || held.contains(id)
    };
    drift.error.is_some() || !drift.refused.is_empty() || drift.open.iter().any(is_left)
}

/// Says in a few lines what is watched and what differs.
pub(crate) fn summary(drift: &DriftState, watched: bool) -> String {
    let mut lines = String::new();
    match (&drift.error, watched) {
        (None, true) => lines += "watched\n",
        (Some(trouble), true) => {
            lines += &format!("watched, but not everything is corrected: {trouble}\n");
        }
        (Some(trouble), false) => lines += &format!("{trouble}\n"),
        (None, false) => {}
    }
    for (id, open) in &drift.open {
        let why = open.error.as_ref();
        if let Some(why) = drift.refused.get(id) {
            lines += &format!("{id} is refused: {why}\n");
            continue;
        }
        let what = match (why, open.handling) {
            (Some(why), _) => format!("could not be mended: {why}"),
            (None, Handling::Enforce) => "is to be mended".to_owned(),
            (None, Handling::Report | Handling::Ignore) => "only reported".to_owned(),
        };
        lines += &format!("{id} differs since {:.0}: {what}\n", open.first_seen);
    }
    lines
}
