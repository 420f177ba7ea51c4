//! The command `node-job`: a driver runs it over SSH.
//!
//! It continues when its connection is lost, and the same id again returns the recorded outcome.

use std::time::Duration;

use homestak_api::job_statement::MAX_TIME_LIMIT;
use homestak_api::v1::AgentOutput;
use homestak_api::v1::kind;
use homestak_api::v1::node_job::{JobOptions, JobOutcome, JobState};

use super::{
    Executor, JobOrigin, JobRecord, LocalExecutor, NodeJob, Output, Phase, Pulls, Records,
    TimePoint, finish, settled,
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
    let outcome = carry_out(&records, &job, &mut LocalExecutor(pulls), &mut print)?;
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

/// Executes a job, unless its id was used before. Then its outcome is returned, once it has ended.
fn carry_out(
    records: &Records,
    job: &NodeJob,
    executor: &mut dyn Executor,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    let lock = match records.lock(Duration::ZERO)? {
        Some(lock) => Some(lock),
        None => {
            output("waiting until the job that is running has ended");
            records.lock(Duration::from_secs(job.time_limit + MARGIN))?
        }
    };
    let _lock = lock.ok_or(AgentError::Busy)?;
    if let Some(record) = records.find(&job.id)? {
        let outcome = loop {
            match settled(&record, &clock::boot(), TimePoint::now()) {
                Some(outcome) => break outcome,
                None => clock::sleep(PAUSE),
            }
        };
        if record.outcome.is_none() {
            finish(records, &job.id, &outcome)?;
        }
        return Ok(outcome);
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

    #[test]
    fn the_same_id_returns_the_recorded_outcome_and_executes_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        let records = Records::new(root.path().to_owned());
        let mut executor = FakeExecutor { n_executed: 0 };
        let mut job = NodeJob {
            id: "0".repeat(32),
            kind: JobKind::Check,
            options: JobOptions::default(),
            time_limit: 60,
        };
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
}
