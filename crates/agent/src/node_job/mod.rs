//! Jobs of this machine: the same code executes jobs from a server and jobs over SSH.
//!
//! Callers record a job (`record`) before they execute it, so that no job begins twice.

mod collect;
mod command;
mod reboot;
mod record;
mod simulation;
mod update;

use std::fs::File;
use std::time::Duration;

use homestak_api::job_statement::MAX_TIME_LIMIT;
use homestak_api::v1::node_job::{JobKind, JobOptions, JobOutcome, JobResult, JobState};
use homestak_core::converge::{Change, ConvergeStep};
use homestak_core::foreign::ForeignText;
use jiff::tz::TimeZone;

pub(crate) use self::command::run;
pub(crate) use self::reboot::settled;
#[cfg(test)]
pub(crate) use self::record::PendingReboot;
pub(crate) use self::record::{JobOrigin, JobRecord, Limits, Phase, Records, TimePoint};
use crate::apply::{self, ApplyObserver};
use crate::converge::{compare, converge};
use crate::error::AgentError;
use crate::process::{self, TimeLimit};
use crate::spec::{self, RunSettings};
use crate::{clock, undo};

/// The longest line of output, in characters.
const MAX_LINE: usize = 1_000;
/// The largest outcome, in bytes of JSON. A server accepts 64 KiB.
const MAX_OUTCOME: usize = 48 << 10;
/// The longest message of an outcome, in characters.
const MAX_MESSAGE: usize = 4_000;
/// How long a job that changes something waits for the run lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between two attempts to acquire the run lock, in milliseconds.
const LOCK_PAUSE: u64 = 200;
/// How long to wait for the lock of the package database, in seconds.
const PACKAGES_LOCK_WAIT: u64 = 600;

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeJob {
    pub(crate) id: String,
    pub(crate) kind: JobKind,
    pub(crate) options: JobOptions,
    /// How many seconds it may take.
    pub(crate) time_limit: u64,
}

/// Receives the output of a job, line by line.
pub(crate) type Output<'a> = &'a mut dyn FnMut(&str);

