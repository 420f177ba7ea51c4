//! The command `node-job`: a driver runs it over SSH.
//!
//! It continues when its connection is lost, and the same id again returns the recorded outcome.

use std::fs::File;
use std::time::Duration;

use homestak_api::job_statement::MAX_TIME_LIMIT;
use homestak_api::v1::AgentOutput;
use homestak_api::v1::kind;
use homestak_api::v1::node_job::{JobOptions, JobOutcome, JobState};

use super::{
    Executor, JobOrigin, JobRecord, LocalExecutor, NodeJob, Output, Phase, Pulls, Records,
    TimePoint, finish, refused, settled,
};
use crate::args::NodeJobArgs;
use crate::error::AgentError;
use crate::{clock, http, random, settings, ui};

/// How much longer than its time limit another call of the same job may take to end, which includes
/// ending its programs.
const MARGIN: u64 = 60;
/// The interval of checking whether a restart has completed, in milliseconds.
const PAUSE: u64 = 500;

/// Runs a job.
///
/// Exit code: 0 succeeded; 2 failed; 3 refused.
pub(crate) fn run(args: &NodeJobArgs, pulls: Pulls, json: bool) -> Result<u8, AgentError> {
    settings::require_root()?;
    let _runtime = http::ignore_hangup()?;
    let random = || format!("{}{}", random::hex_id(), random::hex_id());
    let job = NodeJob {
        id: args.id.clone().unwrap_or_else(random),
        kind: args.kind,
        options: JobOptions {
            force: args.force,
            dry_run: args.dry_run,
            no_reboot: args.no_reboot,
            scope: args.scope,
        },
        time_limit: args.time_limit.clamp(1, MAX_TIME_LIMIT),
    };
    let records = Records::default();
    let mut print = |line: &str| ui::message(line);
    let mut executor = LocalExecutor(pulls);
    let outcome = match args.known {
        true => recorded(&records, &job, &mut print)?,
        false => carry_out(&records, &job, &mut executor, &mut print)?,
    };
    let code = match outcome.state {
        JobState::Succeeded => 0,
        JobState::Refused => 3,
        JobState::Failed
        | JobState::Queued
        | JobState::Taken
        | JobState::Cancelled
        | JobState::Expired
        | JobState::Lost => 2,
    };
    if json {
        ui::output(&kind::AGENT_NODE_JOB, &AgentOutput::Result(outcome));
    } else {
        show(&outcome);
    }
    Ok(code)
}

fn show(outcome: &JobOutcome) {
    let result = serde_json::to_value(&outcome.result).unwrap_or_default();
    ui::data(&format!("{result:#}\n"));
    let word = match outcome.state {
        JobState::Succeeded => "succeeded",
        JobState::Refused => "refused",
        JobState::Failed
        | JobState::Queued
        | JobState::Taken
        | JobState::Cancelled
        | JobState::Expired
        | JobState::Lost => "failed",
    };
    match &outcome.message {
        Some(message) => ui::message(&format!("{word}: {message}")),
        None => ui::message(word),
    }
}

/// Waits until no other job is running.
fn wait_for_turn(records: &Records, job: &NodeJob, output: Output<'_>) -> Result<File, AgentError> {
    let lock = match records.lock(Duration::ZERO)? {
        Some(lock) => Some(lock),
        None => {
            output("waiting until the job that is running has ended");
            records.lock(Duration::from_secs(job.time_limit + MARGIN))?
        }
    };
    lock.ok_or(AgentError::Busy)
}

/// Returns the outcome of a job that was started earlier, and runs nothing.
fn recorded(
    records: &Records,
    job: &NodeJob,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    let _lock = wait_for_turn(records, job, output)?;
    let found = records.find(&job.id)?;
    let outcome = found.map(|record| outcome_of(records, job, &record));
    outcome.unwrap_or_else(|| {
        Ok(refused(format!(
            "there is no record of a job {} on this node, and nothing was run",
            job.id
        )))
    })
}

