//! Changes that could make the node unreachable: everything they change is saved, and restored unless
//! they are confirmed, also after a reboot or when the agent is killed. Packages are not reverted.

mod confirmation;
mod processes;
mod restore;
mod unit;

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use homestak_core::converge::{ConvergeStep, Decision, Event, Facts, State, UndoPlan};
use serde::{Deserialize, Serialize};

pub(crate) use self::confirmation::Confirmation;
use self::restore::SavedPath;
use crate::apply::NoObserver;
use crate::converge::converge;
use crate::error::AgentError;
use crate::state::job::{EventLog, Job, SPEC, Verdict, Wait};
use crate::{clock, process, spec, state};

const UNDO: &str = "undo.json";
/// Copies of files.
const BEFORE: &str = "before";
/// Attempts to revert what users prevent from being reverted, or what fails during boot.
const ATTEMPTS: usize = 3;
/// How long to try to revert everything else: exhausted processes or disks must not prevent it.
const REVERT_TIMEOUT: Duration = Duration::from_secs(600);

/// Everything that is needed to revert a job's changes.
#[derive(Debug, Serialize, Deserialize)]
struct UndoRecord {
    /// The recorded state before.
    state: State,
    #[serde(rename = "way")]
    plan: UndoPlan,
    #[serde(rename = "found")]
    paths: BTreeMap<String, SavedPath>,
    /// Descriptions of the steps.
    #[serde(rename = "words")]
    steps: Vec<String>,
    /// How they could make the node unreachable.
    dangers: Vec<String>,
    /// The boot in which they are done.
    boot: String,
}

/// Saves what a decision changes, and installs the unit that restores it if the agent is killed.
fn prepare(
    job: &Job,
    decision: &Decision,
    facts: &Facts,
    state: State,
) -> Result<UndoRecord, AgentError> {
    let plan = UndoPlan::new(&decision.steps, facts);
    let copies = job.path(BEFORE);
    state::make_directory(&copies).map_err(job.failed(BEFORE))?;
    let paths = restore::save(&plan, &copies).map_err(job.failed(BEFORE))?;
    let own = |step: &&ConvergeStep| !step.follows_files();
    let dangers = decision.dangers().into_iter();
    let record = UndoRecord {
        state,
        plan,
        paths,
        steps: decision
            .steps
            .iter()
            .filter(own)
            .map(ConvergeStep::description)
            .collect(),
        dangers: dangers
            .map(|danger| danger.description().to_owned())
            .collect(),
        boot: clock::boot(),
    };
    job.write(UNDO, &record)?;
    let installed = state::await_confirmation(&job.id).and_then(|()| unit::install(&job.id));
    if let Err(error) = installed {
        forget(job);
        return Err(error);
    }
    Ok(record)
}

/// Deletes what was saved: the changes are confirmed or reverted.
fn forget(job: &Job) {
    // In this order: an unconfirmed job must have everything that reverts it.
    _ = state::clear_unconfirmed();
    unit::remove(&job.id);
    _ = fs_err::remove_dir_all(job.path(BEFORE));
    _ = fs_err::remove_file(job.path(UNDO));
}

/// Deletes what was saved by runs that were killed before their first change: it holds secrets.
fn forget_copies() {
    let jobs = fs_err::read_dir(state::file("jobs"));
    for job in jobs.into_iter().flatten().flatten() {
        _ = fs_err::remove_dir_all(job.path().join(BEFORE));
        _ = fs_err::remove_file(job.path().join(UNDO));
    }
}

/// Reverts all changes, and returns the error to report.
fn revert(job: &Job, record: &UndoRecord, first: AgentError, log: &mut EventLog) -> AgentError {
    process::without_time_limit(|| revert_all(job, record, first, log))
}

