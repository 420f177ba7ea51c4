//! The model of a simulated Proxmox VE installation with one or more hosts.

pub(crate) mod access;
pub(crate) mod build;
pub(crate) mod clock;
pub(crate) mod crash;
pub(crate) mod event;
pub(crate) mod fault;
pub(crate) mod fleet;
pub(crate) mod inspect;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod operator;
pub(crate) mod random;
pub(crate) mod run;
pub(crate) mod save;
pub(crate) mod serde_helpers;
pub(crate) mod stale;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod timing;
pub(crate) mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homestak_api::runtime::{SharedClock, Spawner};

pub use build::Builder;
pub use clock::{Pace, SteppedClock};
pub use event::{Event, Script, ScriptError, TimedEvent};
pub use fault::{Call, Fault, FaultKind};
pub use inspect::GuestFacts;
pub use save::RestoreError;
pub use state::{Boots, Kind};
pub use timing::{BootStages, Timing};

use lease::Networks;
use lock::Locks;
use state::State;

/// A simulated Proxmox VE installation. Clones are cheap and share the state.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    clock: SharedClock,
    stepped: Option<SteppedClock>,
    locks: Locks,
    spawner: Spawner,
    /// When the World began, in seconds since the epoch.
    started: f64,
    networks: Networks,
    /// Recent answers to list calls, for the fault that shows an old one.
    lists: Mutex<VecDeque<(f64, String, serde_json::Value)>>,
    /// How often the state was borrowed mutably.
    changes: AtomicU64,
    /// Calls received and calls answered.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Number of calls by method and path.
    counted: Mutex<BTreeMap<String, u64>>,
}

/// The locked state. Mutable access is counted, which shows when to save.
pub(crate) struct StateGuard<'w> {
    state: MutexGuard<'w, State>,
    changes: &'w AtomicU64,
}

impl Deref for StateGuard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
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
    /// Returns a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn new(
        state: State,
        clock: SharedClock,
        stepped: Option<SteppedClock>,
        networks: Networks,
    ) -> Self {
        let started = seconds(&clock);
        Self::started_at(started, state, clock, stepped, networks)
    }

    fn started_at(
        started: f64,
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
            started,
            networks,
            lists: Mutex::default(),
            changes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            counted: Mutex::default(),
        }))
    }

    /// Locks the state. The guard must not be held across an `await`.
    pub(crate) fn state(&self) -> StateGuard<'_> {
        StateGuard {
            state: self.0.state.lock().unwrap_or_else(PoisonError::into_inner),
            changes: &self.0.changes,
        }
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    /// Returns the clock of the World.
    pub fn clock(&self) -> &SharedClock {
        &self.0.clock
    }

    /// Returns the clock to advance, if time is stepped.
    pub fn stepped(&self) -> Option<&SteppedClock> {
        self.0.stepped.as_ref()
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.0.spawner
    }

    /// Returns the current time in seconds since the epoch.
    pub(crate) fn now(&self) -> f64 {
        seconds(&self.0.clock)
    }

    /// Returns the current time in whole seconds.
    pub(crate) fn epoch(&self) -> i64 {
        self.0.clock.now().as_second()
    }

    /// Returns the uptime of the hosts in seconds.
    pub(crate) fn uptime(&self) -> f64 {
        self.now() - self.0.started + BOOTED_BEFORE
    }

    /// Returns when the status daemon last updated the cluster's list of guests.
    pub(crate) fn last_status_update(&self) -> f64 {
        let every = self.state().timing.sweep.as_secs_f64().max(0.001);
        (self.now() / every).floor() * every
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        if !duration.is_zero() {
            self.0.clock.sleep(duration).await;
        }
    }
}

/// Uptime of the hosts when the World began, in seconds.
const BOOTED_BEFORE: f64 = 6_000.0;

fn seconds(clock: &SharedClock) -> f64 {
    let now = clock.now();
    now.as_second() as f64 + f64::from(now.subsec_nanosecond()) / 1e9
}
