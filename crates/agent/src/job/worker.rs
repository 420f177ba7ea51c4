//! Whoever works on a job: logs its events, keeps what dangerous steps change before the first of
//! them, and asks whether the node can still be reached.

use homestak_core::converge::{Change, Decision, Event, Facts, State, Step};
use serde_json::Value;

use super::TERMS;
use crate::apply::Observer;
use crate::args::Terms;
use crate::converge::{Done, converge};
use crate::error::AgentError;
use crate::spec;
use crate::state::job::{Job, Log, SPEC, Verdict};
use crate::ui;
use crate::undo::{self, Kept};

/// Works on a job.
pub(super) fn work(job: &Job) -> Result<u8, AgentError> {
    let _alive = job.take()?;
    let terms: Terms = job.read(TERMS)?;
    let mut worker = Worker::new(job, &terms, Log::open(job, None));
    let (turn, done) = match undo::turn() {
        Ok(turn) => {
            let text = job.read_text(SPEC);
            let spec = text.and_then(|text| spec::parse("-", text));
            let done = converge(spec, terms.lock_wait, &mut worker);
            (Some(turn), done)
        }
        Err(error) => (None, Err(error)),
    };
    if let Err(error) = &done {
        ui::say(&format!("error: {}", error.message()));
    }
    worker.end(done);
    drop(turn);
    Ok(0)
}

/// Whoever works on a job.
pub(super) struct Worker<'a> {
    job: &'a Job,
    terms: &'a Terms,
    log: Log,
    kept: Option<Kept>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(job: &'a Job, terms: &'a Terms, log: Log) -> Self {
        Self {
            job,
            terms,
            log,
            kept: None,
        }
    }

    /// Ends the job, and returns what is told of it.
    pub(super) fn end(mut self, done: Result<Done, AgentError>) -> Value {
        if self.kept.take().is_some() {
            undo::forget(self.job);
        }
        let success = done.is_ok();
        let result = match done {
            Ok(done) => done.body,
            Err(error) => error.result(),
        };
        let told = result.clone();
        self.log.say(Event::End { success, result });
        told
    }
}

impl Observer for Worker<'_> {
    fn begins(&mut self, changes: &[Change]) {
        let changes = changes.to_vec();
        self.log.say(Event::Changes { changes });
    }

    fn step(&mut self, step: &Step) {
        let description = step.description().into();
        self.log.say(Event::Step { description });
    }

    fn keeps(&mut self, decision: &Decision, facts: &Facts, back: State) -> Result<(), AgentError> {
        if self.terms.confirm.is_some() && decision.could_lock_out(&self.terms.caller) {
            self.kept = Some(undo::keep(self.job, decision, facts, back)?);
        }
        Ok(())
    }

    fn holds(&mut self) -> Result<(), AgentError> {
        let (Some(within), Some(_)) = (self.terms.confirm, &self.kept) else {
            return Ok(());
        };
        let asked = self.job.ask(within)?;
        self.log.say(Event::Confirm { within });
        match self.job.await_verdict(&asked)? {
            Verdict::Confirmed => Ok(()),
            Verdict::Reverted => Err(AgentError::Unconfirmed { within }),
        }
    }

    fn failed(&mut self, error: AgentError) -> AgentError {
        let Some(kept) = &self.kept else {
            return error;
        };
        // What was confirmed stays, whatever happens then.
        match self.job.judge(Verdict::Reverted) {
            Ok(Verdict::Confirmed) => error,
            Ok(Verdict::Reverted) | Err(_) => undo::take_back(self.job, kept, error, &mut self.log),
        }
    }
}
