//! The agent's state under `/usr/local/etc/homestak/state`: specs, markers, locks. Only root may read
//! it: it contains secrets, and any process that can open a lock file can lock it.

pub(crate) mod drift;
pub(crate) mod job;

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::durable;
use homestak_core::converge::{HOME, State};
use homestak_core::plan::spec_digest;
use rustix::fs::{Gid, Mode, Uid};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::AgentError;
use crate::facts::hostname;
use crate::path::{self, Entry};
use crate::{clock, files};

/// The spec that was applied last.
pub(crate) const SPEC: &str = "spec.yaml";
/// The spec that was fetched and not applied yet. The watch ignores it, since it does not have changes
/// confirmed.
pub(crate) const FETCHED: &str = "spec.fetched.yaml";
/// The spec of a run that changed something and did not succeed.
const ATTEMPTED: &str = "spec.attempted.yaml";
/// The spec before that.
const BEFORE: &str = "spec.yaml.prev";
const STATE: &str = "converge.json";
/// The marker of success.
pub(crate) const COMPLETE: &str = "config-complete.json";
/// The marker of failure.
pub(crate) const FAILED: &str = "config-failed.json";
/// The phase of failures to obtain a spec, in the marker.
pub(crate) const FETCH: &str = "fetch";
/// Locked by the current run.
pub(crate) const LOCK: &str = "lock";
const UNCONFIRMED: &str = "unconfirmed";
/// Ids of users and groups whose creation was reverted.
const RETIRED: &str = "retired-user";
/// The marker of failure when the disk is full or read-only.
const FAILED_ELSEWHERE: &str = "/run/homestak/config-failed.json";

/// How long to wait for a watch that holds the run lock: it may be correcting drift.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval of checking whether the lock is free.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Returns the path of a state file.
pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(format!("{HOME}/state/{name}"))
}

/// Returns an error about a state file.
pub(crate) fn failed(name: &str) -> impl Fn(std::io::Error) -> AgentError {
    AgentError::state_file(file(name))
}

/// Returns whether the state can be read, or does not exist.
pub(crate) fn is_readable() -> bool {
    let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    !fs_err::read_dir(file("")).err().is_some_and(denied)
}

/// Writes a state file atomically.
pub(crate) fn write(name: &str, content: &str) -> Result<(), AgentError> {
    let path = file(name);
    let created = path.parent().map_or(Ok(()), make_directory);
    created
        .and_then(|()| files::write(&path, content.as_bytes(), 0o600))
        .map_err(failed(name))
}

/// Creates a directory that only root may enter, with missing parents.
pub(crate) fn make_directory(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    // Everyone may enter the parents of the state directory.
    fs_err::create_dir_all(HOME)?;
    let is_inside = |one: &&Path| one.starts_with(HOME) && *one != Path::new(HOME);
    let mut missing: Vec<&Path> = path.ancestors().filter(is_inside).collect();
    while let Some(directory) = missing.pop() {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Opens a lock file that only root can open.
pub(crate) fn open_lock(path: &Path) -> std::io::Result<File> {
    let mut options = fs_err::OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    Ok(options.open(path)?.into_file())
}

/// Restricts the state to root: older versions let everyone read it, and so hold its locks.
pub(crate) fn secure() -> Result<(), AgentError> {
    let state = file("");
    let Ok(Entry::Directory(found)) = path::lookup(&state) else {
        return Ok(());
    };
    if found.st_uid == 0 && path::mode(&found) == 0o700 {
        return Ok(());
    }
    restrict(&state).map_err(failed(""))?;
    for name in [LOCK, drift::WATCH] {
        // A process that opened it before could still lock it, so it is replaced; one that a run
        // holds is replaced next time.
        if file(name).exists() && try_lock(name)?.is_some() {
            remove(name)?;
        }
    }
    Ok(())
}

/// Makes root the owner of a directory and its content, and removes access for others.
fn restrict(path: &Path) -> std::io::Result<()> {
    let (directory, name) = path::parent(path)?;
    directory.set_directory(&name, 0o700, (0, 0))?;
    let inside = path::directory(path)?;
    for name in inside.names()? {
        match inside.lookup(&name)? {
            Entry::Directory(_) => restrict(&path.join(&name))?,
            Entry::File(file, _) => {
                rustix::fs::fchown(&file, Some(Uid::ROOT), Some(Gid::ROOT))?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600))?;
            }
            Entry::Nothing | Entry::Link(_) | Entry::Other => {}
        }
    }
    Ok(())
}

