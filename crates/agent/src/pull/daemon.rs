//! Repeats passes: requests newer specs at the interval of the current spec, and retries after failures
//! with growing pauses. Executes jobs between passes.
//!
//! When it goes wrong: an enrolled machine retries even when a server refuses it, because the server may
//! have lost its registry or be hostile. Other permanent errors end the daemon.

use std::time::Duration;

use super::jobs::Jobs;
use super::node::{LocalNode, Node as _, interval};
use super::pass::{Apply, PassOptions, pass_in};
use super::session::Session;
use super::store::Store;
use super::update::Programs;
use crate::error::AgentError;
use crate::node_job::{LocalExecutor, Records};
use crate::settings::RunningProgram;
use crate::spec::{self, RunSettings};
use crate::{random, state};

/// The interval before there is a spec, and the longest pause after a failure.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(300);
/// The first pause after a failure to reach a server.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The first pause after a failure to apply the spec, which costs more than a request.
const FIRST_APPLY_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause while no spec was applied: a driver may be waiting for this machine.
const MAX_FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause after a refusal, unless the interval of the spec is longer.
const MAX_REFUSED_PAUSE: Duration = Duration::from_secs(3600);

/// Growing pauses.
#[derive(Default)]
pub(super) struct Backoff {
    n_failed: u32,
}

impl Backoff {
    /// Counts a failure, and returns the pause after it, before it is randomized.
    pub(super) fn next(&mut self, first: Duration, longest: Duration) -> Duration {
        let pause = first.saturating_mul(1 << self.n_failed.min(16));
        self.n_failed += 1;
        pause.min(longest)
    }

    pub(super) fn reset(&mut self) {
        self.n_failed = 0;
    }
}

/// Returns whether the daemon retries after a permanent error, and the machine keeps its last spec: the
/// machine has enrolled, and a server now refuses it.
pub(super) fn asks_again(store: &Store, error: &AgentError) -> bool {
    error.is_denied() && store.registration().is_ok_and(|found| found.is_some())
}

/// Counts a refusal, and returns the pause after it, before it is randomized.
fn refused_pause(refusals: &mut Backoff, interval: Option<Duration>) -> Duration {
    let first = interval.unwrap_or(DEFAULT_INTERVAL).max(MAX_FIRST_PAUSE);
    refusals.next(first, MAX_REFUSED_PAUSE.max(first))
}

/// Returns whether a server sent something in a pass that failed.
fn is_fetched(error: &AgentError) -> bool {
    !matches!(
        error,
        AgentError::Fetch(_) | AgentError::NotFetchedNorApplied { .. }
    )
}

/// Returns the first pause after a failed pass.
pub(super) fn first_pause(error: &AgentError) -> Duration {
    match error {
        // Nothing was applied.
        AgentError::Fetch(_) => FIRST_PAUSE,
        _ => FIRST_APPLY_PAUSE,
    }
}

/// Repeats passes until the program is replaced or an error ends the daemon.
pub(super) fn run(store: &Store) -> Result<u8, AgentError> {
    let program = RunningProgram::new();
    let mut programs = Programs::default();
    let mut node = LocalNode;
    let mut backoff = Backoff::default();
    let mut refusals = Backoff::default();
    let mut current = None;
    let mut run = RunSettings::default();
    let mut executor = LocalExecutor(super::PULLS);
    let mut jobs = Jobs::new(Records::default(), &mut executor);
    loop {
        let mut session = None;
        let done = store.lock().and_then(|_lock| {
            // The program is not updated while changes await confirmation: it may have to revert them.
            let programs = state::unconfirmed().is_none().then_some(&mut programs);
            let mut options = PassOptions {
                apply: Apply::WhenPending,
                programs,
                output: &mut |_| (),
            };
            let opened = session.insert(Session::open(store)?);
            pass_in(opened, &mut node, &mut options)
        });
        let longest = current.unwrap_or(MAX_FIRST_PAUSE);
        let longest = longest.clamp(MAX_FIRST_PAUSE, DEFAULT_INTERVAL);
        let credentials = store.credentials();
        let pause = match done {
            Ok(report) if report.replaced => Duration::ZERO,
            Ok(report) => {
                refusals.reset();
                if let Ok(spec) = spec::parse("-", report.text.clone()) {
                    run = spec.run;
                }
                let every = interval(&report.text).unwrap_or(DEFAULT_INTERVAL);
                current = Some(every);
                if report.reported {
                    backoff.reset();
                    every
                } else {
                    backoff.next(FIRST_PAUSE, longest)
                }
            }
            Err(error) if error.is_permanent() => {
                node.mark(Some(&error));
                if !asks_again(store, &error) {
                    return Err(error);
                }
                // The server would refuse requests for jobs too.
                session = None;
                let pause = refused_pause(&mut refusals, current);
                tracing::error!("{}; asking again in about {pause:?}", error.message());
                pause
            }
            Err(error) => {
                if !is_fetched(&error) {
                    // Requests for jobs would fail too.
                    session = None;
                }
                let pause = backoff.next(first_pause(&error), longest);
                tracing::warn!("{}; trying again in about {pause:?}", error.message());
                pause
            }
        };
        let pause = random::around(pause);
        // New credentials end the pause: a driver has let this machine enrol again. The server may
        // have refused the earlier ones since the pass, and requests for jobs with them.
        let is_over = || program.is_replaced() || store.credentials() != credentials;
        jobs.pause(session.as_ref(), &run, pause, &is_over);
        if program.is_replaced() {
            tracing::info!("the program was replaced; exiting so that systemd starts the new one");
            return Ok(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_start_again_after_a_success() {
        let mut backoff = Backoff::default();
        let minute = Duration::from_secs(60);
        let pauses: Vec<u64> = (0..8)
            .map(|_| backoff.next(FIRST_PAUSE, minute).as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        for _ in 0..100 {
            assert_eq!(backoff.next(FIRST_PAUSE, minute), minute);
        }
        backoff.reset();
        assert_eq!(backoff.next(FIRST_APPLY_PAUSE, minute), FIRST_APPLY_PAUSE);
    }

    #[test]
    fn pauses_after_refusals_begin_with_the_interval_of_the_spec_and_grow_to_an_hour() {
        let pauses = |interval: Option<u64>| {
            let mut refusals = Backoff::default();
            let interval = interval.map(Duration::from_secs);
            let pauses = (0..6).map(|_| refused_pause(&mut refusals, interval).as_secs());
            pauses.collect::<Vec<_>>()
        };
        assert_eq!(pauses(None), [300, 600, 1200, 2400, 3600, 3600]);
        assert_eq!(pauses(Some(5)), [60, 120, 240, 480, 960, 1920]);
        assert_eq!(pauses(Some(86400)), [86400; 6]);
    }
}
