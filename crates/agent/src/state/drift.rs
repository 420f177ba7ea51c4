//! The recorded drift, and the lock of the watch: only one process watches.

use std::fs::{File, TryLockError};

use homestak_core::converge::DriftState;

use super::{LOCK, failed, file, remove, try_lock, unconfirmed, write};
use crate::clock;
use crate::error::AgentError;

const DRIFT: &str = "drift.json";
const CORRECTING: &str = "mending";
pub(crate) const WATCH: &str = "watch.lock";

/// Takes the run lock for the watch, and returns whether its last correction was interrupted.
pub(crate) fn lock() -> Result<(File, bool), AgentError> {
    let lock = try_lock(LOCK)?.ok_or(AgentError::Busy)?;
    // Unconfirmed changes may still be reverted.
    if unconfirmed().is_some() {
        return Err(AgentError::Busy);
    }
    Ok((lock, file(CORRECTING).exists()))
}

/// Takes the lock of the watch. `None` if another process watches.
pub(crate) fn lock_watch() -> Result<Option<File>, AgentError> {
    try_lock(WATCH)
}

/// Returns whether the machine is watched.
pub(crate) fn is_watched() -> bool {
    let lock = fs_err::File::open(file(WATCH)).map(fs_err::File::into_file);
    lock.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Records that the watch is correcting drift, or that it has finished.
pub(crate) fn set_correcting(begun: bool) -> Result<(), AgentError> {
    if begun {
        write(CORRECTING, "")
    } else {
        remove(CORRECTING)
    }
}

/// Reads the recorded drift; empty if it cannot be read.
pub(crate) fn load() -> DriftState {
    let text = fs_err::read_to_string(file(DRIFT)).unwrap_or_default();
    let mut drift: DriftState = serde_json::from_str(&text).unwrap_or_default();
    drift.set_boot(&clock::boot());
    drift
}

/// Records the drift.
pub(crate) fn save(drift: &DriftState) -> Result<(), AgentError> {
    let text = serde_json::to_string_pretty(drift).map_err(|error| failed(DRIFT)(error.into()))?;
    write(DRIFT, &format!("{text}\n"))
}