/// Removes a state file, if it exists.
pub(crate) fn remove(name: &str) -> Result<(), AgentError> {
    match fs_err::remove_file(file(name)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(name)(error)),
        _ => Ok(()),
    }
}

/// Reads the recorded state; empty if there is none.
pub(crate) fn load() -> Result<State, AgentError> {
    read_or_default(STATE)
}

/// Reads a state file; the default if it does not exist.
pub(crate) fn read_or_default<T: DeserializeOwned + Default>(name: &str) -> Result<T, AgentError> {
    match fs_err::read_to_string(file(name)) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(AgentError::observe(&format!("`{}`", file(name).display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(failed(name)(error)),
    }
}

/// Records the state.
pub(crate) fn save(state: &State) -> Result<(), AgentError> {
    let text = serde_json::to_string(state).map_err(|error| failed(STATE)(error.into()))?;
    write(STATE, &text)
}

/// Returns the path of the spec that is used by default.
pub(crate) fn next_spec() -> PathBuf {
    let fetched = file(FETCHED);
    if fetched.exists() {
        fetched
    } else {
        file(SPEC)
    }
}

/// Stores the applied spec, and the one before. Removes the fetched spec if it is the same.
pub(crate) fn keep_spec(text: &str) -> Result<(), AgentError> {
    let before = fs_err::read_to_string(file(SPEC)).ok();
    if before.as_deref() != Some(text) {
        if before.is_some() {
            remove(BEFORE)?;
            fs_err::hard_link(file(SPEC), file(BEFORE)).map_err(failed(BEFORE))?;
        }
        if attempted().as_deref() == Some(text) {
            durable::rename(&file(ATTEMPTED), &file(SPEC)).map_err(failed(SPEC))?;
        } else {
            write(SPEC, text)?;
        }
    }
    remove(ATTEMPTED)?;
    match fs_err::read_to_string(file(FETCHED)) {
        Ok(fetched) if fetched == text => remove(FETCHED),
        _ => Ok(()),
    }
}

/// Stores the spec that is being applied.
pub(crate) fn attempt(text: &str) -> Result<(), AgentError> {
    write(ATTEMPTED, text)
}

/// Removes the spec that was being applied: its changes were reverted.
pub(crate) fn forget_attempt() -> Result<(), AgentError> {
    remove(ATTEMPTED)
}

/// Returns the spec that was being applied when the last run failed or was killed.
pub(crate) fn attempted() -> Option<String> {
    fs_err::read_to_string(file(ATTEMPTED)).ok()
}

/// Returns the spec with digest `to` that was applied before the one with digest `from`. `None` if
/// another spec was applied since, or it is not recorded.
pub(crate) fn earlier_spec(from: &str, to: &str) -> Option<String> {
    let is = |text: &Option<String>, wanted: &str| {
        text.as_deref()
            .is_some_and(|text| spec_digest(text) == wanted)
    };
    let read = |name: &str| fs_err::read_to_string(file(name)).ok();
    let (attempted, now) = (attempted(), read(SPEC));
    if attempted.is_some() && !is(&attempted, from) {
        return None;
    }
    // A spec that failed to apply is not stored.
    if is(&now, to) {
        return now;
    }
    read(BEFORE).filter(|before| is(&now, from) && spec_digest(before) == to)
}

/// Takes the run lock, which is released when it is dropped or the process ends. Its holder takes over
/// corrections that the watch began.
pub(crate) fn lock() -> Result<File, AgentError> {
    let begun = clock::instant();
    let file = loop {
        if let Some(file) = try_lock(LOCK)? {
            break file;
        }
        // The watch releases the lock soon; another run may hold it for long.
        if !drift::is_watched() || begun.elapsed() > LOCK_TIMEOUT {
            return Err(unconfirmed().map_or(AgentError::Busy, AgentError::AwaitingConfirmation));
        }
        std::thread::sleep(LOCK_PAUSE);
    };
    drift::set_correcting(false)?;
    Ok(file)
}

/// Locks a file. `None` if it is locked by another process.
pub(crate) fn try_lock(name: &str) -> Result<Option<File>, AgentError> {
    let path = file(name);
    if let Some(parent) = path.parent() {
        make_directory(parent).map_err(failed(name))?;
    }
    loop {
        let file = open_lock(&path).map_err(failed(name))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(name)(error)),
        }
        // A lock file that was replaced meanwhile is useless.
        let same = |now: std::fs::Metadata| {
            let then = file.metadata();
            then.is_ok_and(|then| (then.dev(), then.ino()) == (now.dev(), now.ino()))
        };
        if fs_err::symlink_metadata(&path).is_ok_and(same) {
            return Ok(Some(file));
        }
    }
}

