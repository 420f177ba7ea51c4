//! Changes that could cut the node off: what they change is kept, and put back unless someone
//! confirms.
//!
//! Packages stay as they are. A verdict holds, whenever the node boots or the agent is killed.

mod back;
mod processes;
mod unit;

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use homestak_core::converge::{Decision, Event, Facts, State, Step, UndoPlan};
use serde::{Deserialize, Serialize};

use self::back::Found;
use crate::apply::Quiet;
use crate::converge::converge;
use crate::error::AgentError;
use crate::state::job::{Job, Log, SPEC, Verdict, Wait};
use crate::{clock, spec, state, ui};

const UNDO: &str = "undo.json";
/// Copies of files.
const BEFORE: &str = "before";
/// How often is tried to revert what users keep from being reverted, or what fails while the machine
/// boots.
const TRIES: usize = 3;
/// How long is tried to revert everything else: whoever uses up processes or the disk for a while
/// must not decide what stays.
const PATIENCE: Duration = Duration::from_secs(600);

/// Everything that is needed to go back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// What was remembered.
    state: State,
    way: UndoPlan,
    found: BTreeMap<String, Found>,
    /// What is done, in words.
    words: Vec<String>,
    /// How that could cut the node off.
    dangers: Vec<String>,
    /// The boot in which it is done.
    boot: String,
}

/// Keeps what a decision changes, and sees to it that it is put back whatever happens to us.
pub(crate) fn keep(
    job: &Job,
    decision: &Decision,
    facts: &Facts,
    state: State,
) -> Result<Kept, AgentError> {
    let way = UndoPlan::new(&decision.steps, facts);
    let copies = job.path(BEFORE);
    state::make_directory(&copies).map_err(job.failed(BEFORE))?;
    let found = back::copy(&way, &copies).map_err(job.failed(BEFORE))?;
    let own = |step: &&Step| !step.follows_files();
    let dangers = decision.dangers().into_iter();
    let kept = Kept {
        state,
        way,
        found,
        words: decision
            .steps
            .iter()
            .filter(own)
            .map(Step::description)
            .collect(),
        dangers: dangers
            .map(|danger| danger.description().to_owned())
            .collect(),
        boot: clock::boot(),
    };
    job.write(UNDO, &kept)?;
    let armed = state::await_confirmation(&job.id).and_then(|()| unit::install(&job.id));
    if let Err(error) = armed {
        forget(job);
        return Err(error);
    }
    Ok(kept)
}

/// Forgets what was kept: it is confirmed, or put back.
pub(crate) fn forget(job: &Job) {
    // In this order: as long as a job waits, there is what it needs.
    _ = state::nothing_awaited();
    unit::remove(&job.id);
    _ = fs_err::remove_dir_all(job.path(BEFORE));
    _ = fs_err::remove_file(job.path(UNDO));
}

/// Removes what was kept by runs that were killed before their first change: it holds secrets.
fn forget_copies() {
    let jobs = fs_err::read_dir(state::place("jobs"));
    for job in jobs.into_iter().flatten().flatten() {
        _ = fs_err::remove_dir_all(job.path().join(BEFORE));
        _ = fs_err::remove_file(job.path().join(UNDO));
    }
}

/// Takes everything back, and returns what is told of it.
pub(crate) fn take_back(job: &Job, kept: &Kept, first: AgentError, log: &mut Log) -> AgentError {
    let first = match first {
        AgentError::Halfway { first, .. } => first,
        other => Box::new(other),
    };
    let about = kept.dangers.join(", ");
    log.say(Event::Reverted {
        reason: format!("{}; this was about {about}", first.message()).into(),
    });
    let copies = job.path(BEFORE);
    let mut reversal = back::Reversal::new(kept, &copies);
    let (begun, mut n_tries) = (clock::instant(), 0);
    let stuck = loop {
        let mut stuck = reversal.go();
        // What is not read again by now is done by whoever converges the machine next.
        let mut state = kept.state.clone();
        state.pending.extend(reversal.pending());
        if let Err(error) = state::save(&state).and_then(|()| state::forget_attempt()) {
            stuck.add(error.message(), false);
        }
        n_tries += 1;
        if stuck.words.is_empty() || n_tries >= TRIES && !stuck.may_pass {
            break stuck.words;
        }
        if n_tries >= TRIES && (!reversal.same_boot || begun.elapsed() >= PATIENCE) {
            break stuck.words;
        }
        clock::moment(1_000);
    };
    AgentError::TakenBack {
        first,
        back: kept.words.clone(),
        stuck: stuck.into_iter().collect(),
    }
}