fn revert_all(job: &Job, record: &UndoRecord, first: AgentError, log: &mut EventLog) -> AgentError {
    let first = match first {
        AgentError::Incomplete { first, .. } => first,
        other => Box::new(other),
    };
    let about = record.dangers.join(", ");
    tracing::info!(reason = first.message(), "reverting");
    log.write(Event::Reverted {
        reason: format!("{}; this was about {about}", first.message()).into(),
    });
    let copies = job.path(BEFORE);
    let mut restore = restore::Restore::new(record, &copies);
    let (begun, mut n_attempts) = (clock::instant(), 0);
    let failures = loop {
        let mut failures = restore.attempt();
        // Units that could not be reloaded are left to the next run.
        let mut state = record.state.clone();
        state.pending.extend(restore.pending());
        if let Err(error) = state::save(&state).and_then(|()| state::forget_attempt()) {
            failures.add(error.message(), false);
        }
        n_attempts += 1;
        if n_attempts == 1 {
            for error in &failures.messages {
                tracing::warn!(error, "not reverted yet");
            }
        }
        if failures.messages.is_empty() || n_attempts >= ATTEMPTS && !failures.transient {
            break failures.messages;
        }
        if n_attempts >= ATTEMPTS && (!restore.same_boot || begun.elapsed() >= REVERT_TIMEOUT) {
            break failures.messages;
        }
        clock::sleep(1_000);
    };
    AgentError::Reverted {
        first,
        steps: record.steps.clone(),
        failures: failures.into_iter().collect(),
    }
}

/// Takes the run lock, which is held until the marker is written. Fails if changes of an earlier run
/// await confirmation.
pub(crate) fn lock() -> Result<File, AgentError> {
    let lock = state::lock()?;
    require_none()?;
    Ok(lock)
}

/// Returns an error if changes of an earlier run await confirmation; reverts them if their worker
/// has ended. The caller holds the run lock.
fn require_none() -> Result<(), AgentError> {
    let Some(id) = state::unconfirmed() else {
        forget_copies();
        return Ok(());
    };
    let job = Job::new(&id);
    let _alive = job.take_over(Wait::Never)?;
    if state::unconfirmed().as_ref() == Some(&id) {
        resume(&job)?;
    }
    Ok(())
}

/// Waits until the worker of a job has ended, and reverts its changes if they were not confirmed.
pub(crate) fn guard(job: &Job) -> Result<u8, AgentError> {
    let _span = tracing::error_span!("job", id = job.id).entered();
    let _alive = job.take_over(Wait::UntilFree)?;
    if state::unconfirmed().as_ref() != Some(&job.id) {
        unit::remove(&job.id);
        return Ok(0);
    }
    let _lock = loop {
        match state::lock() {
            Ok(lock) => break lock,
            Err(AgentError::Busy | AgentError::AwaitingConfirmation(_)) => clock::sleep(50),
            Err(error) => return Err(error),
        }
    };
    resume(job)?;
    Ok(0)
}

/// Finishes a job whose worker has ended. The caller holds the run lock and that of the job.
fn resume(job: &Job) -> Result<(), AgentError> {
    let mut log = EventLog::open(job, None);
    let record: UndoRecord = match job.read(UNDO) {
        Ok(record) => record,
        // Killed before the first change, or after everything was restored.
        Err(_) => {
            forget(job);
            return Ok(());
        }
    };
    let same_boot = record.boot == clock::boot();
    let request = job.request();
    let verdict = match (job.verdict(), &request) {
        (Some(verdict), _) => verdict,
        (None, Some(request)) if same_boot => job.await_verdict(request)?,
        (None, _) => job.decide(Verdict::Reverted)?,
    };
    let text = job.read_text(SPEC)?;
    let spec = spec::parse("-", text);
    let name = spec.as_ref().map(|spec| spec.name.clone());
    let name = name.unwrap_or_default();
    let done = match verdict {
        // Only the records are missing.
        Verdict::Confirmed if same_boot => converge(spec, 0, &mut NoObserver),
        Verdict::Confirmed => Err(AgentError::Killed),
        Verdict::Reverted => {
            let first = match request {
                Some(request) if same_boot => AgentError::Unconfirmed {
                    within: request.within,
                },
                Some(_) | None if same_boot => AgentError::Interrupted("the agent was killed"),
                Some(_) | None => AgentError::Interrupted("the node was restarted"),
            };
            Err(revert(job, &record, first, &mut log))
        }
    };
    let (success, result) = match done {
        Ok(done) => (true, done.result()),
        Err(error) => {
            _ = state::fail(&error, &name);
            tracing::error!("{}", error.message());
            (false, error.result())
        }
    };
    forget(job);
    log.write(Event::End { success, result });
    Ok(())
}
