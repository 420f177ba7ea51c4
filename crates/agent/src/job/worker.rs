//! Whoever works on a job: says what happens, keeps the way back, asks whether the node is reached.
//!
//! In: a job that was begun. Out: its events up to the end.
//! Never: a dangerous step before what it changes was kept.

use homestak_core::converge::{Change, Decision, Event, Step};
use serde_json::Value;

use super::{Log, Place, SPEC, TERMS, Verdict, failure};
use crate::apply::{Party, Seen};
use crate::args::Terms;
use crate::command::{self, Done};
use crate::error::AgentError;
use crate::undo::{self, Kept};
use crate::{state, ui};

/// Works on a job.
pub(super) fn work(place: &Place) -> Result<u8, AgentError> {
    let _alive = place.take()?;
    let terms: Terms = place.read(TERMS)?;
    let mut worker = Worker::new(place, &terms, Log::open(place, None));
    let turn = state::lock().and_then(|turn| undo::require_none().map(|()| turn));
    let (turn, done) = match turn {
        Ok(turn) => {
            let text = place.read_text(SPEC);
            let spec = text.and_then(|text| command::parse("-".to_owned(), text));
            let done = command::converge(spec, terms.lock_wait, &mut worker);
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
    place: &'a Place,
    terms: &'a Terms,
    log: Log,
    kept: Option<Kept>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(place: &'a Place, terms: &'a Terms, log: Log) -> Self {
        Self {
            place,
            terms,
            log,
            kept: None,
        }
    }

    /// Ends the job, and returns what is told of it.
    pub(super) fn end(mut self, done: Result<Done, AgentError>) -> Value {
        if self.kept.take().is_some() {
            undo::forget(self.place);
        }
        let success = done.is_ok();
        let result = match done {
            Ok(done) => done.body,
            Err(error) => failure(&error),
        };
        let told = result.clone();
        self.log.say(Event::End { success, result });
        told
    }
}

impl Party for Worker<'_> {
    fn begins(&mut self, changes: &[Change]) {
        let changes = changes.to_vec();
        self.log.say(Event::Changes { changes });
    }

    fn step(&mut self, step: &Step) {
        let words = step.words().into();
        self.log.say(Event::Step { words });
    }

    fn keeps(&mut self, decision: &Decision, seen: &Seen) -> Result<(), AgentError> {
        if self.terms.confirm.is_some() && decision.could_cut_off(&self.terms.caller) {
            self.kept = Some(undo::keep(self.place, decision, seen)?);
        }
        Ok(())
    }

    fn holds(&mut self) -> Result<(), AgentError> {
        let (Some(within), Some(_)) = (self.terms.confirm, &self.kept) else {
            return Ok(());
        };
        let asked = self.place.ask(within)?;
        self.log.say(Event::Confirm { within });
        match self.place.await_verdict(&asked)? {
            Verdict::Confirmed => Ok(()),
            Verdict::Reverted => Err(AgentError::Unconfirmed { within }),
        }
    }

    fn failed(&mut self, error: AgentError) -> AgentError {
        let Some(kept) = &self.kept else {
            return error;
        };
        // What was confirmed stays, whatever happens then.
        match self.place.judge(Verdict::Reverted) {
            Ok(Verdict::Confirmed) => error,
            Ok(Verdict::Reverted) | Err(_) => {
                undo::take_back(self.place, kept, error, &mut self.log)
            }
        }
    }
}
