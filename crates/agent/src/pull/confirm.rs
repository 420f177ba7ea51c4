//! Changes that could cut this machine off are kept when a server is reached over a new connection
//! after them, and reverted otherwise (`undo`).
//!
//! If no server answered right before the changes, a missing answer after them proves nothing: they
//! are applied without confirmation, unless the same spec was reverted before.

use std::fs::File;
use std::sync::Arc;

use homestak_core::converge::{Change, ConvergeStep, Decision, Facts, State};

use crate::apply::ApplyObserver;
use crate::error::{AgentError, PullError};
use crate::state::job::{EventLog, Job, SPEC, Verdict};
use crate::undo::Confirmation;
use crate::{clock, settings};

/// How long servers are tried after the changes, in seconds. Long enough for an interface that is
/// configured again, and for several servers that do not answer.
const CONFIRM_WITHIN: u64 = 60;
/// The pause between two attempts, in milliseconds.
const PAUSE: u64 = 1_000;

/// Returns whether a server of the site answers, over a new connection.
pub(super) type Probe = Arc<dyn Fn() -> bool + Send + Sync>;

/// How changes that could cut this machine off are confirmed.
pub(super) struct ConfirmOptions {
    pub(super) probe: Probe,
    /// Whether they are applied only if a server answers first: they were reverted before.
    pub(super) needs_server: bool,
}

/// Passes everything on, and has changes confirmed by the server.
pub(super) struct ConfirmingObserver<'a> {
    inner: &'a mut dyn ApplyObserver,
    job: &'a Job,
    /// The spec that is being applied.
    text: String,
    options: &'a ConfirmOptions,
    confirmation: Confirmation<'a>,
    /// While it is locked, the unit that reverts the changes waits.
    alive: Option<File>,
}

impl<'a> ConfirmingObserver<'a> {
    pub(super) fn new(
        job: &'a Job,
        text: &str,
        options: &'a ConfirmOptions,
        inner: &'a mut dyn ApplyObserver,
    ) -> Self {
        Self {
            inner,
            job,
            text: text.to_owned(),
            options,
            confirmation: Confirmation::new(job),
            alive: None,
        }
    }

    /// Ends the run: nothing awaits confirmation any more.
    pub(super) fn end(mut self) {
        self.confirmation.end();
    }
}

impl ApplyObserver for ConfirmingObserver<'_> {
    fn started(&mut self, changes: &[Change]) {
        self.inner.started(changes);
    }

    fn step(&mut self, step: &ConvergeStep) {
        self.inner.step(step);
    }

    fn before_changes(
        &mut self,
        decision: &Decision,
        facts: &Facts,
        back: State,
    ) -> Result<(), AgentError> {
        self.inner.before_changes(decision, facts, back.clone())?;
        if !decision.could_lock_out(&settings::caller()) {
            return Ok(());
        }
        if !(self.options.probe)() {
            if self.options.needs_server {
                return Err(PullError::Postponed.into());
            }
            tracing::warn!("no server is reached, so the changes are not confirmed");
            return Ok(());
        }
        drop(self.job.claim()?);
        self.job.delete_old();
        self.job.write_text(SPEC, &self.text)?;
        self.alive = Some(self.job.start()?);
        self.confirmation.prepare(decision, facts, back)
    }

    fn verified(&mut self) -> Result<(), AgentError> {
        self.inner.verified()?;
        if !self.confirmation.is_required() {
            return Ok(());
        }
        let (id, probe) = (self.job.id.clone(), self.options.probe.clone());
        let requested = || {
            // A thread of its own: a request that hangs must not delay the revert. Without a thread,
            // the changes are reverted.
            let confirming = move || confirm(&Job::new(&id), &probe);
            _ = std::thread::Builder::new().spawn(confirming);
        };
        match self.confirmation.request(CONFIRM_WITHIN, requested)? {
            Verdict::Confirmed => Ok(()),
            Verdict::Reverted => Err(PullError::CutOff {
                within: CONFIRM_WITHIN,
            }
            .into()),
        }
    }

    fn failed(&mut self, error: AgentError) -> AgentError {
        let error = self.inner.failed(error);
        let mut log = EventLog::open(self.job, None);
        self.confirmation.failed(error, &mut log)
    }
}

/// Confirms a job as soon as a server answers.
fn confirm(job: &Job, probe: &Probe) {
    let is_open = || {
        let request = job.request();
        job.verdict().is_none() && request.is_some_and(|request| !request.is_expired())
    };
    while is_open() {
        if probe() {
            // Too late, it has no effect: the first verdict counts.
            _ = job.decide(Verdict::Confirmed);
            return;
        }
        clock::sleep(PAUSE);
    }
}
