//! The directory of a job, `state/jobs/NAME`: its spec, its events, who works on it, and the one
//! verdict about its changes. Root alone reads it.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_core::converge::{Event, NumberedEvent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{make_directory, open_lock, unconfirmed};
use crate::error::AgentError;
use crate::{clock, files};

/// The spec of a job.
pub(crate) const SPEC: &str = "spec.yaml";
/// What happened, a line each. A job is known once it has this.
const EVENTS: &str = "events";
/// Locked by whoever begins the job.
const CLAIM: &str = "claim";
/// Locked by whoever works on it; put there locked.
const ALIVE: &str = "alive";
/// What is to be confirmed until when.
const ASKED: &str = "asked.json";
/// A link to nowhere that is named like the verdict: made at once or not at all, and on a full disk
/// as well.
const VERDICT: &str = "verdict";
/// How many jobs are remembered.
const KEPT: usize = 8;

/// Where a job is.
pub(crate) struct Job {
    pub(crate) id: String,
    directory: PathBuf,
}

/// What becomes of changes that were to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Confirmed,
    Reverted,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Reverted => "reverted",
        }
    }
}

/// That someone is asked to confirm.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) within: u64,
    /// By the machine's uptime, in milliseconds.
    pub(crate) until: u64,
    /// The boot in which that counts.
    pub(crate) boot: String,
}

impl Asked {
    pub(crate) fn is_over(&self) -> bool {
        self.boot != clock::boot() || clock::uptime() >= self.until
    }
}

