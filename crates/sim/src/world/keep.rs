//! Saves a World as text and makes it again from that.
//!
//! In: a World, or the text of one. Out: the text, or a World as after a loss of power.
//! Never: files; who keeps the text is not known here.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use homestak_api::runtime::{Clock as _, SharedClock, WallClock};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use super::lease::Networks;
use super::state::State;
use super::{Pace, SteppedClock, World, clock};

/// The form of what is saved. A text of another form is not read.
const VERSION: u32 = 1;

/// Why a saved World cannot be had again.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// It is not the text of a World.
    #[error("read a saved World")]
    Malformed(#[source] serde_json::Error),
    /// It was saved by a program that saves differently.
    #[error("read a saved World of form {found}; this program reads form {VERSION}")]
    Version {
        /// The form it has.
        found: u32,
    },
}

/// A World as it is written. What is inside guests stands beside the state, one by one.
#[derive(Serialize)]
struct Saved<'w> {
    version: u32,
    now: f64,
    born: f64,
    /// The next network to hand out.
    networks: u8,
    state: &'w State,
    inside: BTreeMap<u32, Whole<'w>>,
}

/// A World as it is read.
#[derive(Deserialize)]
struct Kept {
    now: f64,
    born: f64,
    networks: u8,
    state: State,
    inside: BTreeMap<u32, Self>,
}

/// Read before the rest, so that another form is told from a broken text.
#[derive(Deserialize)]
struct Form {
    version: u32,
}

/// Writes a World whole; the state is held meanwhile, so that it is of one moment.
struct Whole<'w>(&'w World);

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let world = self.0;
        let state = world.state();
        let inside = state.guests.iter();
        let inside = inside.filter_map(|(vmid, guest)| Some((*vmid, Whole(guest.inner.as_ref()?))));
        Saved {
            version: VERSION,
            now: world.now(),
            born: world.0.born,
            networks: world.0.networks.next(),
            inside: inside.collect(),
            state: &state,
        }
        .serialize(to)
    }
}

/// Counts a call from its beginning to its end.
pub(crate) struct Begun<'w>(&'w World);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl World {
    /// Returns everything as text, Worlds inside included.
    pub fn save(&self) -> Vec<u8> {
        // Only maps with keys that are no texts could fail, and there are none.
        serde_json::to_vec(&Whole(self)).unwrap_or_default()
    }

    /// Makes a saved World again, as after a loss of power: guests run that ran, tasks that ran
    /// have ended nobody knows how, and locks in configurations stay.
    ///
    /// Time goes on from now, or from when it was saved if that is later: time that was faster
    /// than the wall clock must not go back.
    pub fn restore(saved: &[u8], pace: Pace) -> Result<Self, RestoreError> {
        let form: Form = serde_json::from_slice(saved).map_err(RestoreError::Malformed)?;
        if form.version != VERSION {
            return Err(RestoreError::Version {
                found: form.version,
            });
        }
        let kept: Kept = serde_json::from_slice(saved).map_err(RestoreError::Malformed)?;
        let then = Timestamp::UNIX_EPOCH
            .checked_add(SignedDuration::from_secs_f64(kept.now))
            .unwrap_or(Timestamp::UNIX_EPOCH);
        let start = match pace {
            Pace::Stepped => Some(then),
            Pace::Real | Pace::Accelerated(_) => Some(then).filter(|then| *then > WallClock.now()),
        };
        let (clock, stepped) = clock::make(pace, start);
        let networks = Networks::from(kept.networks);
        Ok(kept.thaw(&clock, stepped, &networks))
    }

    /// Returns this World as it is when its power comes back: nothing runs, and what was under
    /// way is half done. Tasks of the old one change nothing any more that can be seen.
    pub(crate) fn after_power_loss(&self) -> Self {
        let saved = self.save();
        let Ok(kept) = serde_json::from_slice::<Kept>(&saved) else {
            return self.clone();
        };
        let world = kept.thaw(
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

    /// Returns numbers that differ from earlier ones when something may have changed.
    pub fn generation(&self) -> Vec<u64> {
        let mut all = vec![self.0.changes.load(Ordering::Relaxed)];
        for inner in self.all_inside() {
            all.extend(inner.generation());
        }
        all
    }

    /// Returns how many calls came so far, and whether one is under way or a task runs.
    pub fn activity(&self) -> (u64, bool) {
        let begun = self.0.begun.load(Ordering::Relaxed);
        let busy = begun != self.0.ended.load(Ordering::Relaxed) || !self.is_quiet();
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

    pub(crate) fn begin(&self) -> Begun<'_> {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        self.catch_up();
        Begun(self)
    }
}

impl Kept {
    fn thaw(
        mut self,
        clock: &SharedClock,
        stepped: Option<SteppedClock>,
        networks: &Networks,
    ) -> World {
        self.state.tasks.cut(self.now as i64);
        for (vmid, inner) in self.inside {
            let inner = inner.thaw(clock, stepped.clone(), networks);
            if let Some(guest) = self.state.guests.get_mut(&vmid) {
                guest.inner = Some(inner);
            }
        }
        World::born_at(
            self.born,
            self.state,
            clock.clone(),
            stepped,
            networks.clone(),
        )
    }
}
