//! Watches the machine for changes, and checks for drift after each and periodically. Waits while
//! another run holds the run lock.

mod paths;
mod sources;
mod units;

use std::time::{Duration, Instant};

use homestak_api::systemd::Notifier;
use homestak_core::converge::DriftState;
use homestak_core::error::chain;

use self::paths::WatchUpdate;
use self::sources::Sources;
use crate::error::{AgentError, PARTLY_REFUSED};
use crate::run::{self, CheckOptions, Correction};
use crate::settings::RunningProgram;
use crate::spec::{self, Spec};
use crate::state::drift;
use crate::{clock, settings, state, systemctl};

/// Events often come in bursts: a check follows after this long without one.
const QUIET_TIME: Duration = Duration::from_millis(150);
/// The longest time that a burst delays a check.
const MAX_BURST: Duration = Duration::from_secs(1);
/// The watchdog timeout during a check, which may install packages.
const BUSY_TIMEOUT: Duration = Duration::from_secs(4000);
/// Systemd is notified at most this often. A source whose events are of no interest may be ready all
/// the time, and systemd processes notifications before anything else: without a limit it would
/// process nothing else.
const NOTIFY_PAUSE: Duration = Duration::from_secs(1);
/// The interval of trying to take the run lock, in milliseconds.
const LOCK_PAUSE: u64 = 100;
/// The delay after a failed check, doubled for each failure in a row.
const RETRY: Duration = Duration::from_secs(5);
/// The longest such delay, and the interval of checks without a spec.
const MAX_RETRY: Duration = Duration::from_secs(300);

/// The longest interval of checks while not everything can be watched.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(10);

/// The interval of checks while the machine boots, and the longest time that counts as booting.
const BOOT_INTERVAL: Duration = Duration::from_secs(2);
const MAX_BOOT_TIME: Duration = Duration::from_secs(300);

/// Watches until the program is replaced or ended.
pub(crate) fn watch() -> Result<u8, AgentError> {
    let Some(_lock) = drift::lock_watch()? else {
        return Err(AgentError::Watched);
    };
    let mut watcher = Watcher {
        sources: Sources::new(),
        notify: settings::notifier(),
        notified: None,
        program: RunningProgram::new(),
        booting_since: Some(clock::instant()),
        problem: None,
        n_failed: 0,
    };
    // Before the run lock is taken: the run that starts this unit holds it.
    watcher.notify.ready();
    let mut due = clock::instant();
    loop {
        watcher.wait(due)?;
        if watcher.program.is_replaced() {
            tracing::info!("the program was replaced; exiting so that systemd starts the new one");
            return Ok(0);
        }
        let wait = watcher.lock_and_check()?;
        due = clock::instant() + wait;
    }
}

fn failed(source: std::io::Error) -> AgentError {
    AgentError::observe("event sources")(source)
}

struct Watcher {
    sources: Sources,
    notify: Notifier,
    /// When systemd was last notified that the watch works.
    notified: Option<Instant>,
    program: RunningProgram,
    /// The start of the watch, while the machine may still be booting.
    booting_since: Option<Instant>,
    /// Why the last check failed, or did not correct everything.
    problem: Option<String>,
    n_failed: u32,
}

impl Watcher {
    /// Notifies systemd that the watch works, unless it was notified recently.
    fn alive(&mut self) {
        let now = clock::instant();
        let is_due = |last: Instant| now.saturating_duration_since(last) >= NOTIFY_PAUSE;
        if self.notified.is_none_or(is_due) {
            self.notify.alive();
            self.notified = Some(now);
        }
    }

