//! The durable records of jobs: which ids were taken, the phase of each job, and its outcome.
//!
//! A job is recorded before it is taken, before it begins, and when it has ended. A machine that is
//! stopped at any point therefore knows whether the job began, and never begins a job twice.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use homestak_api::durable::{self, Access};
use homestak_api::v1::node_job::{JobKind, JobOutcome};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::AgentError;
use crate::{clock, state};

/// The maximum number of job records.
const MAX_RECORDS: usize = 20;
/// The maximum number of unexpired ids of signed jobs; further jobs are refused. Enough for one job
/// every five minutes for a week.
const MAX_IDS: usize = 2_000;
/// The ids of signed jobs.
const IDS: &str = "ids";
/// When jobs of limited frequency were last executed.
const LIMITS: &str = "limits";
/// Locked while a job is executed.
const LOCK: &str = "lock";
/// The interval between attempts to take the lock, in milliseconds.
const LOCK_PAUSE: u64 = 100;

/// The records of this machine.
pub(crate) struct Records {
    directory: PathBuf,
}

/// Where a job came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobOrigin {
    /// The server, which receives the outcome.
    Server,
    /// A command on this machine.
    Command,
}

/// The progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It is being taken, and has not begun.
    Taken,
    /// It has begun.
    Begun,
    /// It has ended.
    Ended,
}

/// What this machine records of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// Later jobs have larger numbers.
    pub(crate) n: u64,
    pub(crate) id: String,
    pub(crate) kind: JobKind,
    pub(crate) origin: JobOrigin,
    pub(crate) phase: Phase,
    /// How it ended.
    pub(crate) outcome: Option<JobOutcome>,
    /// The restart that was started and has not completed.
    pub(crate) reboot: Option<PendingReboot>,
    /// Whether the server has not received the outcome yet.
    pub(crate) is_due: bool,
    /// How many bytes of output the server received.
    pub(crate) n_sent: u64,
}

/// A restart that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingReboot {
    /// The id of the boot that the restart ends.
    pub(crate) boot: String,
    pub(crate) since: TimePoint,
    /// How the job ended, once the machine has restarted.
    pub(crate) outcome: JobOutcome,
}

/// A point in time by both clocks: the wall clock can be set, and the uptime starts at each boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimePoint {
    /// In seconds since 1970.
    pub(crate) time: i64,
    /// In milliseconds.
    pub(crate) uptime: u64,
}

impl TimePoint {
    /// Returns the current time.
    pub(crate) fn now() -> Self {
        Self {
            time: clock::now().as_second(),
            uptime: clock::uptime(),
        }
    }

    /// Returns whether at least `longest` has passed by either clock. The uptime counts even if the wall
    /// clock was set back; in a container, it is the uptime of the host.
    pub(crate) fn is_past(self, longest: Duration, now: Self) -> bool {
        let up = now.uptime.checked_sub(self.uptime).unwrap_or(now.uptime);
        let passed = u64::try_from(now.time.saturating_sub(self.time)).unwrap_or_default();
        Duration::from_millis(up) >= longest || Duration::from_secs(passed) >= longest
    }
}

/// When jobs of limited frequency were last executed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) reboot: Option<TimePoint>,
    pub(crate) trigger: Option<TimePoint>,
}

/// The id of a signed job, and until when it is valid.
#[derive(Serialize, Deserialize)]
struct TakenId {
    id: String,
    expires: i64,
}

impl Default for Records {
    fn default() -> Self {
        Self::new(state::file("node-jobs"))
    }
}

