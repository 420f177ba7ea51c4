//! The worker of a job: records its events, saves what risky steps change before the first of them,
//! and waits for the confirmation.

use homestak_core::converge::{Change, ConvergeStep, Decision, Event, Facts, State};
use serde_json::Value;

use super::OPTIONS;
use crate::apply::ApplyObserver;
use crate::args::ApplyOptions;
use crate::converge::{ConvergeReport, converge};
use crate::error::AgentError;
use crate::spec;
use crate::state::job::{EventLog, Job, SPEC, Verdict};
use crate::undo::{self, Confirmation};

/// Executes a job.
pub(super) fn work(job: &Job) -> Result<u8, AgentError> {
    let _span = tracing::error_span!("job", id = job.id).entered();
    let _alive = job.start()?;
    let options: ApplyOptions = job.read(OPTIONS)?;
    let mut worker = Worker::new(job, &options, EventLog::open(job, None));
    let (lock, done) = match undo::lock() {
        Ok(lock) => {
            let text = job.read_text(SPEC);
            let spec = text.and_then(|text| spec::parse("-", text));
            let done = converge(spec, options.lock_wait, &mut worker);
            (Some(lock), done)
        }
        Err(error) => (None, Err(error)),
    };
    if let Err(error) = &done {
        tracing::error!("{}", error.message());
    }
    worker.end(done);
    drop(lock);
    Ok(0)
}

/// The worker of a job.
pub(super) struct Worker<'a> {
    options: &'a ApplyOptions,
    log: EventLog,
    confirmation: Confirmation<'a>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(job: &'a Job, options: &'a ApplyOptions, log: EventLog) -> Self {
        Self {
            options,
            log,
            confirmation: Confirmation::new(job),
        }
    }

    /// Ends the job, and returns its result.
    pub(super) fn end(mut self, done: Result<ConvergeReport, AgentError>) -> Value {
        self.confirmation.end();
        let success = done.is_ok();
        let result = match done {
            Ok(done) => done.result(),
            Err(error) => error.result(),
        };
        let reported = result.clone();
        self.log.write(Event::End { success, result });
        reported
    }
}

impl ApplyObserver for Worker<'_> {
    fn started(&mut self, changes: &[Change]) {
        let changes = changes.to_vec();
        self.log.write(Event::Changes { changes });
    }

    fn step(&mut self, step: &ConvergeStep) {
        let description = step.description().into();
        self.log.write(Event::Step { description });
    }

    fn before_changes(
        &mut self,
        decision: &Decision,
        facts: &Facts,
        back: State,
    ) -> Result<(), AgentError> {
        if self.options.confirm.is_some() && decision.could_lock_out(&self.options.caller) {
            self.confirmation.prepare(decision, facts, back)?;
        }
        Ok(())
    }

    fn verified(&mut self) -> Result<(), AgentError> {
        let (Some(within), true) = (self.options.confirm, self.confirmation.is_required()) else {
            return Ok(());
        };
        let log = &mut self.log;
        let requested = || log.write(Event::Confirm { within });
        match self.confirmation.request(within, requested)? {
            Verdict::Confirmed => Ok(()),
            Verdict::Reverted => Err(AgentError::Unconfirmed { within }),
        }
    }

    fn failed(&mut self, error: AgentError) -> AgentError {
        self.confirmation.failed(error, &mut self.log)
    }
}
