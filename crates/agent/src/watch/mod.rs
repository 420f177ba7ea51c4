//! Watching the machine, so that what changes is seen at once and corrected as its spec says. It
//! never competes: with a run that has the turn, with itself, or with whoever changes a field
//! again and again.

mod bus;
mod notify;
mod paths;
mod sources;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use homestak_core::converge::DriftState;
use homestak_core::error::chain;

use self::notify::Notify;
use self::paths::Aimed;
use self::sources::Sources;
use crate::error::{AgentError, PARTLY};
use crate::run::{self, Charge, Mends};
use crate::spec::{self, Spec};
use crate::state::drift;
use crate::{clock, process, state, ui};

/// Changes often come in bursts: it is looked when nothing has happened for so long.
const QUIET: Duration = Duration::from_millis(150);
/// A burst that does not end is looked at all the same.
const LONGEST_BURST: Duration = Duration::from_secs(1);
/// How often is looked whether the turn is free.
const TURN: Duration = Duration::from_millis(100);
/// How long is waited after a look that failed; each time in a row doubles it.
const RETRY: Duration = Duration::from_secs(5);
/// The longest that is waited, and how often is looked while there is no spec.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// How often is looked at least while not everything can be watched.
const BLIND: Duration = Duration::from_secs(10);

/// How often is looked while the machine is started, and for how long.
const STARTING: Duration = Duration::from_secs(2);
const LONGEST_START: Duration = Duration::from_secs(300);

/// Watches until the program is replaced or ended.
pub(crate) fn watch() -> Result<u8, AgentError> {
    let Some(_only) = drift::lock_watch()? else {
        return Err(AgentError::Watched);
    };
    let mut watch = Watch {
        sources: Sources::new(),
        notify: Notify::new(),
        program: program(),
        starting: Some(clock::instant()),
        trouble: None,
        n_failed: 0,
    };
    // Whoever starts us may have the turn, and waits for this.
    watch.notify.ready();
    let mut due = clock::instant();
    loop {
        watch.wait(due)?;
        if watch.is_replaced() {
            ui::say("the program was replaced, so that the new one is started");
            return Ok(0);
        }
        let wait = watch.look()?;
        due = clock::instant() + wait;
    }
}

fn failed(source: std::io::Error) -> AgentError {
    AgentError::look("changes of this machine")(source)
}

struct Watch {
    sources: Sources,
    notify: Notify,
    program: Option<PathBuf>,
    /// Since when we watch a machine that may still be starting.
    starting: Option<Instant>,
    /// What was last in the way.
    trouble: Option<String>,
    n_failed: u32,
}

