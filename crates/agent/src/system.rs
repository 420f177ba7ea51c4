//! The machine as converging sees it: everything that `apply` reads and changes.
//!
//! [`Machine`] is the real one; behind it are programs, files and packages. The tests of `apply` have
//! one that is data, which dies, fails and moves on its own as a test wants it to.

use std::collections::BTreeMap;
use std::path::Path;

use homestak_core::converge::{FactScope, Facts, Resource, State, Step};

use crate::error::AgentError;
use crate::files::Staged;
use crate::packages::{self, Fault};
use crate::service::Before;
use crate::{act, clock, gather, path, sound, state};

/// What a machine can be asked, and what can be done to it.
pub(crate) trait System {
    /// Looks at the machine.
    fn facts(&self, scope: &FactScope) -> Result<Facts, AgentError>;
    /// Returns what is wrong with files that steps would write.
    fn faults(&self, steps: &[Step]) -> Result<Vec<String>, AgentError>;
    /// Tells whether someone else than root can change what is at a path.
    fn is_users(&self, path: &str) -> bool;
    /// Waits for what changes by itself.
    fn pause(&mut self);

    /// Returns what is remembered.
    fn recall(&self) -> Result<State, AgentError>;
    /// Remembers, whatever happens next.
    fn remember(&mut self, state: &State) -> Result<(), AgentError>;
    /// Withdraws the marker of success: the machine is about to be changed.
    fn begin(&mut self) -> Result<(), AgentError>;

    /// Finishes a transaction that was cut off, and finds out whether removals remove anything else.
    fn prepare_packages(
        &mut self,
        install: &[String],
        remove: &[String],
        cut_off: bool,
    ) -> Result<(), AgentError>;
    /// Installs and removes packages in one transaction.
    fn change_packages(&mut self, install: &[String], remove: &[String]) -> Result<(), Fault>;

    /// Keeps the files that units read and steps write.
    fn keep(&mut self, wanted: &[Resource], steps: &[Step], facts: &Facts);
    /// Writes the files of steps beside their places, and checks them.
    fn stage(&mut self, steps: &[&Step]) -> Result<(), AgentError>;
    /// Returns the paths that a user kept from being written or deleted, and how.
    fn skipped(&self) -> &BTreeMap<String, String>;
    /// Does a step. Harmless when it is done twice.
    fn act(&mut self, step: &Step) -> Result<(), AgentError>;
    /// Returns an error when a unit does not run with its new files, which are put back then.
    fn judge(&self, steps: &[Step], done: Result<(), AgentError>) -> Result<(), AgentError>;
}

/// The machine that this program runs on. One value serves one run: files that are staged and not
/// moved are removed with it.
#[derive(Default)]
pub(crate) struct Machine {
    /// How long another user of the package database is waited for, in seconds.
    lock_wait: u64,
    staged: Staged,
    read: Before,
}

impl Machine {
    /// The machine of a run that waits so many seconds for the package database.
    pub(crate) fn waiting(lock_wait: u64) -> Self {
        Self {
            lock_wait,
            ..Self::default()
        }
    }
}

impl System for Machine {
    fn facts(&self, scope: &FactScope) -> Result<Facts, AgentError> {
        gather::gather(scope)
    }

    fn faults(&self, steps: &[Step]) -> Result<Vec<String>, AgentError> {
        sound::faults(steps)
    }

    fn is_users(&self, path: &str) -> bool {
        path::is_users(Path::new(path))
    }

    fn pause(&mut self) {
        clock::moment(200);
    }

    fn recall(&self) -> Result<State, AgentError> {
        state::load()
    }

    fn remember(&mut self, state: &State) -> Result<(), AgentError> {
        state::save(state)
    }

    fn begin(&mut self) -> Result<(), AgentError> {
        state::remove(state::COMPLETE)
    }

    fn prepare_packages(
        &mut self,
        install: &[String],
        remove: &[String],
        cut_off: bool,
    ) -> Result<(), AgentError> {
        if cut_off {
            packages::finish(self.lock_wait)?;
        }
        if remove.is_empty() {
            return Ok(());
        }
        packages::rehearse(install, remove, self.lock_wait)
    }

    fn change_packages(&mut self, install: &[String], remove: &[String]) -> Result<(), Fault> {
        packages::transact(install, remove, self.lock_wait)
    }

    fn keep(&mut self, wanted: &[Resource], steps: &[Step], facts: &Facts) {
        self.read = Before::of(wanted, steps, facts);
    }

    fn stage(&mut self, steps: &[&Step]) -> Result<(), AgentError> {
        self.staged.add(steps)
    }

    fn skipped(&self) -> &BTreeMap<String, String> {
        self.staged.skipped()
    }

    fn act(&mut self, step: &Step) -> Result<(), AgentError> {
        act::act(step, &mut self.staged)
    }

    fn judge(&self, steps: &[Step], done: Result<(), AgentError>) -> Result<(), AgentError> {
        done.and_then(|()| self.read.require_running(steps))
            .map_err(|first| self.read.judge(first))
    }
}