impl Records {
    /// Uses the records in a directory.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// Takes the lock that is held while a job is executed. `None` if it is not free in time.
    pub(crate) fn lock(&self, wait: Duration) -> Result<Option<File>, AgentError> {
        let path = self.directory.join(LOCK);
        let failed = AgentError::state_file(path.clone());
        state::make_directory(&self.directory).map_err(&failed)?;
        let file = state::open_lock(&path).map_err(&failed)?;
        let begun = clock::instant();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= wait => return Ok(None),
                Err(TryLockError::WouldBlock) => clock::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, AgentError> {
        let path = self.path(name);
        let failed = AgentError::state_file(path.clone());
        match fs_err::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| failed(error.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), AgentError> {
        let path = self.path(name);
        let failed = AgentError::state_file(path.clone());
        state::make_directory(&self.directory).map_err(&failed)?;
        let text = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
        durable::write(&path, &text, Access::PRIVATE).map_err(failed)
    }

    /// Returns the record of a job.
    pub(crate) fn find(&self, id: &str) -> Result<Option<JobRecord>, AgentError> {
        self.read(id)
    }

    /// Returns all records, the oldest first. Damaged ones are left out.
    pub(crate) fn all(&self) -> Vec<JobRecord> {
        let entries = fs_err::read_dir(&self.directory);
        let paths = entries.into_iter().flatten().flatten();
        let names = paths.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let names = names.filter(|name| !name.starts_with('.'));
        let mut all: Vec<JobRecord> = names
            .filter_map(|name| self.read(name.strip_suffix(".json")?).ok().flatten())
            .collect();
        all.sort_by_key(|record| record.n);
        all
    }

    /// Records that a job is being taken. Deletes the oldest records above the maximum.
    pub(crate) fn add(
        &self,
        id: &str,
        kind: JobKind,
        origin: JobOrigin,
    ) -> Result<JobRecord, AgentError> {
        let mut all = self.all();
        let record = JobRecord {
            n: all.last().map_or(1, |last| last.n + 1),
            id: id.to_owned(),
            kind,
            origin,
            phase: Phase::Taken,
            outcome: None,
            reboot: None,
            is_due: origin == JobOrigin::Server,
            n_sent: 0,
        };
        self.put(&record)?;
        // Records whose outcome the server has not received are deleted last.
        all.sort_by_key(|record| (record.is_due, record.n));
        let n_old = (all.len() + 1).saturating_sub(MAX_RECORDS);
        for old in all.iter().take(n_old) {
            _ = fs_err::remove_file(self.path(&old.id));
        }
        Ok(record)
    }

    /// Stores a record.
    pub(crate) fn put(&self, record: &JobRecord) -> Result<(), AgentError> {
        self.write(&record.id, record)
    }

    /// Returns whether the id of a signed job was recorded.
    pub(crate) fn has_id(&self, id: &str) -> Result<bool, AgentError> {
        let ids: Vec<TakenId> = self.read(IDS)?.unwrap_or_default();
        Ok(ids.iter().any(|one| one.id == id))
    }

    /// Records the id of a signed job. Returns false, and records nothing, when too many ids have not
    /// expired.
    pub(crate) fn add_id(&self, id: &str, expires: i64, now: i64) -> Result<bool, AgentError> {
        let mut ids: Vec<TakenId> = self.read(IDS)?.unwrap_or_default();
        if ids.len() >= MAX_IDS {
            // Expired ids are removed only when space is needed: the clock may be wrong.
            ids.retain(|one| one.expires >= now);
        }
        if ids.len() >= MAX_IDS {
            return Ok(false);
        }
        ids.push(TakenId {
            id: id.to_owned(),
            expires,
        });
        self.write(IDS, &ids)?;
        Ok(true)
    }

    /// Returns when jobs of limited frequency were last executed.
    pub(crate) fn limits(&self) -> Result<Limits, AgentError> {
        Ok(self.read(LIMITS)?.unwrap_or_default())
    }

    /// Records when jobs of limited frequency were last executed.
    pub(crate) fn put_limits(&self, limits: &Limits) -> Result<(), AgentError> {
        self.write(LIMITS, limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> (tempfile::TempDir, Records) {
        let root = tempfile::tempdir().expect("a directory");
        let records = Records::new(root.path().to_owned());
        (root, records)
    }

    #[test]
    fn time_has_passed_when_either_clock_proves_it() {
        let at = |time, uptime| TimePoint { time, uptime };
        let limit = Duration::from_secs(600);
        let then = at(1_000_000, 5_000_000);
        assert!(!then.is_past(limit, at(1_000_599, 5_599_000)));
        assert!(then.is_past(limit, at(1_000_600, 5_599_000)));
        // The clock was set back.
        assert!(!then.is_past(limit, at(0, 5_599_000)));
        assert!(then.is_past(limit, at(0, 5_600_000)));
        // The machine has restarted.
        assert!(!then.is_past(limit, at(0, 30_000)));
        assert!(then.is_past(limit, at(0, 600_000)));
        assert!(then.is_past(limit, at(9_000_000, 30_000)));
        assert!(!then.is_past(limit, at(i64::MIN, 0)));
    }

    #[test]
    fn the_last_records_are_kept_and_those_that_are_not_reported_longer() {
        let (_root, records) = records();
        let id = |n: usize| format!("{n:032x}");
        let kind = JobKind::Check;
        let first = records.add(&id(0), kind, JobOrigin::Server).expect("added");
        assert_eq!((first.phase, first.is_due), (Phase::Taken, true));
        for n in 1..50 {
            let added = records.add(&id(n), kind, JobOrigin::Command);
            added.expect("added");
        }
        let all = records.all();
        assert_eq!(all.len(), MAX_RECORDS);
        assert_eq!((&all[0].id, &all[1].id), (&id(0), &id(31)));
        assert!(records.find(&id(5)).expect("read").is_none());
        for n in 50..100 {
            let added = records.add(&id(n), kind, JobOrigin::Server);
            added.expect("added");
        }
        let all = records.all();
        assert_eq!((all.len(), &all[0].id), (MAX_RECORDS, &id(80)));
        fs_err::write(records.path(&id(99)), "{").expect("written");
        assert_eq!(records.all().len(), MAX_RECORDS - 1);
        assert!(
            records.find(&id(99)).is_err(),
            "a damaged one is no new one"
        );
    }

    #[test]
    fn ids_are_remembered_until_they_expire_and_more_are_refused() {
        let (_root, records) = records();
        assert!(!records.has_id("a").expect("read"));
        assert!(records.add_id("a", 50, 100).expect("written"));
        assert!(
            records.has_id("a").expect("read"),
            "expired, but there is room"
        );
        let others = (1..MAX_IDS).map(|n| TakenId {
            id: n.to_string(),
            expires: 200,
        });
        let mut ids: Vec<TakenId> = records.read(IDS).expect("read").expect("ids");
        ids.extend(others);
        records.write(IDS, &ids).expect("written");
        assert!(records.add_id("b", 200, 100).expect("written"));
        assert!(!records.has_id("a").expect("read"));
        assert!(!records.add_id("c", 200, 100).expect("read"));
        assert!(!records.has_id("c").expect("read"));
    }

    #[test]
    fn one_job_is_executed_at_a_time() {
        let (_root, records) = records();
        let held = records.lock(Duration::ZERO).expect("opened");
        assert!(held.is_some());
        let other = records.lock(Duration::from_millis(150)).expect("opened");
        assert!(other.is_none());
        drop(held);
        assert!(records.lock(Duration::ZERO).expect("opened").is_some());
    }
}
