//! What is kept of drift, and who watches: one process at a time.

use std::fs::{File, TryLockError};

use homestak_core::converge::DriftState;

use super::{LOCK, failed, place, remove, take, unconfirmed, write};
use crate::clock;
use crate::error::AgentError;

const DRIFT: &str = "drift.json";
const MENDING: &str = "mending";
pub(crate) const WATCH: &str = "watch.lock";

/// Takes a turn for the watch, and tells whether its last one was cut off.
pub(crate) fn lock() -> Result<(File, bool), AgentError> {
    let file = take(LOCK)?.ok_or(AgentError::Busy)?;
    // What is not confirmed may still be taken back by others.
    if unconfirmed().is_some() {
        return Err(AgentError::Busy);
    }
    Ok((file, place(MENDING).exists()))
}

/// Lets one watch be. `None` when there is one.
pub(crate) fn lock_watch() -> Result<Option<File>, AgentError> {
    take(WATCH)
}

/// Tells whether the machine is watched.
pub(crate) fn is_watched() -> bool {
    let file = fs_err::File::open(place(WATCH)).map(fs_err::File::into_file);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Notes that the watch mends, or that it is done with it.
pub(crate) fn note_mending(begun: bool) -> Result<(), AgentError> {
    if begun {
        write(MENDING, "")
    } else {
        remove(MENDING)
    }
}

/// Reads what was seen and done about drift. What cannot be read is forgotten.
pub(crate) fn load() -> DriftState {
    let text = fs_err::read_to_string(place(DRIFT)).unwrap_or_default();
    let mut drift: DriftState = serde_json::from_str(&text).unwrap_or_default();
    drift.set_boot(&clock::boot());
    drift
}

/// Keeps what was seen and done about drift: for root only, since it shows values.
pub(crate) fn save(drift: &DriftState) -> Result<(), AgentError> {
    let text = serde_json::to_string_pretty(drift).map_err(|error| failed(DRIFT)(error.into()))?;
    write(DRIFT, &format!("{text}\n"))
}
