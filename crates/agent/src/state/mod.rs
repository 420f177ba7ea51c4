//! What this machine remembers of its spec: under `/usr/local/etc/homestak/state`, for root alone.
//!
//! Never: a marker of success beside one of failure; a lock that anybody but root can take.

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
use crate::gather::hostname;
use crate::path::{self, Found};
use crate::{clock, files};

/// The spec that the machine is.
pub(crate) const SPEC: &str = "spec.yaml";
/// The spec that was fetched and is still to be applied. The watch goes by the other until then:
/// it would not have its changes confirmed.
pub(crate) const FETCHED: &str = "spec.fetched.yaml";
/// The spec of a run that has begun to change the machine and has not ended well.
const ATTEMPTED: &str = "spec.attempted.yaml";
/// The spec before the one that is kept.
const BEFORE: &str = "spec.yaml.prev";
const STATE: &str = "converge.json";
/// Says that the machine is as its spec says.
pub(crate) const COMPLETE: &str = "config-complete.json";
/// Says that it could not be made so.
pub(crate) const FAILED: &str = "config-failed.json";
/// Held by the run that is at work.
pub(crate) const LOCK: &str = "lock";
const UNCONFIRMED: &str = "unconfirmed";
/// Numbers of users and groups whose creation was reverted.
const RETIRED: &str = "retired-user";
/// Where failure is marked when the disk is full or cannot be written.
const FAILED_ELSEWHERE: &str = "/run/homestak/config-failed.json";

/// How long the watch may have the turn before others give up: it may be mending.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often is looked whether it is free.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns where a file of the state is.
pub(crate) fn place(name: &str) -> PathBuf {
    PathBuf::from(format!("{HOME}/state/{name}"))
}

/// Says which file of the state it was.
pub(crate) fn failed(name: &str) -> impl Fn(std::io::Error) -> AgentError {
    AgentError::remember(place(name))
}

/// Tells whether the state can be read, or is not there.
pub(crate) fn is_readable() -> bool {
    let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    !fs_err::read_dir(place("")).err().is_some_and(denied)
}

/// Writes a file of the state, whole.
pub(crate) fn write(name: &str, content: &str) -> Result<(), AgentError> {
    let path = place(name);
    let made = path.parent().map_or(Ok(()), make_directory);
    made.and_then(|()| files::write(&path, content.as_bytes(), 0o600))
        .map_err(failed(name))
}

/// Makes a directory for root alone, with those above it that are missing.
pub(crate) fn make_directory(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    // What is above the state is for everyone; what is inside is not.
    fs_err::create_dir_all(HOME)?;
    let inside = |one: &&Path| one.starts_with(HOME) && *one != Path::new(HOME);
    let mut missing: Vec<&Path> = path.ancestors().filter(inside).collect();
    while let Some(directory) = missing.pop() {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Opens a lock, which nobody but root can.
pub(crate) fn open_lock(path: &Path) -> std::io::Result<File> {
    let mut options = fs_err::OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    Ok(options.open(path)?.into_file())
}

/// Takes everything of the state from others than root: older versions let everyone read it, and
/// so hold its locks.
pub(crate) fn secure() -> Result<(), AgentError> {
    let state = place("");
    let Ok(Found::Directory(found)) = path::look(&state) else {
        return Ok(());
    };
    if found.st_uid == 0 && path::mode(&found) == 0o700 {
        return Ok(());
    }
    close(&state).map_err(failed(""))?;
    for name in [LOCK, drift::WATCH] {
        // Whoever has opened it before could still hold it: the next run takes another file. One
        // that is held by a run is left to the next time.
        if place(name).exists() && take(name)?.is_some() {
            remove(name)?;
        }
    }
    Ok(())
}

/// Leaves a directory, and everything in it, to root.
fn close(path: &Path) -> std::io::Result<()> {
    let (directory, name) = path::parent(path)?;
    directory.set_directory(&name, 0o700, (0, 0))?;
    let inside = path::directory(path)?;
    for name in inside.names()? {
        match inside.look(&name)? {
            Found::Directory(_) => close(&path.join(&name))?,
            Found::File(file, _) => {
                rustix::fs::fchown(&file, Some(Uid::ROOT), Some(Gid::ROOT))?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600))?;
            }
            Found::Nothing | Found::Link(_) | Found::Other => {}
        }
    }
    Ok(())
}

