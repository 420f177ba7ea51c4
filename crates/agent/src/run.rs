//! One drift check: observe the machine, correct what the policy enforces, report the rest. Fields that
//! change repeatedly are only reported.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::converge::{Change, Decision, DriftState, Handling, OpenDrift};
use homestak_core::error::chain;

use crate::apply::{self, NoObserver, Observation, Refused};
use crate::converge::{compare, mark_complete};
use crate::error::AgentError;
use crate::spec::{self, Spec};
use crate::state::drift;
use crate::system::Machine;
use crate::{clock, state, undo};

/// Fields of a resource that are logged individually; more are only counted.
const MAX_LOGGED: usize = 8;

/// Longer values are not logged.
const MAX_VALUE: usize = 80;

/// Which drift is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// Everything that the policy enforces.
    All,
    /// The same, except fields that are on hold because they changed or failed repeatedly.
    NotHeld,
    /// Nothing.
    None,
}

/// The result of a drift check.
#[derive(Debug, Default)]
pub(crate) struct CheckReport {
    pub(crate) changes: Vec<Change>,
    pub(crate) corrected: Vec<String>,
    /// Why something could not be corrected.
    pub(crate) error: Option<AgentError>,
}

fn observe(spec: &Spec, held: &BTreeSet<String>) -> Result<Observation, AgentError> {
    let policy = spec.policy.with_held(held.iter().cloned());
    apply::observe(&Machine::default(), &policy.attach_to(&spec.wanted))
}

fn carry_out(
    spec: &Spec,
    held: &BTreeSet<String>,
    observation: Observation,
) -> Result<Refused, AgentError> {
    let policy = spec.policy.with_held(held.iter().cloned());
    let wanted = policy.attach_to(&spec.wanted);
    // No confirmation: these values were confirmed when the spec was applied.
    apply::carry_out(
        &mut Machine::with_lock_wait(LOCK_WAIT),
        &wanted,
        observation,
        &mut NoObserver,
    )
}

/// How long to wait for the lock of the package database, in seconds. The next check tries again.
const LOCK_WAIT: u64 = 10;

fn ids(changes: &[Change]) -> BTreeSet<String> {
    changes.iter().map(|change| change.id.clone()).collect()
}

fn enforced(observation: &Observation) -> Vec<&Change> {
    let changes = observation.decision.changes.iter();
    let is_enforced = |change: &&Change| change.handling == Handling::Enforce;
    changes.filter(is_enforced).collect()
}

/// What a drift check may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckOptions {
    pub(crate) correct: Correction,
    /// Whether it writes markers; a failed `config apply` keeps its marker.
    pub(crate) write_marker: bool,
}

/// Observes the machine and corrects drift. The caller holds the run lock.
pub(crate) fn check_and_correct(
    spec: &Spec,
    drift: &mut DriftState,
    options: CheckOptions,
) -> Result<CheckReport, AgentError> {
    let held = match options.correct {
        Correction::All => BTreeSet::new(),
        Correction::NotHeld | Correction::None => drift.held_fields(clock::now_and_uptime()),
    };
    let observation = observe(spec, &held)?;
    apply::require(&observation.decision)?;
    let new = drift.record_check(&observation.decision.changes, clock::now_and_uptime());
    let new: BTreeSet<String> = new.into_iter().collect();
    drift.refused.clone_from(&observation.decision.refused);
    let mut report = CheckReport {
        changes: observation.decision.changes.clone(),
        ..CheckReport::default()
    };
    let only_reported = report.changes.iter().filter(|change| {
        let only_reported =
            change.handling == Handling::Report || options.correct == Correction::None;
        only_reported && new.contains(&change.id)
    });
    log_changes(only_reported, "only reported");
    if options.correct == Correction::None {
        return Ok(report);
    }
    if !enforced(&observation).is_empty() {
        // Recorded before the correction, which may fail.
        drift::save(drift)?;
        correct(spec, &held, observation, drift, &mut report)?;
    }
    if !options.write_marker {
        return Ok(report);
    }
    let is_open = |id: &String| {
        drift
            .backoff
            .get(id)
            .is_some_and(|field| field.n_failures > 0)
    };
    let refused = apply::require_all(&drift.refused).err();
    match (&report.error, &refused) {
        (Some(error), _) | (None, Some(error)) => state::fail_in("run", error, &spec.name)?,
        (None, None) if drift.open.keys().any(is_open) => {}
        (None, None) => {
            mark_complete(spec)?;
        }
    }
    Ok(report)
}