impl Job {
    pub(crate) fn of(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            directory: super::place("jobs").join(id),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn failed(&self, name: &str) -> impl Fn(std::io::Error) -> AgentError {
        AgentError::remember(self.path(name))
    }

    pub(crate) fn is_known(&self) -> bool {
        self.path(EVENTS).exists()
    }

    /// Waits until nobody else begins this job.
    pub(crate) fn claim(&self) -> Result<File, AgentError> {
        let failed = self.failed(CLAIM);
        make_directory(&self.directory).map_err(&failed)?;
        let file = open_lock(&self.path(CLAIM)).map_err(&failed)?;
        file.lock().map_err(&failed)?;
        Ok(file)
    }

    /// Tells whether someone begins the job, or works on it.
    pub(crate) fn is_worked_on(&self) -> bool {
        let is_locked = |name: &str| {
            let file = fs_err::File::open(self.path(name));
            file.is_ok_and(|file| file.into_file().try_lock_shared().is_err())
        };
        is_locked(CLAIM) || is_locked(ALIVE)
    }

    /// Begins to work on a job.
    pub(crate) fn take(&self) -> Result<File, AgentError> {
        let failed = self.failed(ALIVE);
        let beside = self.path("alive.new");
        let file = open_lock(&beside).map_err(&failed)?;
        file.try_lock().map_err(|_| AgentError::Busy)?;
        fs_err::rename(&beside, self.path(ALIVE)).map_err(&failed)?;
        Ok(file)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.path(ALIVE).exists()
    }

    /// Takes a job over once whoever works on it is gone. `None` when nobody ever did.
    pub(crate) fn inherit(&self, wait: Wait) -> Result<Option<File>, AgentError> {
        let failed = self.failed(ALIVE);
        let file = match fs_err::File::open(self.path(ALIVE)) {
            Ok(file) => file.into_file(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match wait {
            Wait::UntilFree => file.lock().map_err(failed)?,
            Wait::Never => {
                let busy = |_| AgentError::Waiting(self.id.clone());
                file.try_lock().map_err(busy)?;
            }
        }
        Ok(Some(file))
    }

    pub(crate) fn write(&self, name: &str, what: &impl Serialize) -> Result<(), AgentError> {
        let text = serde_json::to_string(what).map_err(|error| self.failed(name)(error.into()))?;
        self.write_text(name, &text)
    }

    pub(crate) fn write_text(&self, name: &str, text: &str) -> Result<(), AgentError> {
        files::write(&self.path(name), text.as_bytes(), 0o600).map_err(self.failed(name))
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<T, AgentError> {
        let text = self.read_text(name)?;
        serde_json::from_str(&text).map_err(|error| self.failed(name)(error.into()))
    }

    pub(crate) fn read_text(&self, name: &str) -> Result<String, AgentError> {
        fs_err::read_to_string(self.path(name)).map_err(self.failed(name))
    }

    /// Reads what happened so far.
    pub(crate) fn events(&self) -> Result<String, AgentError> {
        self.read_text(EVENTS)
    }

    /// Asks for a confirmation from now on.
    pub(crate) fn ask(&self, within: u64) -> Result<Asked, AgentError> {
        let asked = Asked {
            within,
            until: clock::uptime() + within * 1_000,
            boot: clock::boot(),
        };
        self.write(ASKED, &asked)?;
        Ok(asked)
    }

    pub(crate) fn enforced(&self) -> Option<Asked> {
        self.read(ASKED).ok()
    }

    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let target = fs_err::read_link(self.path(VERDICT)).ok()?;
        let verdicts = [Verdict::Confirmed, Verdict::Reverted];
        verdicts
            .into_iter()
            .find(|verdict| target.as_os_str() == verdict.word())
    }

    /// Gives a verdict. The first one counts, and is returned.
    pub(crate) fn judge(&self, verdict: Verdict) -> Result<Verdict, AgentError> {
        let failed = self.failed(VERDICT);
        match fs_err::os::unix::fs::symlink(verdict.word(), self.path(VERDICT)) {
            Ok(()) => {
                let directory = fs_err::File::open(&self.directory).map_err(&failed)?;
                directory.sync_all().map_err(&failed)?;
                Ok(verdict)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Ok(self.verdict().unwrap_or(Verdict::Reverted))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Waits until someone confirms, or nobody did in time.
    pub(crate) fn await_verdict(&self, asked: &Asked) -> Result<Verdict, AgentError> {
        loop {
            if let Some(verdict) = self.verdict() {
                return Ok(verdict);
            }
            if asked.is_over() {
                return self.judge(Verdict::Reverted);
            }
            clock::moment(100);
        }
    }

    /// Forgets the oldest jobs.
    pub(crate) fn forget_others(&self) {
        let entries = fs_err::read_dir(super::place("jobs"));
        let mut others: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                let time = entry.metadata().and_then(|meta| meta.modified()).ok()?;
                (name != self.id).then_some((time, name))
            })
            .collect();
        others.sort();
        let awaited = unconfirmed();
        let n_old = others.len().saturating_sub(KEPT - 1);
        for (_, name) in others.into_iter().take(n_old) {
            let other = Self::of(&name);
            if awaited.as_ref() != Some(&name) && !other.is_worked_on() {
                _ = fs_err::remove_dir_all(other.directory);
            }
        }
    }
}

/// Whether to wait for a job that someone works on.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    UntilFree,
    Never,
}

/// Hears of events; tells whether it is still there.
pub(crate) type Listener = fn(&NumberedEvent) -> bool;

/// Where a job's events are written.
pub(crate) struct Log {
    file: Option<File>,
    n: u64,
    listener: Option<Listener>,
}

impl Log {
    /// Goes on after the events that are there. Whoever cannot be written to hears of them still.
    pub(crate) fn open(job: &Job, listener: Option<Listener>) -> Self {
        let text = job.events().unwrap_or_default();
        let mut options = fs_err::OpenOptions::new();
        let options = options.create(true).append(true).mode(0o600);
        let file = options.open(job.path(EVENTS));
        Self {
            file: file.ok().map(fs_err::File::into_file),
            n: u64::try_from(text.lines().count()).unwrap_or_default(),
            listener,
        }
    }

    /// Says what happened. What cannot be written down is no reason to stop.
    pub(crate) fn say(&mut self, event: Event) {
        self.n += 1;
        let event = NumberedEvent { n: self.n, event };
        if let Some(file) = &mut self.file
            && let Ok(line) = serde_json::to_string(&event)
        {
            _ = file.write_all(format!("{line}\n").as_bytes());
        }
        if let Some(listener) = self.listener {
            listener(&event);
        }
    }
}
