//! Reports to the servers, sent by a thread of its own: applying a spec never waits for a server.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use homestak_api::v1::report::{Report, ReportState};
use homestak_core::converge::{Change, ConvergeStep, Decision, Facts, State};

use super::client::Client;
use super::session::VERSION;
use crate::apply::ApplyObserver;
use crate::error::{AgentError, PullError};
use crate::node_job::Output;

/// Reports that are queued while one is sent. Further ones are dropped: later ones supersede them.
const QUEUE: usize = 64;
/// The longest error, in characters. Servers refuse reports of more than 64 KiB.
const MAX_ERROR: usize = 4_000;
/// Differences in a report.
const MAX_DRIFT: usize = 100;

/// Reports about one pass.
pub(super) struct Reporter {
    run: String,
    pub(super) generation: Option<u64>,
    sender: Option<SyncSender<Report>>,
    thread: Option<JoinHandle<bool>>,
}

impl Reporter {
    /// Starts reporting. Without a client or a thread, nothing is reported.
    pub(super) fn new(run: &str, client: Option<Client>) -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        let work = client.map(|client| move || send_all(&client, &receiver));
        let thread = work.and_then(|work| std::thread::Builder::new().spawn(work).ok());
        Self {
            run: run.to_owned(),
            generation: None,
            sender: thread.is_some().then_some(sender),
            thread,
        }
    }

    /// Reports over new connections from now on: those in use may lead nowhere after a change of the
    /// network. Without reports until now, there are none.
    pub(super) fn reconnected(self, client: Option<Client>) -> Self {
        let client = client.filter(|_| self.sender.is_some());
        Self {
            generation: self.generation,
            ..Self::new(&self.run, client)
        }
    }

    /// Returns the report that shows that a server is reached.
    pub(super) fn contact(&self) -> Report {
        Report {
            step: Some("check that the server is reached".to_owned()),
            ..self.report(ReportState::Converging)
        }
    }

    fn report(&self, state: ReportState) -> Report {
        Report {
            run: self.run.clone(),
            state,
            generation: self.generation,
            step: None,
            changed: None,
            error: None,
            permanent: false,
            drift: Vec::new(),
            agent: VERSION.to_owned(),
        }
    }

    /// Reports progress, without waiting.
    pub(super) fn progress(&self, state: ReportState, step: Option<String>) {
        let report = Report {
            step,
            ..self.report(state)
        };
        if let Some(sender) = &self.sender
            && let Err(TrySendError::Full(_)) = sender.try_send(report)
        {
            tracing::debug!("a report was dropped");
        }
    }

    /// Reports that the machine matches its spec. Returns whether a server received it.
    pub(super) fn converged(self, changed: bool, drift: Vec<String>) -> bool {
        let report = Report {
            changed: Some(changed),
            drift: drift.into_iter().take(MAX_DRIFT).collect(),
            ..self.report(ReportState::Converged)
        };
        self.finish(report)
    }

    /// Reports a failure. Returns whether a server received it.
    pub(super) fn failed(self, message: &str, permanent: bool) -> bool {
        let report = Report {
            error: Some(message.chars().take(MAX_ERROR).collect()),
            permanent,
            ..self.report(ReportState::Failed)
        };
        self.finish(report)
    }

    fn finish(mut self, report: Report) -> bool {
        let Some(sender) = self.sender.take() else {
            return false;
        };
        let sent = sender.send(report).is_ok();
        drop(sender);
        let received = self.thread.take().map(JoinHandle::join);
        sent && matches!(received, Some(Ok(true)))
    }
}

/// Sends reports until there are no more. Returns whether the last one was received. After a failure
/// only the last one is sent, so that the end is not far.
fn send_all(client: &Client, receiver: &Receiver<Report>) -> bool {
    let mut received = true;
    for report in receiver {
        let is_last = matches!(report.state, ReportState::Converged | ReportState::Failed);
        if !received && !is_last {
            continue;
        }
        let sent = client.report(&report);
        if let Err(error) = &sent {
            tracing::warn!("the report is not sent: {error}");
        }
        received = sent.is_ok();
    }
    received
}

/// Reports the steps of a run, and shows them.
pub(super) struct ReportingObserver<'a> {
    pub(super) reporter: &'a Reporter,
    /// Receives them too.
    pub(super) output: Output<'a>,
    /// Whether changes were made that may break the connections of the reporter.
    pub(super) is_risky: bool,
}

impl ApplyObserver for ReportingObserver<'_> {
    fn started(&mut self, _changes: &[Change]) {
        self.reporter.progress(ReportState::Converging, None);
    }

    fn step(&mut self, step: &ConvergeStep) {
        let description = step.description();
        (self.output)(&description);
        let state = ReportState::Converging;
        self.reporter.progress(state, Some(description));
    }

    fn before_changes(
        &mut self,
        decision: &Decision,
        _facts: &Facts,
        _back: State,
    ) -> Result<(), AgentError> {
        self.is_risky = decision.could_lock_out("");
        Ok(())
    }
}

/// Returns whether applying the same spec again would fail in the same way. A spec that is refused is
/// requested again anyway: a server may have another one later.
pub(super) fn is_permanent(error: &AgentError) -> bool {
    match error {
        AgentError::WrongSpec(_)
        | AgentError::Refused(_)
        | AgentError::Pull(PullError::Statement { .. }) => true,
        error => error.is_permanent(),
    }
}