/// Takes the turn, which is held until the machine is marked. Changes of an earlier run that wait for
/// their confirmation are an error.
pub(crate) fn turn() -> Result<File, AgentError> {
    let turn = state::lock()?;
    require_none()?;
    Ok(turn)
}

/// Returns an error when changes of an earlier run wait for their confirmation. When nobody looks
/// after them any more, they are taken back now. Whoever calls has the turn.
fn require_none() -> Result<(), AgentError> {
    let Some(id) = state::unconfirmed() else {
        forget_copies();
        return Ok(());
    };
    let job = Job::of(&id);
    let _alive = job.inherit(Wait::Never)?;
    if state::unconfirmed().as_ref() == Some(&id) {
        resume(&job)?;
    }
    Ok(())
}

/// Waits until whoever works on a job is gone, and takes its changes back when they were not
/// confirmed.
pub(crate) fn guard(job: &Job) -> Result<u8, AgentError> {
    let _alive = job.inherit(Wait::UntilFree)?;
    if state::unconfirmed().as_ref() != Some(&job.id) {
        unit::remove(&job.id);
        return Ok(0);
    }
    let _turn = loop {
        match state::lock() {
            Ok(turn) => break turn,
            Err(AgentError::Busy | AgentError::Waiting(_)) => clock::moment(50),
            Err(error) => return Err(error),
        }
    };
    resume(job)?;
    Ok(0)
}

/// Goes on with a job whose worker is gone. Whoever calls has the turn, and the job.
fn resume(job: &Job) -> Result<(), AgentError> {
    let mut log = Log::open(job, None);
    let kept: Kept = match job.read(UNDO) {
        Ok(kept) => kept,
        // Killed before the first change, or after the last thing was put back.
        Err(_) => {
            forget(job);
            return Ok(());
        }
    };
    let same_boot = kept.boot == clock::boot();
    let asked = job.enforced();
    let verdict = match (job.verdict(), &asked) {
        (Some(verdict), _) => verdict,
        (None, Some(asked)) if same_boot => job.await_verdict(asked)?,
        (None, _) => job.judge(Verdict::Reverted)?,
    };
    let text = job.read_text(SPEC)?;
    let spec = spec::parse("-", text);
    let name = spec.as_ref().map(|spec| spec.name.clone());
    let name = name.unwrap_or_default();
    let done = match verdict {
        // All was done but the last notes.
        Verdict::Confirmed if same_boot => converge(spec, 0, &mut Quiet),
        Verdict::Confirmed => Err(AgentError::Killed),
        Verdict::Reverted => {
            let first = match asked {
                Some(asked) if same_boot => AgentError::Unconfirmed {
                    within: asked.within,
                },
                Some(_) | None if same_boot => AgentError::CutOff("the agent was killed"),
                Some(_) | None => AgentError::CutOff("the node was restarted"),
            };
            Err(take_back(job, &kept, first, &mut log))
        }
    };
    let (success, result) = match done {
        Ok(done) => (true, done.body),
        Err(error) => {
            _ = state::fail(&error, &name);
            ui::say(&format!("error: {}", error.message()));
            (false, error.result())
        }
    };
    forget(job);
    log.say(Event::End { success, result });
    Ok(())
}
