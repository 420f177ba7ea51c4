//! The confirmation of changes that could make the node unreachable: by a driver over a new
//! connection, or by the node itself when it still reaches its server.

use homestak_core::converge::{Decision, Facts, State};

use super::{UndoRecord, forget, prepare, revert};
use crate::error::AgentError;
use crate::state::job::{EventLog, Job, Verdict};

/// The confirmation of a job's changes. The caller holds the lock of the job (`Job::start`), or the
/// unit that reverts them takes over.
pub(crate) struct Confirmation<'a> {
    job: &'a Job,
    record: Option<UndoRecord>,
}

impl<'a> Confirmation<'a> {
    /// No confirmation is necessary until [`Self::prepare`].
    pub(crate) fn new(job: &'a Job) -> Self {
        Self { job, record: None }
    }

    /// Saves what a decision changes: from now on it is reverted unless it is confirmed.
    pub(crate) fn prepare(
        &mut self,
        decision: &Decision,
        facts: &Facts,
        back: State,
    ) -> Result<(), AgentError> {
        self.record = Some(prepare(self.job, decision, facts, back)?);
        Ok(())
    }

    /// Returns whether the changes must be confirmed.
    pub(crate) fn is_required(&self) -> bool {
        self.record.is_some()
    }

    /// Requests the confirmation, calls `requested` and waits for the verdict.
    pub(crate) fn request(
        &self,
        within: u64,
        requested: impl FnOnce(),
    ) -> Result<Verdict, AgentError> {
        let request = self.job.request_confirmation(within)?;
        requested();
        self.job.await_verdict(&request)
    }

    /// Reverts the changes, unless they were confirmed. Returns the error to report.
    pub(crate) fn failed(&self, error: AgentError, log: &mut EventLog) -> AgentError {
        let Some(record) = &self.record else {
            return error;
        };
        // Confirmed changes are never reverted.
        match self.job.decide(Verdict::Reverted) {
            Ok(Verdict::Confirmed) => error,
            Ok(Verdict::Reverted) | Err(_) => revert(self.job, record, error, log),
        }
    }

    /// Deletes what was saved: the changes are confirmed or reverted.
    pub(crate) fn end(&mut self) {
        if self.record.take().is_some() {
            forget(self.job);
        }
    }
}