/// Removes a file of the state; one that is gone is fine.
pub(crate) fn remove(name: &str) -> Result<(), AgentError> {
    match fs_err::remove_file(place(name)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(name)(error)),
        _ => Ok(()),
    }
}

/// Reads what is remembered; nothing when there is nothing.
pub(crate) fn load() -> Result<State, AgentError> {
    read_or_default(STATE)
}

/// Reads a file of the state. One that cannot be read is not taken for one that is not there.
pub(crate) fn read_or_default<T: DeserializeOwned + Default>(name: &str) -> Result<T, AgentError> {
    match fs_err::read_to_string(place(name)) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(AgentError::look(&format!("`{}`", place(name).display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(failed(name)(error)),
    }
}

/// Remembers.
pub(crate) fn save(state: &State) -> Result<(), AgentError> {
    let text = serde_json::to_string(state).map_err(|error| failed(STATE)(error.into()))?;
    write(STATE, &text)
}

/// Returns where the spec is that is meant when none is named.
pub(crate) fn next_spec() -> PathBuf {
    let fetched = place(FETCHED);
    if fetched.exists() {
        fetched
    } else {
        place(SPEC)
    }
}

/// Keeps the spec, and the one before it. If it is the one that was fetched, none is waiting any
/// more; another may have come meanwhile.
pub(crate) fn keep_spec(text: &str) -> Result<(), AgentError> {
    let before = fs_err::read_to_string(place(SPEC)).ok();
    if before.as_deref() != Some(text) {
        if before.is_some() {
            remove(BEFORE)?;
            fs_err::hard_link(place(SPEC), place(BEFORE)).map_err(failed(BEFORE))?;
        }
        if attempted().as_deref() == Some(text) {
            durable::rename(&place(ATTEMPTED), &place(SPEC)).map_err(failed(SPEC))?;
        } else {
            write(SPEC, text)?;
        }
    }
    remove(ATTEMPTED)?;
    match fs_err::read_to_string(place(FETCHED)) {
        Ok(fetched) if fetched == text => remove(FETCHED),
        _ => Ok(()),
    }
}

/// Says which spec is being applied, until it is the one that is kept.
pub(crate) fn attempt(text: &str) -> Result<(), AgentError> {
    write(ATTEMPTED, text)
}

/// Says that what it changed was reverted.
pub(crate) fn forget_attempt() -> Result<(), AgentError> {
    remove(ATTEMPTED)
}

/// Returns the spec that was being applied when the last run failed or was cut off.
pub(crate) fn attempted() -> Option<String> {
    fs_err::read_to_string(place(ATTEMPTED)).ok()
}

/// Returns the spec from before a run that applied the one with digest `from`, which is known by
/// its digest `to`. `None` when another run came since, or that spec is not recorded.
pub(crate) fn earlier_spec(from: &str, to: &str) -> Option<String> {
    let is = |text: &Option<String>, wanted: &str| {
        text.as_deref()
            .is_some_and(|text| spec_digest(text) == wanted)
    };
    let read = |name: &str| fs_err::read_to_string(place(name)).ok();
    let (attempted, now) = (attempted(), read(SPEC));
    if attempted.is_some() && !is(&attempted, from) {
        return None;
    }
    // A spec that could not be applied whole is not kept.
    if is(&now, to) {
        return now;
    }
    read(BEFORE).filter(|before| is(&now, from) && spec_digest(before) == to)
}

/// Takes one run at a time. Freed when it is dropped, and when its process dies. Whatever the
/// watch had begun is taken over by whoever takes a turn.
pub(crate) fn lock() -> Result<File, AgentError> {
    let begun = clock::instant();
    let file = loop {
        if let Some(file) = take(LOCK)? {
            break file;
        }
        // The watch gives the turn back; another run may have it for long.
        if !drift::is_watched() || begun.elapsed() > PATIENCE {
            return Err(unconfirmed().map_or(AgentError::Busy, AgentError::Waiting));
        }
        std::thread::sleep(PAUSE);
    };
    drift::note_mending(false)?;
    Ok(file)
}

/// Takes a file for as long as it is held. `None` when another has it.
pub(crate) fn take(name: &str) -> Result<Option<File>, AgentError> {
    let path = place(name);
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
        // One that was replaced meanwhile locks nobody out.
        let same = |now: std::fs::Metadata| {
            let then = file.metadata();
            then.is_ok_and(|then| (then.dev(), then.ino()) == (now.dev(), now.ino()))
        };
        if fs_err::symlink_metadata(&path).is_ok_and(same) {
            return Ok(Some(file));
        }
    }
}

/// Returns the job whose changes are taken back unless someone confirms them.
pub(crate) fn unconfirmed() -> Option<String> {
    let text = fs_err::read_to_string(place(UNCONFIRMED)).ok()?;
    Some(text.trim().to_owned())
}

/// Says that the changes of a job are not confirmed yet.
pub(crate) fn await_confirmation(job: &str) -> Result<(), AgentError> {
    write(UNCONFIRMED, job)
}

/// Says that nothing waits to be confirmed.
pub(crate) fn nothing_awaited() -> Result<(), AgentError> {
    remove(UNCONFIRMED)
}

/// Returns the numbers of users and groups whose creation was reverted: files of theirs may be left.
pub(crate) fn retired() -> BTreeSet<u32> {
    let text = fs_err::read_to_string(place(RETIRED)).unwrap_or_default();
    let words = text.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Says that numbers are not given again.
pub(crate) fn retire(numbers: [u32; 2]) -> Result<(), AgentError> {
    let known = retired();
    let mut all = known.clone();
    all.extend(numbers);
    if all == known {
        return Ok(());
    }
    let words: Vec<String> = all.iter().map(u32::to_string).collect();
    write(RETIRED, &words.join(" "))
}

/// Says that the machine is complete, unless it was said before with the same words.
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

/// Says that it failed, and how often.
pub(crate) fn fail(error: &AgentError, spec: &str) -> Result<(), AgentError> {
    fail_in("config", error, spec)
}

/// The same for a phase: `run` is that of a machine which looks after itself.
pub(crate) fn fail_in(phase: &str, error: &AgentError, spec: &str) -> Result<(), AgentError> {
    let now = clock::now().to_string();
    let before = markers().1.unwrap_or_default();
    let message = error.message();
    // A watch that finds the same again has nothing new to say.
    if phase == "run" && before["phase"] == phase && before["message"] == message {
        return Ok(());
    }
    let attempts = before["attempts"].as_u64().unwrap_or(0) + 1;
    let first = before["first_attempt"].as_str().unwrap_or(&now);
    let marker = json!({
        "phase": phase,
        "status": "failed",
        "error": error.word(),
        "code": error.code(),
        "message": message,
        "node": hostname(),
        "spec": spec,
        "attempts": attempts,
        "first_attempt": first,
        "last_attempt": now,
    });
    let text = format!("{marker:#}\n");
    // A disk that cannot be written may be why it failed.
    let done = remove(COMPLETE).and_then(|()| write(FAILED, &text));
    if done.is_err() {
        let place = Path::new(FAILED_ELSEWHERE);
        return files::write(place, text.as_bytes(), 0o600).map_err(failed(FAILED));
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
    read_at(&place(name))
}

fn read_at(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs_err::read_to_string(path).ok()?).ok()
}