fn correct(
    spec: &Spec,
    held: &BTreeSet<String>,
    observation: Observation,
    drift: &mut DriftState,
    report: &mut CheckReport,
) -> Result<(), AgentError> {
    drift::set_correcting(true)?;
    let mut wanted: Vec<Change> = enforced(&observation).into_iter().cloned().collect();
    let mut left = BTreeSet::new();
    let done = if observation.decision.steps.is_empty() {
        // The machine changed during the observation, which is inconsistent.
        Err(AgentError::StillDiffers(report.changes.clone()))
    } else {
        carry_out(spec, held, observation)
    };
    match done {
        Ok(refused) => {
            left.extend(refused.keys().cloned());
            drift.refused.extend(refused);
        }
        Err(error) => {
            let changed = matches!(error, AgentError::StillDiffers(_));
            let (mut seen, still) = correct_separately(spec, held, changed)?;
            left = still;
            report.error = Some(error);
            // Changes since the observation were corrected as well.
            let known = ids(&wanted);
            seen.retain(|change| !known.contains(&change.id));
            if !seen.is_empty() {
                report.changes.extend(seen.iter().cloned());
                drift.record_check(&report.changes, clock::now_and_uptime());
                wanted.extend(seen);
            }
        }
    }
    let now = clock::now_and_uptime();
    let corrected = wanted.iter().filter(|change| !left.contains(&change.id));
    report.corrected = corrected.clone().map(|change| change.id.clone()).collect();
    log_changes(corrected, "corrected");
    for id in drift.record_corrected(&report.corrected, now) {
        let until = drift.held_until(&id, now);
        tracing::warn!(%id, "changes repeatedly; only reported until {until:.0}");
    }
    let why = match &report.error {
        Some(error) => chain(error),
        None => String::new(),
    };
    let wanted = ids(&wanted);
    left.retain(|id| wanted.contains(id));
    for id in &left {
        let why = drift.refused.get(id).unwrap_or(&why).clone();
        drift.record_failed(std::slice::from_ref(id), &why, now);
        let until = drift.held_until(id, now);
        tracing::warn!(%id, reason = %why, "could not be corrected; next attempt at {until:.0}");
    }
    if left.is_empty() {
        // All was corrected by the second attempt.
        report.error = None;
    }
    drift::set_correcting(false)
}

/// Corrects each resource separately, so that one that fails does not prevent the others. A single one
/// is only tried again if it was changed meanwhile. Returns the changes before, and the ids that remain.
fn correct_separately(
    spec: &Spec,
    held: &BTreeSet<String>,
    changed: bool,
) -> Result<(Vec<Change>, BTreeSet<String>), AgentError> {
    let seen = observe(spec, held)?;
    let seen: Vec<Change> = enforced(&seen).into_iter().cloned().collect();
    let resources: BTreeSet<&String> = seen.iter().map(|change| &change.resource).collect();
    if resources.len() > 1 || changed {
        for resource in resources {
            let others = seen.iter().filter(|other| other.resource != *resource);
            let mut all = held.clone();
            all.extend(others.map(|other| other.id.clone()));
            // Failures are found by the observation below.
            _ = observe(spec, &all)
                .and_then(|observation| carry_out(spec, &all, observation).map(drop));
        }
    }
    let left = observe(spec, held)?;
    let left = enforced(&left).into_iter();
    let left = left.map(|change| change.id.clone()).collect();
    Ok((seen, left))
}

