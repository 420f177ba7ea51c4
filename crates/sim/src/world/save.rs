//! Serializes a World as JSON and restores it, in the state after a power failure.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use homestak_api::runtime::{Clock as _, SharedClock, WallClock};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use super::lease::Networks;
use super::state::State;
use super::{Pace, SteppedClock, World, clock};

/// The version of the format. Other versions are refused.
const VERSION: u32 = 1;

/// Why a saved World cannot be restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// It is not a saved World.
    #[error("read a saved World")]
    Malformed(#[source] serde_json::Error),
    /// It has an unsupported version.
    #[error("read a saved World: version {found} is not supported, expected {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
}

/// A World as it is written. Nested Worlds are stored next to the state, by guest.
#[derive(Serialize)]
struct SavedWorld<'w> {
    version: u32,
    now: f64,
    #[serde(rename = "born")]
    started: f64,
    /// The next network to assign.
    networks: u8,
    state: &'w State,
    inside: BTreeMap<u32, WorldToSave<'w>>,
}

/// A World as it is read.
#[derive(Deserialize)]
struct LoadedWorld {
    now: f64,
    #[serde(rename = "born")]
    started: f64,
    networks: u8,
    state: State,
    inside: BTreeMap<u32, Self>,
}

/// Parsed first, to distinguish another version from malformed text.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

/// Serializes a World. The state stays locked meanwhile, so that it is consistent.
struct WorldToSave<'w>(&'w World);

impl Serialize for WorldToSave<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let world = self.0;
        let state = world.state();
        let inside = state.guests.iter();
        let inside =
            inside.filter_map(|(vmid, guest)| Some((*vmid, WorldToSave(guest.inner.as_ref()?))));
        SavedWorld {
            version: VERSION,
            now: world.now(),
            started: world.0.started,
            networks: world.0.networks.next(),
            inside: inside.collect(),
            state: &state,
        }
        .serialize(to)
    }
}

/// Counts a call as ended when dropped.
pub(crate) struct CallGuard<'w>(&'w World);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl World {
    /// Serializes the World, including nested ones.
    pub fn save(&self) -> Vec<u8> {
        // This fails only for maps whose keys are not strings, and there are none.
        serde_json::to_vec(&WorldToSave(self)).unwrap_or_default()
    }

    /// Restores a saved World. Running guests keep running, running tasks have ended with an unknown
    /// status, and locks in configurations remain.
    ///
    /// Time continues from now, or from the time of saving if that is later: accelerated time must
    /// not go backwards.
    pub fn restore(saved: &[u8], pace: Pace) -> Result<Self, RestoreError> {
        let header: Header = serde_json::from_slice(saved).map_err(RestoreError::Malformed)?;
        if header.version != VERSION {
            return Err(RestoreError::Version {
                found: header.version,
            });
        }
        let loaded: LoadedWorld = serde_json::from_slice(saved).map_err(RestoreError::Malformed)?;
        let saved_at = Timestamp::UNIX_EPOCH
            .checked_add(SignedDuration::from_secs_f64(loaded.now))
            .unwrap_or(Timestamp::UNIX_EPOCH);
        let start = match pace {
            Pace::Stepped => Some(saved_at),
            Pace::Real | Pace::Accelerated(_) => {
                Some(saved_at).filter(|saved_at| *saved_at > WallClock.now())
            }
        };
        let (clock, stepped) = clock::make(pace, start);
        let networks = Networks::from(loaded.networks);
        Ok(loaded.into_world(&clock, stepped, &networks))
    }

    /// Returns a copy of this World as after a power failure: no guest runs, and interrupted tasks
    /// are left incomplete. Tasks of the original do not affect the copy.
    pub(crate) fn after_power_loss(&self) -> Self {
        let saved = self.save();
        let Ok(loaded) = serde_json::from_slice::<LoadedWorld>(&saved) else {
            return self.clone();
        };
        let world = loaded.into_world(
            self.clock(),
            self.stepped().cloned(),
            &self.0.networks.clone(),
        );
        {
            let mut state = world.state();
            for guest in state.guests.values_mut() {
                guest.running = None;
                guest.config.apply_pending();
                if let Some(inner) = guest.inner.take() {
                    guest.inner = Some(inner.after_power_loss());
                }
            }
        }
        world
    }

    /// Returns change counters, which differ from earlier ones if something may have changed.
    pub fn generation(&self) -> Vec<u64> {
        let mut all = vec![self.0.changes.load(Ordering::Relaxed)];
        for inner in self.all_inside() {
            all.extend(inner.generation());
        }
        all
    }

    /// Returns the number of calls so far, and whether a call or a task is in progress.
    pub fn activity(&self) -> (u64, bool) {
        let begun = self.0.begun.load(Ordering::Relaxed);
        let busy = begun != self.0.ended.load(Ordering::Relaxed) || !self.is_idle();
        let inside = self.all_inside();
        inside.iter().fold((begun, busy), |(count, busy), inner| {
            let (more, also) = inner.activity();
            (count + more, busy || also)
        })
    }

    fn all_inside(&self) -> Vec<Self> {
        let state = self.state();
        let guests = state.guests.values();
        guests.filter_map(|guest| guest.inner.clone()).collect()
    }

    pub(crate) fn begin(&self) -> CallGuard<'_> {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        self.apply_due_events();
        CallGuard(self)
    }
}

impl LoadedWorld {
    fn into_world(
        mut self,
        clock: &SharedClock,
        stepped: Option<SteppedClock>,
        networks: &Networks,
    ) -> World {
        self.state.tasks.abort_all(self.now as i64);
        for (vmid, inner) in self.inside {
            let inner = inner.into_world(clock, stepped.clone(), networks);
            if let Some(guest) = self.state.guests.get_mut(&vmid) {
                guest.inner = Some(inner);
            }
        }
        World::started_at(
            self.started,
            self.state,
            clock.clone(),
            stepped,
            networks.clone(),
        )
    }
}