/// Returns the outcome of a recorded job, once it has ended.
fn outcome_of(
    records: &Records,
    job: &NodeJob,
    record: &JobRecord,
) -> Result<JobOutcome, AgentError> {
    if record.kind != job.kind {
        return Ok(refused(format!(
            "the job {} is of the kind `{}`, and nothing was run",
            job.id,
            record.kind.name()
        )));
    }
    let outcome = loop {
        match settled(record, &clock::boot(), TimePoint::now()) {
            Some(outcome) => break outcome,
            None => clock::sleep(PAUSE),
        }
    };
    if record.outcome.is_none() {
        finish(records, &job.id, &outcome)?;
    }
    Ok(outcome)
}

/// Executes a job, unless its id was used before. Then its outcome is returned, once it has ended.
fn carry_out(
    records: &Records,
    job: &NodeJob,
    executor: &mut dyn Executor,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    let _lock = wait_for_turn(records, job, output)?;
    if let Some(record) = records.find(&job.id)? {
        return outcome_of(records, job, &record);
    }
    let record = records.add(&job.id, job.kind, JobOrigin::Command)?;
    records.put(&JobRecord {
        phase: Phase::Begun,
        ..record
    })?;
    let outcome = executor.execute(job, records, output);
    if let Err(error) = finish(records, &job.id, &outcome) {
        tracing::error!("{}", error.message());
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use homestak_api::v1::node_job::JobKind;

    use super::*;
    use crate::node_job::{failed, refused};

    struct FakeExecutor {
        n_executed: usize,
    }

    impl Executor for FakeExecutor {
        fn execute(&mut self, job: &NodeJob, records: &Records, _: Output<'_>) -> JobOutcome {
            let record = records.find(&job.id).expect("read").expect("recorded");
            assert_eq!(record.phase, Phase::Begun, "recorded before it begins");
            self.n_executed += 1;
            refused("not today")
        }
    }

    fn check() -> NodeJob {
        NodeJob {
            id: "0".repeat(32),
            kind: JobKind::Check,
            options: JobOptions::default(),
            time_limit: 60,
        }
    }

    #[test]
    fn the_same_id_returns_the_recorded_outcome_and_executes_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        let records = Records::new(root.path().to_owned());
        let mut executor = FakeExecutor { n_executed: 0 };
        let mut job = check();
        for _ in 0..3 {
            let outcome = carry_out(&records, &job, &mut executor, &mut |_| ());
            assert_eq!(outcome.expect("an outcome"), refused("not today"));
        }
        assert_eq!(executor.n_executed, 1);

        // One that was killed is not executed again.
        job.id = "1".repeat(32);
        let record = records.add(&job.id, job.kind, JobOrigin::Command);
        let record = JobRecord {
            phase: Phase::Begun,
            ..record.expect("added")
        };
        records.put(&record).expect("stored");
        for _ in 0..2 {
            let outcome = carry_out(&records, &job, &mut executor, &mut |_| ());
            let outcome = outcome.expect("an outcome");
            assert_eq!(outcome.state, failed("").state);
            let message = outcome.message.expect("a message");
            assert!(message.starts_with("interrupted"), "{message}");
        }
        assert_eq!(executor.n_executed, 1);
        let record = records.find(&job.id).expect("read").expect("recorded");
        assert_eq!(record.phase, Phase::Ended);
    }

    #[test]
    fn the_outcome_of_an_unknown_job_or_of_another_kind_is_refused_and_nothing_is_executed() {
        let root = tempfile::tempdir().expect("a directory");
        let records = Records::new(root.path().to_owned());
        let mut executor = FakeExecutor { n_executed: 0 };
        let mut job = check();
        let message = |outcome: Result<JobOutcome, AgentError>| {
            let outcome = outcome.expect("an outcome");
            assert_eq!(outcome.state, JobState::Refused);
            outcome.message.expect("a message")
        };
        let unknown = message(recorded(&records, &job, &mut |_| ()));
        assert!(unknown.contains("no record"), "{unknown}");
        assert!(records.find(&job.id).expect("read").is_none());

        carry_out(&records, &job, &mut executor, &mut |_| ()).expect("executed");
        let known = recorded(&records, &job, &mut |_| ()).expect("an outcome");
        assert_eq!(known, refused("not today"));
        job.kind = JobKind::Reboot;
        for outcome in [
            recorded(&records, &job, &mut |_| ()),
            carry_out(&records, &job, &mut executor, &mut |_| ()),
        ] {
            let other = message(outcome);
            assert!(other.contains("`check`"), "{other}");
        }
        assert_eq!(executor.n_executed, 1);
    }
}
