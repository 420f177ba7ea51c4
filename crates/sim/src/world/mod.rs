//! The World: a library that pretends to be one or more hosts with Proxmox VE.
//!
//! In: a [`Builder`], then calls. Out: answers as Proxmox VE gives them, and facts for tests.
//! Never: sockets; those are in `http`.

pub(crate) mod access;
pub(crate) mod build;
pub(crate) mod clock;
pub(crate) mod event;
pub(crate) mod fault;
pub(crate) mod fleet;
pub(crate) mod inspect;
pub(crate) mod keep;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod outage;
pub(crate) mod person;
pub(crate) mod random;
pub(crate) mod run;
pub(crate) mod stale;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod timing;
pub(crate) mod words;
pub(crate) mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homestak_api::runtime::{SharedClock, Spawner};

pub use build::Builder;
pub use clock::{Pace, SteppedClock};
pub use event::{Event, Script, ScriptError, Timed};
pub use fault::{Call, Fault, FaultKind};
pub use inspect::GuestFacts;
pub use keep::RestoreError;
pub use state::{Boots, Kind};
pub use timing::{Stages, Timing};

use lease::Networks;
use lock::Locks;
use state::State;

/// A pretended cluster. Cheap to clone; all clones are the same World.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    clock: SharedClock,
    stepped: Option<SteppedClock>,
    locks: Locks,
    spawner: Spawner,
    born: f64,
    networks: Networks,
    /// Who was shown which list when.
    lists: Mutex<VecDeque<(f64, String, serde_json::Value)>>,
    /// How often the state was held to be changed.
    changes: AtomicU64,
    /// Calls that came, and calls that were answered.
    begun: AtomicU64,
    ended: AtomicU64,
    /// How often each kind of call came.
    counted: Mutex<BTreeMap<String, u64>>,
}

/// The state, held. Whoever reaches for a change is counted, so that it is known when to save.
pub(crate) struct Held<'w> {
    state: MutexGuard<'w, State>,
    changes: &'w AtomicU64,
}

impl Deref for Held<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.changes.fetch_add(1, Ordering::Relaxed);
        &mut self.state
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    /// Starts to build a World.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn new(
        state: State,
        clock: SharedClock,
        stepped: Option<SteppedClock>,
        networks: Networks,
    ) -> Self {
        let born = seconds(&clock);
        Self::born_at(born, state, clock, stepped, networks)
    }

    fn born_at(
        born: f64,
        state: State,
        clock: SharedClock,
        stepped: Option<SteppedClock>,
        networks: Networks,
    ) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            clock,
            stepped,
            locks: Locks::default(),
            spawner: Spawner::default(),
            born,
            networks,
            lists: Mutex::default(),
            changes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            counted: Mutex::default(),
        }))
    }

    /// Returns the state. Never held across a wait.
    pub(crate) fn state(&self) -> Held<'_> {
        Held {
            state: self.0.state.lock().unwrap_or_else(PoisonError::into_inner),
            changes: &self.0.changes,
        }
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    /// Returns the clock everything in here waits on.
    pub fn clock(&self) -> &SharedClock {
        &self.0.clock
    }

    /// Returns the clock to step, when time is stepped.
    pub fn stepped(&self) -> Option<&SteppedClock> {
        self.0.stepped.as_ref()
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.0.spawner
    }

    /// Returns now, in seconds since the epoch.
    pub(crate) fn now(&self) -> f64 {
        seconds(&self.0.clock)
    }

    /// Returns now in whole seconds.
    pub(crate) fn epoch(&self) -> i64 {
        self.0.clock.now().as_second()
    }

    /// Returns seconds since the hosts booted, which was a while before the World began.
    pub(crate) fn uptime(&self) -> f64 {
        self.now() - self.0.born + BOOTED_BEFORE
    }

    /// Returns when the status daemon last looked.
    pub(crate) fn last_sweep(&self) -> f64 {
        let every = self.state().timing.sweep.as_secs_f64().max(0.001);
        (self.now() / every).floor() * every
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        if !duration.is_zero() {
            self.0.clock.sleep(duration).await;
        }
    }
}

/// How long the hosts had been up when the World began, in seconds.
const BOOTED_BEFORE: f64 = 6_000.0;

fn seconds(clock: &SharedClock) -> f64 {
    let now = clock.now();
    now.as_second() as f64 + f64::from(now.subsec_nanosecond()) / 1e9
}