/// Executes jobs; tests simulate it.
pub(crate) trait Executor {
    /// Executes a recorded job.
    fn execute(&mut self, job: &NodeJob, records: &Records, output: Output<'_>) -> JobOutcome;
}

/// The result of fetching and applying a spec: whether anything was changed, and the generation of the
/// spec. `None` if the machine has not enrolled.
pub(crate) type Pulled = Option<(bool, u64)>;

/// The functions of `pull` that jobs call.
#[derive(Clone, Copy)]
pub(crate) struct Pulls {
    /// Fetches the newest spec and applies it.
    pub(crate) converge: fn(Output<'_>) -> Result<Pulled, AgentError>,
    /// Returns the generation of a spec, if it is the one that was accepted last.
    pub(crate) generation: fn(&str) -> Option<u64>,
}

/// Executes jobs on this machine.
pub(crate) struct LocalExecutor(pub(crate) Pulls);

impl Executor for LocalExecutor {
    fn execute(&mut self, job: &NodeJob, records: &Records, output: Output<'_>) -> JobOutcome {
        let _span = tracing::error_span!("job", id = job.id, kind = ?job.kind).entered();
        let seconds = job.time_limit.clamp(1, MAX_TIME_LIMIT);
        let _limit = TimeLimit::new(Duration::from_secs(seconds));
        let mut line = |text: &str| {
            let text: String = text.chars().take(MAX_LINE).collect();
            output(&ForeignText::line(text.trim_end()));
        };
        let done = match job.kind {
            JobKind::Converge => converge_again(self.0, &mut line),
            JobKind::Check => check(self.0, &mut line),
            JobKind::Update => update::update(job, records, &mut line),
            JobKind::Reboot => reboot::reboot(job, records, &mut line),
            JobKind::Collect => Ok(collect::collect(self.0)),
        };
        let outcome = done.unwrap_or_else(|error| match error {
            // Nothing was done: other changes are not complete yet.
            AgentError::Busy | AgentError::AwaitingConfirmation(_) => refused(error.message()),
            error => failed(error.message()),
        });
        let outcome = match (process::is_exceeded(), outcome.state) {
            (true, JobState::Failed) => JobOutcome {
                message: Some(format!(
                    "it took longer than its time limit of {seconds} s and was ended: {}",
                    outcome.message.as_deref().unwrap_or_default()
                )),
                ..outcome
            },
            _ => outcome,
        };
        tracing::info!(state = ?outcome.state, message = outcome.message, "the job has ended");
        limited(outcome)
    }
}

/// Records how a job ended.
pub(crate) fn finish(records: &Records, id: &str, outcome: &JobOutcome) -> Result<(), AgentError> {
    let Some(record) = records.find(id)? else {
        return Ok(());
    };
    records.put(&JobRecord {
        phase: Phase::Ended,
        outcome: Some(outcome.clone()),
        reboot: None,
        ..record
    })
}

pub(crate) fn succeeded(result: JobResult) -> JobOutcome {
    JobOutcome {
        state: JobState::Succeeded,
        message: None,
        result,
    }
}

pub(crate) fn failed(message: impl Into<String>) -> JobOutcome {
    JobOutcome {
        state: JobState::Failed,
        message: Some(message.into()),
        result: JobResult::default(),
    }
}

pub(crate) fn refused(message: impl Into<String>) -> JobOutcome {
    JobOutcome {
        state: JobState::Refused,
        ..failed(message)
    }
}

/// Shortens an outcome that is too large.
fn limited(mut outcome: JobOutcome) -> JobOutcome {
    if let Some(message) = &outcome.message {
        let message: String = message.chars().take(MAX_MESSAGE).collect();
        outcome.message = Some(ForeignText::line(&message).into());
    }
    let size = |outcome: &JobOutcome| serde_json::to_vec(outcome).map_or(0, |text| text.len());
    let mut is_cut = false;
    while size(&outcome) > MAX_OUTCOME {
        is_cut = true;
        let result = &mut outcome.result;
        if let Some(collected) = &mut result.collected {
            collected.truncated = true;
            // The oldest lines first.
            let n_old = collected.journal.len().div_ceil(8);
            collected.journal.drain(..n_old);
            if n_old == 0 {
                collected.drift.truncate(collected.drift.len() / 2);
                collected.facts.pop_last();
            }
        }
        result.packages.truncate(result.packages.len() / 8 * 7);
        result
            .differences
            .truncate(result.differences.len() / 8 * 7);
    }
    if is_cut && outcome.result.collected.is_none() {
        let note = "the result was shortened";
        outcome.message = Some(match outcome.message.take() {
            Some(message) => format!("{message}; {note}"),
            None => note.to_owned(),
        });
    }
    outcome
}

/// Returns the settings of jobs in the spec. Without a spec, jobs run at any time, and none updates
/// packages unless it is submitted with a scope.
fn run_settings() -> Result<RunSettings, AgentError> {
    match spec::current() {
        Ok(spec) => Ok(spec.run),
        Err(AgentError::NoSpec { .. }) => Ok(RunSettings::default()),
        Err(error) => Err(error),
    }
}

impl RunSettings {
    /// Returns whether the window of this node allows updates and restarts now.
    fn is_in_window(&self) -> Result<bool, AgentError> {
        let Some(window) = &self.window else {
            return Ok(true);
        };
        let now = clock::now().to_zoned(time_zone()?);
        let weekday = u8::try_from(now.weekday().to_monday_zero_offset()).unwrap_or_default();
        let hour = u16::try_from(now.hour()).unwrap_or_default();
        let minute = u16::try_from(now.minute()).unwrap_or_default();
        Ok(window.contains(weekday, hour * 60 + minute))
    }

