//! Jobs that a server of the site has for this machine.
//!
//! Flow: offers are requested while the daemon pauses between two passes. A job is verified, recorded,
//! taken at the server, recorded as begun, executed, recorded as ended, and reported.
//! Guarantees: a job begins at most once, whatever is lost or killed. A server cannot invent, change or
//! repeat one.
//! When it goes wrong: a job that was interrupted is reported as failed. Outcomes are sent until a
//! server has received or refused them.

mod live;
mod offer;
mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use homestak_api::job_statement::is_job_id;
use homestak_api::v1::node_job::{JobKind, JobOffer};
use homestak_core::foreign::ForeignText;

use self::live::{LiveOutput, PendingOutput};
use self::offer::{AcceptedJob, Expected, OfferError, accept};
use super::client::TakeAnswer;
use super::daemon::Backoff;
use super::session::Session;
use crate::error::{AgentError, FetchError};
use crate::node_job::{
    Executor, JobOrigin, JobRecord, Limits, Phase, Records, TimePoint, failed, finish,
};
use crate::spec::RunSettings;
use crate::{clock, random};

/// How long a server may hold a request for offers. The daemon notices only afterwards that its
/// program was replaced.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// A shorter wait is not worth a request.
const MIN_WAIT: Duration = Duration::from_secs(1);
/// The first pause after an answer that led to nothing.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after offers that are refused.
const MAX_IDLE_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Offers that are read of an answer: a server that is not compromised has no more queued jobs of a node.
const MAX_OFFERS: usize = 100;
/// Offers that are logged and remembered as refused, until the next pass.
const MAX_IGNORED: usize = 100;
/// The most characters of an id that are logged; valid ones have fewer.
const MAX_ID: usize = 64;

/// The jobs of this machine.
pub(super) struct Jobs<'a> {
    records: Records,
    executor: &'a mut dyn Executor,
    /// Whether the server has jobs. Asked again after each pass.
    is_supported: bool,
    /// Offers that were refused: a server repeats them.
    ignored: BTreeSet<String>,
    polls: Backoff,
    reports: Backoff,
    /// When outcomes are sent again.
    next_report: Option<Instant>,
    /// Output that was not sent, by job. It is lost when the program ends.
    unsent: BTreeMap<String, PendingOutput>,
}

/// The result of one request for offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// A job was executed.
    Executed(JobKind),
    /// There is none.
    Nothing,
    /// There are only jobs that are refused, or that must wait.
    Ignored,
    /// The server is too old to offer jobs.
    Unsupported,
    /// No server answered, or the jobs could not be recorded.
    Failed,
}

impl<'a> Jobs<'a> {
    pub(super) fn new(records: Records, executor: &'a mut dyn Executor) -> Self {
        Self {
            records,
            executor,
            is_supported: true,
            ignored: BTreeSet::new(),
            polls: Backoff::default(),
            reports: Backoff::default(),
            next_report: None,
            unsent: BTreeMap::new(),
        }
    }

    /// Executes jobs until a pause is over, the program was replaced, or a job has applied a spec.
    pub(super) fn pause(
        &mut self,
        session: Option<&Session<'_>>,
        run: &RunSettings,
        pause: Duration,
        is_replaced: &dyn Fn() -> bool,
    ) {
        self.is_supported = true;
        self.ignored.clear();
        let begun = clock::instant();
        loop {
            let left = pause.saturating_sub(begun.elapsed());
            if left.is_zero() || is_replaced() {
                return;
            }
            let session = session.filter(|_| self.is_supported && left >= MIN_WAIT);
            let Some(session) = session else {
                sleep(left.min(MAX_WAIT));
                continue;
            };
            let asked = clock::instant();
            let rest = match self.poll(session, run, left.min(MAX_WAIT)) {
                // What it accepted is read again.
                Polled::Executed(JobKind::Converge) => return,
                Polled::Executed(_) => {
                    self.polls.reset();
                    Duration::ZERO
                }
                Polled::Nothing if asked.elapsed() >= FIRST_PAUSE => {
                    self.polls.reset();
                    Duration::ZERO
                }
                Polled::Nothing | Polled::Ignored => self.polls.next(FIRST_PAUSE, MAX_IDLE_PAUSE),
                Polled::Failed => random::around(self.polls.next(FIRST_PAUSE, MAX_PAUSE)),
                Polled::Unsupported => {
                    self.is_supported = false;
                    Duration::ZERO
                }
            };
            sleep(rest.min(left));
        }
    }

    /// Sends outcomes that are due, requests offers, and executes the first one that is accepted.
    pub(super) fn poll(
        &mut self,
        session: &Session<'_>,
        run: &RunSettings,
        wait: Duration,
    ) -> Polled {
        if self.next_report.is_none_or(|next| clock::instant() >= next) {
            self.report_ended(session.own_client());
        }
        // An outcome that is sent again soon does not wait for offers.
        let next_report = self
            .next_report
            .map(|next| next.saturating_duration_since(clock::instant()));
        let wait = next_report.map_or(wait, |next| wait.min(next.max(MIN_WAIT)));
        let offers = match session.own_client().offers(wait) {
            Ok(offers) => offers.jobs,
            Err(FetchError::Refused {
                status: 404 | 405, ..
            }) => return Polled::Unsupported,
            Err(error) => {
                tracing::debug!("no offers: {error}");
                return Polled::Failed;
            }
        };
        if offers.is_empty() {
            return Polled::Nothing;
        }
        for offer in offers.iter().take(MAX_OFFERS) {
            match self.consider(session, run, offer) {
                Ok(Polled::Ignored) => {}
                Ok(polled) => return polled,
                Err(error) => {
                    tracing::error!("{}", error.message());
                    return Polled::Failed;
                }
            }
        }
        Polled::Ignored
    }