impl Watch {
    /// Waits until something has happened and it is quiet again, or until it is time.
    fn wait(&mut self, due: Instant) -> Result<(), AgentError> {
        loop {
            let left = due.saturating_duration_since(clock::instant());
            let longest = left.min(self.notify.silence());
            let happened = self.sources.wait(longest).map_err(failed)?;
            self.notify.alive();
            if happened {
                break;
            }
            if clock::instant() >= due {
                return Ok(());
            }
        }
        let begun = clock::instant();
        while clock::instant().saturating_duration_since(begun) < LONGEST_BURST {
            if !self.sources.wait(QUIET).map_err(failed)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Looks, and returns after which time it is looked again when nothing happens.
    fn look(&mut self) -> Result<Duration, AgentError> {
        let (_turn, cut_off) = loop {
            match drift::lock() {
                Ok(turn) => break turn,
                Err(AgentError::Busy | AgentError::Waiting(_)) => {}
                Err(error) => return Err(error),
            }
            self.notify.alive();
            self.sources.wait(TURN).map_err(failed)?;
        };
        let mut drift = drift::load();
        self.notify.busy();
        let looked = self.look_and_mend(&mut drift, cut_off);
        self.notify.idle();
        let (wait, trouble) = match looked {
            Ok((wait, trouble)) => {
                self.n_failed = 0;
                (wait, trouble)
            }
            Err(error) => {
                let wait = RETRY * (1 << self.n_failed.min(10));
                self.n_failed += 1;
                (wait.min(LONGEST_RETRY), Some(chain(&error)))
            }
        };
        if trouble != self.trouble {
            // Said once, however often it is met.
            ui::say(trouble.as_deref().unwrap_or("all is well again"));
            self.trouble.clone_from(&trouble);
        }
        drift.error = trouble;
        if let Err(error) = drift::save(&drift) {
            // A disk that is full is no reason to end.
            ui::say(&chain(&error));
            return Ok(LONGEST_RETRY);
        }
        let next = drift.next_retry(clock::both()).map(Duration::from_millis);
        Ok(next.map_or(wait, |next| next.min(wait)))
    }

    /// Also returns why nothing is mended, when nothing is.
    fn look_and_mend(
        &mut self,
        drift: &mut DriftState,
        cut_off: bool,
    ) -> Result<(Duration, Option<String>), AgentError> {
        let mut spec = match spec::kept() {
            Ok(spec) => spec,
            Err(error @ AgentError::NoSpec { .. }) => {
                return Ok((LONGEST_RETRY, Some(chain(&error))));
            }
            Err(error) => return Err(error),
        };
        let Aimed { fresh, missed } = self.aim(&spec)?;
        let starts = self.starts();
        let (charge, why) = if starts {
            let why = "this machine is still starting".to_owned();
            (NOTHING, Some(why))
        } else {
            allowed(&mut spec, cut_off)
        };
        run::round(&spec, drift, charge)?;
        let sweep = Duration::from_secs(spec.check_interval);
        let wait = if fresh {
            // Something may have happened before it was watched.
            Duration::ZERO
        } else if starts {
            STARTING
        } else if missed.is_some() {
            sweep.min(BLIND)
        } else {
            sweep
        };
        let missed = missed.map(|error| {
            format!("not everything can be watched, so that it is looked at every {} s instead: {error}", BLIND.as_secs())
        });
        Ok((wait, why.or(missed)))
    }

    /// Tells whether the machine is still being started: addresses and units that are on their way
    /// are not missing. One that never gets there is looked after all the same.
    fn starts(&mut self) -> bool {
        let Some(begun) = self.starting else {
            return false;
        };
        let ended = process::run(&["systemctl", "is-system-running"]);
        let word = ended.map(|ended| ended.out).unwrap_or_default();
        let early = matches!(word.trim(), "initializing" | "starting");
        let long = clock::instant().saturating_duration_since(begun) > LONGEST_START;
        if !early || long {
            self.starting = None;
        }
        self.starting.is_some()
    }

    fn aim(&mut self, spec: &Spec) -> Result<Aimed, AgentError> {
        let heard = self.sources.hears_units();
        let aimed = self.sources.aim(&spec.wanted, &state::load()?);
        if heard && !self.sources.hears_units() {
            ui::say("systemd is not heard, so that units are only seen from time to time");
        }
        Ok(aimed)
    }

    /// Tells whether another program is where this one was.
    fn is_replaced(&self) -> bool {
        self.program.is_some() && program() != self.program
    }
}

/// Returns the program as the kernel names it: one that is no longer there has another name.
fn program() -> Option<PathBuf> {
    fs_err::read_link("/proc/self/exe").ok()
}

/// Nothing is mended.
const NOTHING: Charge = Charge {
    mends: Mends::None,
    marks: false,
};

/// Tells what may be mended, and why not everything. After a run that failed or was cut off, the
/// spec that is kept is not the one that was asked for last: what both say is kept up, and going
/// back to the other one is not ours to decide.
fn allowed(spec: &mut Spec, cut_off: bool) -> (Charge, Option<String>) {
    let charge = |marks| Charge {
        mends: Mends::Most,
        marks,
    };
    let (complete, failed) = state::markers();
    let ours = match &failed {
        // Everything but what was refused was done, by a watch or because somebody asked.
        Some(failed) => failed["phase"] == "run" || failed["error"] == PARTLY,
        None => complete.is_some() || cut_off,
    };
    if ours {
        return (charge(true), None);
    }
    let what = match &failed {
        Some(_) => "failed",
        None => "has not ended",
    };
    let Some(text) = state::attempted() else {
        return match failed {
            // It failed before it had changed anything.
            Some(_) => (charge(false), None),
            None => (NOTHING, Some(format!("the last `config apply` {what}"))),
        };
    };
    let Ok(other) = spec::parse("-", text) else {
        return (NOTHING, Some(format!("the last `config apply` {what}")));
    };
    spec.policy = spec.policy.with_frozen(&spec.wanted, &other.wanted);
    let frozen: Vec<&str> = spec.policy.frozen.iter().map(String::as_str).collect();
    let why = format!(
        "the last `config apply` {what}; until one succeeds this is left as it is: {}",
        frozen.join(", ")
    );
    (
        charge(frozen.is_empty()),
        (!frozen.is_empty()).then_some(why),
    )
}
