//! Kills the program at a point of a run, as a power failure would. Debug builds only.

use std::sync::atomic::{AtomicU64, Ordering};

use homestak_engine::operate::{StepPoint, StepPointObserver};

/// Kills the program at a step point, counted from 1.
pub(crate) struct Crash(AtomicU64);

impl Crash {
    /// Kills the program at this point.
    pub(crate) fn at(moment: u64) -> Self {
        Self(AtomicU64::new(moment))
    }
}

impl StepPointObserver for Crash {
    fn reached(&self, _: StepPoint) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SIGKILL: nothing is cleaned up.
            _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}