/// Returns the job whose changes await confirmation.
pub(crate) fn unconfirmed() -> Option<String> {
    let text = fs_err::read_to_string(file(UNCONFIRMED)).ok()?;
    Some(text.trim().to_owned())
}

/// Records that the changes of a job await confirmation.
pub(crate) fn await_confirmation(job: &str) -> Result<(), AgentError> {
    write(UNCONFIRMED, job)
}

/// Records that no changes await confirmation.
pub(crate) fn clear_unconfirmed() -> Result<(), AgentError> {
    remove(UNCONFIRMED)
}

/// Returns the ids of users and groups whose creation was reverted: files of theirs may be left.
pub(crate) fn retired() -> BTreeSet<u32> {
    let text = fs_err::read_to_string(file(RETIRED)).unwrap_or_default();
    let words = text.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Records ids that must not be reused.
pub(crate) fn retire(ids: [u32; 2]) -> Result<(), AgentError> {
    let known = retired();
    let mut all = known.clone();
    all.extend(ids);
    if all == known {
        return Ok(());
    }
    let words: Vec<String> = all.iter().map(u32::to_string).collect();
    write(RETIRED, &words.join(" "))
}

/// Writes the marker of success, unless it exists with the same content.
pub(crate) fn complete(mut marker: Value) -> Result<(), AgentError> {
    remove(FAILED)?;
    remove(ATTEMPTED)?;
    _ = fs_err::remove_file(FAILED_ELSEWHERE);
    let before = read(COMPLETE).unwrap_or_default();
    marker["timestamp"] = before["timestamp"].clone();
    if marker == before {
        return Ok(());
    }
    marker["timestamp"] = json!(clock::now().to_string());
    write(COMPLETE, &format!("{marker:#}\n"))
}

/// Writes the marker of failure, with the number of attempts.
pub(crate) fn fail(error: &AgentError, spec: &str) -> Result<(), AgentError> {
    fail_in("config", error, spec)
}

/// The same for another phase; that of the watch is `run`.
pub(crate) fn fail_in(phase: &str, error: &AgentError, spec: &str) -> Result<(), AgentError> {
    let now = clock::now().to_string();
    let before = markers().1.unwrap_or_default();
    let message = error.message();
    // The watch does not count the same failure again.
    if phase == "run" && before["phase"] == phase && before["message"] == message {
        return Ok(());
    }
    let attempts = before["attempts"].as_u64().unwrap_or(0) + 1;
    let first = before["first_attempt"].as_str().unwrap_or(&now);
    let marker = json!({
        "phase": phase,
        "status": "failed",
        "error": error.error_code(),
        "code": error.code(),
        "message": message,
        "node": hostname(),
        "spec": spec,
        "attempts": attempts,
        "first_attempt": first,
        "last_attempt": now,
    });
    let text = format!("{marker:#}\n");
    // That no spec was obtained does not change what the last one made of the machine.
    let kept = match phase == FETCH {
        true => Ok(()),
        false => remove(COMPLETE),
    };
    // The disk may be full or read-only.
    let done = kept.and_then(|()| write(FAILED, &text));
    if done.is_err() {
        let path = Path::new(FAILED_ELSEWHERE);
        return files::write(path, text.as_bytes(), 0o600).map_err(failed(FAILED));
    }
    _ = fs_err::remove_file(FAILED_ELSEWHERE);
    Ok(())
}

/// Returns both markers.
pub(crate) fn markers() -> (Option<Value>, Option<Value>) {
    let elsewhere = || read_at(Path::new(FAILED_ELSEWHERE));
    (read(COMPLETE), elsewhere().or_else(|| read(FAILED)))
}

fn read(name: &str) -> Option<Value> {
    read_at(&file(name))
}

fn read_at(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs_err::read_to_string(path).ok()?).ok()
}