    /// Waits for events and the end of their burst, but not longer than until `due`.
    fn wait(&mut self, due: Instant) -> Result<(), AgentError> {
        loop {
            let left = due.saturating_duration_since(clock::instant());
            let longest = left.min(self.notify.interval().unwrap_or(left));
            let happened = self.sources.wait(longest).map_err(failed)?;
            self.alive();
            if happened {
                break;
            }
            if clock::instant() >= due {
                return Ok(());
            }
        }
        let begun = clock::instant();
        while clock::instant().saturating_duration_since(begun) < MAX_BURST {
            if !self.sources.wait(QUIET_TIME).map_err(failed)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes the run lock and checks for drift. Returns the delay of the next check.
    fn lock_and_check(&mut self) -> Result<Duration, AgentError> {
        let (_lock, interrupted) = loop {
            match drift::lock() {
                Ok(lock) => break lock,
                Err(AgentError::Busy | AgentError::AwaitingConfirmation(_)) => {}
                Err(error) => return Err(error),
            }
            self.alive();
            // Events are not lost: they wait, and a check follows anyway.
            clock::sleep(LOCK_PAUSE);
        };
        let mut drift = drift::load();
        let _span = tracing::error_span!("check", n = drift.n_checks).entered();
        self.notify.busy(BUSY_TIMEOUT);
        let checked = self.check(&mut drift, interrupted);
        self.notify.idle();
        let (wait, problem) = match checked {
            Ok((wait, problem)) => {
                self.n_failed = 0;
                (wait, problem)
            }
            Err(error) => {
                let wait = RETRY * (1 << self.n_failed.min(10));
                self.n_failed += 1;
                (wait.min(MAX_RETRY), Some(chain(&error)))
            }
        };
        if problem != self.problem {
            // Logged once, even if it persists.
            match &problem {
                Some(problem) => tracing::warn!("{problem}"),
                None => tracing::info!("the problem is resolved"),
            }
            self.problem.clone_from(&problem);
        }
        drift.error = problem;
        if let Err(error) = drift::save(&drift) {
            // The disk may be full; the watch continues.
            tracing::error!("{}", chain(&error));
            return Ok(MAX_RETRY);
        }
        let next = drift
            .next_retry(clock::now_and_uptime())
            .map(Duration::from_millis);
        Ok(next.map_or(wait, |next| next.min(wait)))
    }

    /// Checks for drift. Returns the delay of the next check, and why not everything is corrected.
    fn check(
        &mut self,
        drift: &mut DriftState,
        interrupted: bool,
    ) -> Result<(Duration, Option<String>), AgentError> {
        let mut spec = match spec::current() {
            Ok(spec) => spec,
            Err(error @ (AgentError::NoSpec { .. } | AgentError::UnreadableSpec(_))) => {
                return Ok((MAX_RETRY, Some(chain(&error))));
            }
            Err(error) => return Err(error),
        };
        let WatchUpdate { added, error } = self.update_sources(&spec)?;
        let boots = self.is_booting();
        let (options, why) = if boots {
            let why = "this machine is still booting".to_owned();
            (NOTHING, Some(why))
        } else {
            allowed(&mut spec, interrupted)
        };
        run::check_and_correct(&spec, drift, options)?;
        let interval = Duration::from_secs(spec.check_interval);
        let wait = if added {
            // Changes may have been missed before it was watched.
            Duration::ZERO
        } else if boots {
            BOOT_INTERVAL
        } else if error.is_some() {
            interval.min(UNWATCHED_INTERVAL)
        } else {
            interval
        };
        let unwatched = error.map(|error| {
            format!(
                "not everything can be watched; checking every {} s instead: {error}",
                UNWATCHED_INTERVAL.as_secs()
            )
        });
        Ok((wait, why.or(unwatched)))
    }

    /// Returns whether the machine is still booting: units and addresses that are starting are not
    /// drift.
    fn is_booting(&mut self) -> bool {
        let Some(begun) = self.booting_since else {
            return false;
        };
        let output = systemctl::run(&["is-system-running"]);
        let state = output.map(|output| output.out).unwrap_or_default();
        let early = matches!(state.trim(), "initializing" | "starting");
        let long = clock::instant().saturating_duration_since(begun) > MAX_BOOT_TIME;
        if !early || long {
            self.booting_since = None;
        }
        self.booting_since.is_some()
    }

    fn update_sources(&mut self, spec: &Spec) -> Result<WatchUpdate, AgentError> {
        let had_signals = self.sources.has_signals();
        let update = self.sources.update(&spec.wanted, &state::load()?);
        if had_signals && !self.sources.has_signals() {
            tracing::warn!(
                "no signals from systemd: changed units are only found by the periodic check"
            );
        }
        Ok(update)
    }
}

/// Nothing is corrected.
const NOTHING: CheckOptions = CheckOptions {
    correct: Correction::None,
    write_marker: false,
};

/// Returns what may be corrected, and why not everything. After a failed or interrupted `config apply`
/// only fields that the current and the attempted spec agree on are corrected.
fn allowed(spec: &mut Spec, interrupted: bool) -> (CheckOptions, Option<String>) {
    let options = |write_marker| CheckOptions {
        correct: Correction::NotHeld,
        write_marker,
    };
    let (complete, failed) = state::markers();
    let applied = match &failed {
        // Everything was applied, except refused changes.
        Some(failed) => failed["phase"] == "run" || failed["error"] == PARTLY_REFUSED,
        None => complete.is_some() || interrupted,
    };
    if applied {
        return (options(true), None);
    }
    let what = match &failed {
        Some(_) => "failed",
        None => "did not finish",
    };
    let Some(text) = state::attempted() else {
        return match failed {
            // It failed before its first change.
            Some(_) => (options(false), None),
            None => (NOTHING, Some(format!("the last `config apply` {what}"))),
        };
    };
    let Ok(other) = spec::parse("-", text) else {
        return (NOTHING, Some(format!("the last `config apply` {what}")));
    };
    spec.policy = spec.policy.with_frozen(&spec.wanted, &other.wanted);
    let frozen: Vec<&str> = spec.policy.frozen.iter().map(String::as_str).collect();
    let why = format!(
        "the last `config apply` {what}; not corrected until one succeeds: {}",
        frozen.join(", ")
    );
    (
        options(frozen.is_empty()),
        (!frozen.is_empty()).then_some(why),
    )
}