    /// Returns the message that something is not allowed outside the window.
    fn window_message(&self, what: &str) -> String {
        let window = self.window.clone().unwrap_or_default();
        format!(
            "{what} allowed only in the window {window} of this node (`run.window`); `--force` overrides it"
        )
    }
}

/// Returns the time zone of this machine. Without one it is UTC, as for the C library.
fn time_zone() -> Result<TimeZone, AgentError> {
    match fs_err::read("/etc/localtime") {
        Ok(bytes) => {
            TimeZone::tzif("localtime", &bytes).map_err(AgentError::observe("the time zone"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(TimeZone::UTC),
        Err(error) => Err(AgentError::observe("the time zone")(error)),
    }
}

/// Acquires the run lock. Fails if another run takes too long, or while changes await confirmation.
fn lock_for_changes() -> Result<File, AgentError> {
    let begun = clock::instant();
    loop {
        match undo::lock() {
            Err(AgentError::Busy | AgentError::AwaitingConfirmation(_))
                if begun.elapsed() < LOCK_TIMEOUT && !process::is_exceeded() => {}
            lock => return lock,
        }
        clock::sleep(LOCK_PAUSE);
    }
}

/// Passes the steps of a run on as output.
struct StepOutput<'a>(Output<'a>);

impl ApplyObserver for StepOutput<'_> {
    fn started(&mut self, changes: &[Change]) {
        (self.0)(&match changes.len() {
            0 => "nothing differs".to_owned(),
            1 => "1 field differs".to_owned(),
            n => format!("{n} fields differ"),
        });
    }

    fn step(&mut self, step: &ConvergeStep) {
        (self.0)(&step.description());
    }
}

/// Applies the spec again: the newest one of the server if the machine has enrolled, otherwise the stored
/// one.
fn converge_again(pulls: Pulls, output: Output<'_>) -> Result<JobOutcome, AgentError> {
    if let Some((changed, generation)) = (pulls.converge)(output)? {
        return Ok(succeeded(JobResult {
            changed: Some(changed),
            generation: Some(generation),
            ..JobResult::default()
        }));
    }
    let _lock = lock_for_changes()?;
    let mut observer = StepOutput(output);
    let done = converge(spec::current(), PACKAGES_LOCK_WAIT, &mut observer)?;
    Ok(succeeded(JobResult {
        changed: Some(done.n_steps > 0),
        ..JobResult::default()
    }))
}

/// Compares the machine with its spec.
fn check(pulls: Pulls, output: Output<'_>) -> Result<JobOutcome, AgentError> {
    let spec = spec::current()?;
    let (decision, changes) = compare(&spec)?;
    apply::require(&decision)?;
    let differences: Vec<String> = changes.into_iter().map(|change| change.id).collect();
    for id in &differences {
        output(&format!("differs: {id}"));
    }
    Ok(succeeded(JobResult {
        changed: Some(false),
        generation: (pulls.generation)(&spec.text),
        differences,
        ..JobResult::default()
    }))
}

#[cfg(test)]
mod tests {
    use homestak_api::job_statement::is_job_id;
    use homestak_api::v1::node_job::{Collected, PackageUpdate};

    use super::*;

    #[test]
    fn an_outcome_that_is_too_large_is_truncated_and_marked() {
        let package = |n: usize| PackageUpdate {
            name: format!("package-{n}"),
            from: "1".repeat(100),
            to: "2".repeat(100),
            security: true,
        };
        let outcome = limited(succeeded(JobResult {
            packages: (0..2_000).map(package).collect(),
            ..JobResult::default()
        }));
        let size = |outcome: &JobOutcome| serde_json::to_vec(outcome).expect("JSON").len();
        assert!(size(&outcome) <= MAX_OUTCOME + 100);
        assert!(outcome.result.packages.len() > 100);
        assert_eq!(outcome.message.as_deref(), Some("the result was shortened"));

        let outcome = limited(succeeded(JobResult {
            collected: Some(Collected {
                journal: (0..200)
                    .map(|n| format!("{n}{}", "é".repeat(500)))
                    .collect(),
                drift: vec!["x".repeat(1_000); 100],
                ..Collected::default()
            }),
            ..JobResult::default()
        }));
        assert!(size(&outcome) <= MAX_OUTCOME);
        let collected = outcome.result.collected.expect("collected");
        assert!(collected.truncated);
        assert_eq!(outcome.message, None);

        let outcome = limited(failed(format!("\u{1b}[2J{}", "x".repeat(5_000))));
        let message = outcome.message.expect("a message");
        assert!(message.len() < 4_100 && !message.contains('\u{1b}'));
    }

    #[test]
    fn a_job_is_refused_while_changes_await_confirmation_or_another_run_is_in_progress() {
        let execute = |converge: fn(Output<'_>) -> Result<Pulled, AgentError>| {
            let pulls = Pulls {
                converge,
                generation: |_| None,
            };
            let job = NodeJob {
                id: "0123456789abcdef0123456789abcdef".to_owned(),
                kind: JobKind::Converge,
                options: JobOptions::default(),
                time_limit: 60,
            };
            let outcome = LocalExecutor(pulls).execute(&job, &Records::default(), &mut |_| ());
            outcome.state
        };
        let waiting = execute(|_| Err(AgentError::AwaitingConfirmation("pull-1".to_owned())));
        assert_eq!(waiting, JobState::Refused);
        assert_eq!(execute(|_| Err(AgentError::Busy)), JobState::Refused);
        assert_eq!(execute(|_| Err(AgentError::Killed)), JobState::Failed);
    }

    #[test]
    fn the_id_of_a_job_names_no_other_file() {
        assert!(is_job_id("0123456789abcdef0123456789abcdef"));
        for text in [
            "",
            "ids",
            "../../../../etc/shadow",
            "0123456789ABCDEF0123456789ABCDEF",
        ] {
            assert!(!is_job_id(text), "{text}");
        }
    }
}
