//! The interface between `apply` and the machine.
//!
//! [`Machine`] is the real one. The tests of `apply` have a simulated one, which they can kill, make
//! fail or change at any call.

use std::collections::BTreeMap;
use std::path::Path;

use homestak_core::converge::{ConvergeStep, FactScope, Facts, Resource, State};

use crate::error::AgentError;
use crate::files::Staged;
use crate::packages::{self, PackageError};
use crate::service::ServiceFiles;
use crate::{clock, config_check, facts, path, process, state, step};

/// Everything that `apply` reads and changes.
pub(crate) trait System {
    /// Observes the machine.
    fn facts(&self, scope: &FactScope) -> Result<Facts, AgentError>;
    /// Returns the errors in configuration files that steps would write.
    fn config_errors(&self, steps: &[ConvergeStep]) -> Result<Vec<String>, AgentError>;
    /// Returns whether anyone but root can change what is at a path.
    fn is_users(&self, path: &str) -> bool;
    /// Waits briefly for units and the network to settle.
    fn wait(&mut self);

    /// Returns the recorded state.
    fn load_state(&self) -> Result<State, AgentError>;
    /// Records the state durably.
    fn save_state(&mut self, state: &State) -> Result<(), AgentError>;
    /// Removes the marker of success, before the first change.
    fn remove_marker(&mut self) -> Result<(), AgentError>;

    /// Finishes an interrupted transaction, and checks that no other packages would be removed.
    fn prepare_packages(
        &mut self,
        install: &[String],
        remove: &[String],
        interrupted: bool,
    ) -> Result<(), AgentError>;
    /// Installs and removes packages in one transaction.
    fn change_packages(
        &mut self,
        install: &[String],
        remove: &[String],
    ) -> Result<(), PackageError>;

    /// Copies the files that units read and steps write.
    fn back_up(&mut self, wanted: &[Resource], steps: &[ConvergeStep], facts: &Facts);
    /// Stages the files of steps, and checks them.
    fn stage(&mut self, steps: &[&ConvergeStep]) -> Result<(), AgentError>;
    /// Returns the paths that a user prevented from being written or deleted, and the reasons.
    fn skipped(&self) -> &BTreeMap<String, String>;
    /// Executes a step. Can be repeated.
    fn execute(&mut self, step: &ConvergeStep) -> Result<(), AgentError>;
    /// Returns an error if a unit fails with its new files, after restoring the old ones.
    fn restore_rejected(
        &self,
        steps: &[ConvergeStep],
        done: Result<(), AgentError>,
    ) -> Result<(), AgentError>;
}

/// The machine that this program runs on, for one run: staged files that were not moved into place are
/// removed when it is dropped.
#[derive(Default)]
pub(crate) struct Machine {
    /// How long to wait for the lock of the package database, in seconds.
    lock_wait: u64,
    staged: Staged,
    service_files: ServiceFiles,
}

impl Machine {
    /// Sets how long to wait for the lock of the package database, in seconds.
    pub(crate) fn with_lock_wait(lock_wait: u64) -> Self {
        Self {
            lock_wait,
            ..Self::default()
        }
    }
}

impl System for Machine {
    fn facts(&self, scope: &FactScope) -> Result<Facts, AgentError> {
        facts::collect(scope)
    }

    fn config_errors(&self, steps: &[ConvergeStep]) -> Result<Vec<String>, AgentError> {
        config_check::errors(steps)
    }

    fn is_users(&self, path: &str) -> bool {
        path::is_users(Path::new(path))
    }

    fn wait(&mut self) {
        clock::sleep(200);
    }

    fn load_state(&self) -> Result<State, AgentError> {
        state::load()
    }

    fn save_state(&mut self, state: &State) -> Result<(), AgentError> {
        state::save(state)
    }

    fn remove_marker(&mut self) -> Result<(), AgentError> {
        state::remove(state::COMPLETE)
    }

    fn prepare_packages(
        &mut self,
        install: &[String],
        remove: &[String],
        interrupted: bool,
    ) -> Result<(), AgentError> {
        if interrupted {
            packages::finish_interrupted(self.lock_wait)?;
        }
        if remove.is_empty() {
            return Ok(());
        }
        packages::check_removals(install, remove, self.lock_wait)
    }

    fn change_packages(
        &mut self,
        install: &[String],
        remove: &[String],
    ) -> Result<(), PackageError> {
        packages::transact(install, remove, self.lock_wait)
    }

    fn back_up(&mut self, wanted: &[Resource], steps: &[ConvergeStep], facts: &Facts) {
        self.service_files = ServiceFiles::of(wanted, steps, facts);
    }

    fn stage(&mut self, steps: &[&ConvergeStep]) -> Result<(), AgentError> {
        self.staged.add(steps)
    }

    fn skipped(&self) -> &BTreeMap<String, String> {
        self.staged.skipped()
    }

    fn execute(&mut self, step: &ConvergeStep) -> Result<(), AgentError> {
        step::execute(step, &mut self.staged)
    }

    fn restore_rejected(
        &self,
        steps: &[ConvergeStep],
        done: Result<(), AgentError>,
    ) -> Result<(), AgentError> {
        done.and_then(|()| self.service_files.require_running(steps))
            .map_err(|first| process::without_time_limit(|| self.service_files.restore(first)))
    }
}
