//! Ends the program in the middle of a run, as a power cut would. Only debug builds have it.
//!
//! In: a number. Out: nothing; the program is gone at that moment.
//! Never: in a program that people use.

use std::sync::atomic::{AtomicU64, Ordering};

use homestak_engine::operate::{Moment, Watcher};

/// Ends the program at a moment, counted from 1.
pub(crate) struct Crash(AtomicU64);

impl Crash {
    /// Makes it happen at the moment of that number.
    pub(crate) fn at(moment: u64) -> Self {
        Self(AtomicU64::new(moment))
    }
}

impl Watcher for Crash {
    fn reached(&self, _: Moment) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            // A signal that cannot be caught: nothing is cleaned up.
            _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}
