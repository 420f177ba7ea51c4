//! The World: a library that pretends to be one or more hosts with Proxmox VE.
//!
//! In: a [`Builder`], then calls. Out: answers as Proxmox VE gives them, and facts for tests.
//! Never: sockets; those are in `http`.

pub(crate) mod access;
pub(crate) mod build;
pub(crate) mod clock;
pub(crate) mod fault;
pub(crate) mod fleet;
pub(crate) mod inspect;
pub(crate) mod lock;
pub(crate) mod outage;
pub(crate) mod random;
pub(crate) mod run;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod timing;
pub(crate) mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homestak_api::runtime::{SharedClock, Spawner};

pub use build::Builder;
pub use clock::{Pace, SteppedClock};
pub use fault::{Call, Fault, FaultKind};
pub use inspect::GuestFacts;
pub use state::{Boots, Kind};
pub use timing::Timing;

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

    fn new(state: State, clock: SharedClock, stepped: Option<SteppedClock>) -> Self {
        let born = seconds(&clock);
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            clock,
            stepped,
            locks: Locks::default(),
            spawner: Spawner::default(),
            born,
        }))
    }

    /// Returns the state. Never held across a wait.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
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