    /// Takes and executes a job, if it is accepted.
    fn consider(
        &mut self,
        session: &Session<'_>,
        run: &RunSettings,
        offer: &JobOffer,
    ) -> Result<Polled, AgentError> {
        if self.ignored.contains(&shown(&offer.id)) {
            return Ok(Polled::Ignored);
        }
        // Held until it has ended: jobs over SSH wait.
        let Some(_lock) = self.records.lock(Duration::ZERO)? else {
            return Ok(Polled::Ignored);
        };
        let limits = self.records.limits()?;
        let now = TimePoint::now();
        let recorded = match is_job_id(&offer.id) {
            true => self.records.find(&offer.id)?,
            false => None,
        };
        let expected = Expected {
            registration: &session.registration,
            run,
            last_trigger: limits.trigger,
            now,
        };
        let accepted = match accept(offer, &expected) {
            Ok(accepted) => accepted,
            Err(error) => {
                // It is accepted later.
                if error != OfferError::TooOften {
                    self.ignore(&offer.id, &error.to_string());
                }
                return Ok(Polled::Ignored);
            }
        };
        let record = match recorded {
            // It was not taken, or has not begun.
            Some(record) if record.phase == Phase::Taken => record,
            Some(_) => return Ok(self.ignore(&offer.id, "it was taken before")),
            None => match self.record(&accepted, now)? {
                Ok(record) => record,
                Err(why) => return Ok(self.ignore(&offer.id, why)),
            },
        };
        if accepted.expires.is_none() {
            // Counted each time, also if it was recorded before: a server could have many recorded,
            // one a minute, and then assign them all at once.
            let trigger = Some(now);
            self.records.put_limits(&Limits { trigger, ..limits })?;
        }
        self.take(session, &accepted, record)
    }

    /// Logs that an offer is refused. A server can invent ids without end: what is logged is limited.
    fn ignore(&mut self, id: &str, why: &str) -> Polled {
        let id = shown(id);
        if self.ignored.len() < MAX_IGNORED {
            tracing::warn!(%id, "a job of the server is refused: {why}");
            self.ignored.insert(id);
            if self.ignored.len() == MAX_IGNORED {
                tracing::warn!("more jobs that are refused are not logged until the next pass");
            }
        }
        Polled::Ignored
    }

    /// Records a job before it is taken. Returns why it is refused.
    fn record(
        &self,
        accepted: &AcceptedJob,
        now: TimePoint,
    ) -> Result<Result<JobRecord, &'static str>, AgentError> {
        let job = &accepted.job;
        if let Some(expires) = accepted.expires {
            if self.records.has_id(&job.id)? {
                return Ok(Err("it was taken before"));
            }
            if !self.records.add_id(&job.id, expires, now.time)? {
                return Ok(Err("too many jobs were taken recently"));
            }
        }
        let added = self.records.add(&job.id, job.kind, JobOrigin::Server);
        added.map(Ok)
    }

    /// Takes a job at the server, and executes it.
    fn take(
        &mut self,
        session: &Session<'_>,
        accepted: &AcceptedJob,
        record: JobRecord,
    ) -> Result<Polled, AgentError> {
        let job = &accepted.job;
        match session.own_client().take(&job.id) {
            TakeAnswer::Taken => {}
            TakeAnswer::Refused => {
                tracing::info!(id = job.id, "the job was cancelled, or taken elsewhere");
                self.records.put(&JobRecord {
                    phase: Phase::Ended,
                    outcome: Some(failed("the server did not assign it to this node")),
                    is_due: false,
                    ..record
                })?;
                return Ok(self.ignore(&job.id, "the server does not assign it"));
            }
            // If it arrived, the next report ends it; otherwise it is offered again.
            TakeAnswer::Lost(error) => {
                tracing::warn!(id = job.id, "the job is not taken: {error}");
                self.records.put(&JobRecord {
                    is_due: true,
                    ..record
                })?;
                return Ok(Polled::Failed);
            }
        }
        self.records.put(&JobRecord {
            phase: Phase::Begun,
            is_due: true,
            ..record
        })?;
        tracing::info!(id = job.id, kind = ?job.kind, origin = %ForeignText::line(&accepted.origin), "job taken");
        let live = LiveOutput::new(&job.id, session.client().ok());
        let outcome = self
            .executor
            .execute(job, &self.records, &mut |line| live.line(line));
        let unsent = live.end();
        finish(&self.records, &job.id, &outcome)?;
        if let Some(record) = self.records.find(&job.id)? {
            let n_sent = unsent.offset;
            self.records.put(&JobRecord { n_sent, ..record })?;
        }
        self.unsent.insert(job.id.clone(), unsent);
        // Each is limited in size.
        while self.unsent.len() > 4 {
            self.unsent.pop_first();
        }
        self.reports.reset();
        self.report_ended(session.own_client());
        Ok(Polled::Executed(job.kind))
    }
}

/// Returns an id as it is logged and remembered.
fn shown(id: &str) -> String {
    let start: String = id.chars().take(MAX_ID).collect();
    ForeignText::line(&start).into()
}

fn sleep(duration: Duration) {
    clock::sleep(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
}
