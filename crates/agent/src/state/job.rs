//! The directory of a job, `state/jobs/NAME`: its spec, its events, its locks, and the verdict about its
//! changes.

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
/// One event per line. A job exists once it has this.
const EVENTS: &str = "events";
/// Locked while the job is being created.
const CLAIM: &str = "claim";
/// Locked by its worker; created locked.
const ALIVE: &str = "alive";
/// The request for confirmation.
const REQUEST: &str = "asked.json";
/// A dangling symbolic link to the name of the verdict: created atomically, also on a full disk.
const VERDICT: &str = "verdict";
/// How many jobs are kept.
const MAX_JOBS: usize = 8;

/// A job.
pub(crate) struct Job {
    pub(crate) id: String,
    directory: PathBuf,
}

/// The verdict about changes that were to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Confirmed,
    Reverted,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Reverted => "reverted",
        }
    }
}

/// A request for confirmation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ConfirmationRequest {
    pub(crate) within: u64,
    /// By the machine's uptime, in milliseconds.
    pub(crate) until: u64,
    /// The boot in which that counts.
    pub(crate) boot: String,
}

impl ConfirmationRequest {
    pub(crate) fn is_expired(&self) -> bool {
        self.boot != clock::boot() || clock::uptime() >= self.until
    }
}

impl Job {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            directory: super::file("jobs").join(id),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn failed(&self, name: &str) -> impl Fn(std::io::Error) -> AgentError {
        AgentError::state_file(self.path(name))
    }

    pub(crate) fn exists(&self) -> bool {
        self.path(EVENTS).exists()
    }

    /// Waits until no other process is creating this job.
    pub(crate) fn claim(&self) -> Result<File, AgentError> {
        let failed = self.failed(CLAIM);
        make_directory(&self.directory).map_err(&failed)?;
        let file = open_lock(&self.path(CLAIM)).map_err(&failed)?;
        file.lock().map_err(&failed)?;
        Ok(file)
    }

    /// Returns whether the job is being created or executed.
    pub(crate) fn is_active(&self) -> bool {
        let is_locked = |name: &str| {
            let file = fs_err::File::open(self.path(name));
            file.is_ok_and(|file| file.into_file().try_lock_shared().is_err())
        };
        is_locked(CLAIM) || is_locked(ALIVE)
    }

    /// Starts executing the job.
    pub(crate) fn start(&self) -> Result<File, AgentError> {
        let failed = self.failed(ALIVE);
        let temporary = self.path("alive.new");
        let file = open_lock(&temporary).map_err(&failed)?;
        file.try_lock().map_err(|_| AgentError::Busy)?;
        fs_err::rename(&temporary, self.path(ALIVE)).map_err(&failed)?;
        Ok(file)
    }

    pub(crate) fn is_started(&self) -> bool {
        self.path(ALIVE).exists()
    }

    /// Takes over the job once its worker has ended. `None` if it never had one.
    pub(crate) fn take_over(&self, wait: Wait) -> Result<Option<File>, AgentError> {
        let failed = self.failed(ALIVE);
        let file = match fs_err::File::open(self.path(ALIVE)) {
            Ok(file) => file.into_file(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match wait {
            Wait::UntilFree => file.lock().map_err(failed)?,
            Wait::Never => {
                let busy = |_| AgentError::AwaitingConfirmation(self.id.clone());
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

    /// Reads the events so far.
    pub(crate) fn events(&self) -> Result<String, AgentError> {
        self.read_text(EVENTS)
    }

    /// Requests confirmation from now on.
    pub(crate) fn request_confirmation(
        &self,
        within: u64,
    ) -> Result<ConfirmationRequest, AgentError> {
        let request = ConfirmationRequest {
            within,
            until: clock::uptime() + within * 1_000,
            boot: clock::boot(),
        };
        self.write(REQUEST, &request)?;
        Ok(request)
    }

    pub(crate) fn request(&self) -> Option<ConfirmationRequest> {
        self.read(REQUEST).ok()
    }

    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let target = fs_err::read_link(self.path(VERDICT)).ok()?;
        let verdicts = [Verdict::Confirmed, Verdict::Reverted];
        verdicts
            .into_iter()
            .find(|verdict| target.as_os_str() == verdict.name())
    }

    /// Records a verdict. The first one counts, and is returned.
    pub(crate) fn decide(&self, verdict: Verdict) -> Result<Verdict, AgentError> {
        let failed = self.failed(VERDICT);
        match fs_err::os::unix::fs::symlink(verdict.name(), self.path(VERDICT)) {
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

    /// Waits for the confirmation; reverts when the time is over.
    pub(crate) fn await_verdict(
        &self,
        request: &ConfirmationRequest,
    ) -> Result<Verdict, AgentError> {
        loop {
            if let Some(verdict) = self.verdict() {
                return Ok(verdict);
            }
            if request.is_expired() {
                return self.decide(Verdict::Reverted);
            }
            clock::sleep(100);
        }
    }

    /// Deletes the oldest jobs.
    pub(crate) fn delete_old(&self) {
        let entries = fs_err::read_dir(super::file("jobs"));
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
        let n_old = others.len().saturating_sub(MAX_JOBS - 1);
        for (_, name) in others.into_iter().take(n_old) {
            let other = Self::new(&name);
            if awaited.as_ref() != Some(&name) && !other.is_active() {
                _ = fs_err::remove_dir_all(other.directory);
            }
        }
    }
}

/// Whether to wait for the worker of a job.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    UntilFree,
    Never,
}

/// Receives events; returns false when it does not want more.
pub(crate) type Listener = fn(&NumberedEvent) -> bool;

/// The event log of a job.
pub(crate) struct EventLog {
    file: Option<File>,
    n: u64,
    listener: Option<Listener>,
}

impl EventLog {
    /// Continues after the existing events. If the file cannot be opened, only the listener is notified.
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

    /// Records an event. Failures to write are ignored.
    pub(crate) fn write(&mut self, event: Event) {
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