/// The result of `run --once`.
pub(crate) struct OnceReport {
    pub(crate) spec: String,
    pub(crate) report: CheckReport,
    /// What still differs.
    pub(crate) left: Vec<Change>,
    /// Whether no difference is enforced.
    pub(crate) settled: bool,
}

/// Checks once.
pub(crate) fn once() -> Result<OnceReport, AgentError> {
    // Without a spec, not even the lock file is created.
    spec::current()?;
    let _lock = undo::lock()?;
    let spec = spec::current()?;
    let mut drift = drift::load();
    let options = CheckOptions {
        correct: Correction::All,
        write_marker: true,
    };
    let report = check_and_correct(&spec, &mut drift, options);
    drift::save(&drift)?;
    let mut report = report?;
    if let Some(error) = report.error.take() {
        return Err(error);
    }
    apply::require_all(&drift.refused)?;
    // What `config apply` would change.
    let (decision, left) = compare(&spec)?;
    Ok(OnceReport {
        settled: decision.is_converged(),
        spec: spec.name,
        report,
        left,
    })
}

/// Decides what a check would correct.
pub(crate) fn decide(spec: &Spec) -> Result<Decision, AgentError> {
    Ok(observe(spec, &BTreeSet::new())?.decision)
}

/// Logs changes: one line each, or one for a resource with many. A user who writes many keys must not
/// flood the log.
fn log_changes<'a>(changes: impl Iterator<Item = &'a Change>, action: &str) {
    let mut all: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
    for change in changes {
        all.entry(&change.resource).or_default().push(change);
    }
    for (resource, changes) in all {
        if changes.len() > MAX_LOGGED {
            tracing::info!(resource, fields = changes.len(), "{action}");
            continue;
        }
        for change in changes {
            let Change {
                id,
                field,
                expected,
                found,
                ..
            } = change;
            let fits = |text: &str| text.len() <= MAX_VALUE && !text.contains('\n');
            if field.ends_with("content") || !fits(expected) || !fits(found) {
                tracing::info!(%id, "{action}");
            } else {
                tracing::info!(%id, %found, %expected, "{action}");
            }
        }
    }
}

/// Returns whether there is drift that is not corrected.
pub(crate) fn differs(drift: &DriftState) -> bool {
    let held = drift.held_fields(clock::now_and_uptime());
    let is_left = |(id, open): (&String, &OpenDrift)| {
        open.handling == Handling::Enforce || open.error.is_some() || held.contains(id)
    };
    drift.error.is_some() || !drift.refused.is_empty() || drift.open.iter().any(is_left)
}

/// Returns the word of `status`: `complete`, `differs`, `failed` or `unknown`.
pub(crate) fn status_word() -> &'static str {
    let (complete, failed) = state::markers();
    let watched = drift::is_watched();
    let unwatched = !watched && spec::current().is_ok_and(|spec| spec.wants_watch());
    match (&complete, &failed) {
        (_, Some(_)) => "failed",
        (Some(_), None) if watched && differs(&drift::load()) => "differs",
        (Some(_), None) if unwatched => "differs",
        (Some(_), None) => "complete",
        (None, None) => "unknown",
    }
}

/// Describes the watch and the drift, for `status`.
pub(crate) fn summary(drift: &DriftState, watched: bool) -> String {
    let mut lines = String::new();
    match (&drift.error, watched) {
        (None, true) => lines += "watched\n",
        (Some(error), true) => {
            lines += &format!("watched, but drift is not fully corrected: {error}\n");
        }
        (Some(error), false) => lines += &format!("{error}\n"),
        (None, false) => {}
    }
    for (id, open) in &drift.open {
        let why = open.error.as_ref();
        if let Some(why) = drift.refused.get(id) {
            lines += &format!("{id} is refused: {why}\n");
            continue;
        }
        let what = match (why, open.handling) {
            (Some(why), _) => format!("could not be corrected: {why}"),
            (None, Handling::Enforce) => "to be corrected".to_owned(),
            (None, Handling::Report | Handling::Ignore) => "only reported".to_owned(),
        };
        lines += &format!("{id} differs since {:.0}: {what}\n", open.first_seen);
    }
    lines
}
