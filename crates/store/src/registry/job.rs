//! Jobs in the registry: added, taken once, reported about, cancelled.
//!
//! Each change is one transaction, so that a job cannot be both taken and cancelled.

use homestak_api::v1::node_job::{JobKind, JobReport, JobState};
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::file::{Registry, RegistryError};
use super::job_entry::{JobEntry, REPORT_PATIENCE, TRIGGER_TIME_LIMIT};
use super::job_output::{Extent, JobOutput};

/// Jobs without their results, which may be large.
const IN_LISTS: &str = "id, uuid, node, kind, origin, statement, issued, expires, time_limit, \
    taken, cancelled, ended, reported, outcome, substr(message, 1, 1000) AS message, NULL AS result";
/// Jobs that the node may take at a time, which is `?1`.
const QUEUED: &str = "taken IS NULL AND cancelled IS NULL AND expires > ?1";

/// The outcome of adding a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddOutcome {
    /// It was added.
    Added(JobEntry),
    /// The same job was added before.
    Known(JobEntry),
    /// Another job has or had its id.
    Used,
    /// It has expired.
    Expired,
    /// Too many jobs of the node are queued.
    Full,
}

/// The outcome of taking a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// The node has it now.
    Taken(Box<JobEntry>),
    /// The node has no such job.
    Unknown,
    /// It is no longer queued.
    NotQueued(JobState),
}

/// The outcome of cancelling a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It is cancelled, now or before.
    Cancelled(Box<JobEntry>),
    /// There is no such job.
    Unknown,
    /// The node has taken it, or it has expired.
    NotQueued(JobState),
}

/// The outcome of a report about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was recorded, and is not the end.
    Recorded,
    /// It was recorded, and the job has ended.
    Ended,
    /// The job had ended with this outcome before.
    Repeated,
    /// The node has no such job.
    Unknown,
    /// The node has not taken the job.
    NotTaken(JobState),
    /// The job has ended, and this is something else.
    AfterEnd,
}

impl Registry {
    /// Adds a job. The same statement again returns what was recorded then. At most `queued` jobs of a
    /// node wait at a time.
    pub fn add_job(
        &self,
        job: &JobEntry,
        now: i64,
        queued: u32,
    ) -> Result<AddOutcome, RegistryError> {
        self.with("write a job to", |connection| {
            let transaction = connection.transaction()?;
            if let Some(known) = find(&transaction, &job.id)? {
                let is_same = known.uuid == job.uuid && known.statement == job.statement;
                return Ok(match is_same {
                    true => AddOutcome::Known(known),
                    false => AddOutcome::Used,
                });
            }
            let used = "SELECT 1 FROM used_job WHERE id = ?1";
            if transaction.prepare_cached(used)?.exists([&job.id])? {
                return Ok(AddOutcome::Used);
            }
            if job.expires <= now {
                return Ok(AddOutcome::Expired);
            }
            let count = format!("SELECT count(*) FROM job WHERE uuid = ?2 AND {QUEUED}");
            let count: u32 =
                transaction.query_row(&count, params![now, job.uuid], |row| row.get(0))?;
            if count >= queued {
                return Ok(AddOutcome::Full);
            }
            insert(&transaction, job)?;
            let added = find(&transaction, &job.id)?;
            transaction.commit()?;
            added
                .map(AddOutcome::Added)
                .ok_or(rusqlite::Error::QueryReturnedNoRows)
        })
    }

    /// Adds a job without statement, which can only converge. `None` when one is queued for the node
    /// already, or when there is no enrolled node with this UUID.
    pub fn add_trigger_job(
        &self,
        uuid: &str,
        origin: &str,
        at: i64,
        expires: i64,
    ) -> Result<Option<JobEntry>, RegistryError> {
        self.with("write a job to", |connection| {
            let transaction = connection.transaction()?;
            let added = add_trigger_job(&transaction, uuid, origin, (at, expires))?;
            transaction.commit()?;
            Ok(added)
        })
    }

    /// Deletes the oldest jobs of a node beyond `keep`. Those that are queued, or taken and neither
    /// ended nor lost, are never deleted; ids that have not expired are never used again.
    pub fn prune_jobs(&self, uuid: &str, now: i64, keep: u32) -> Result<usize, RegistryError> {
        self.with("delete jobs of", |connection| {
            let transaction = connection.transaction()?;
            let old = format!(
                "uuid = ?1 AND number <= (SELECT number FROM job WHERE uuid = ?1 \
                 ORDER BY number DESC LIMIT 1 OFFSET ?3) \
                 AND (ended IS NOT NULL OR cancelled IS NOT NULL OR taken IS NULL AND expires <= ?2 \
                 OR taken IS NOT NULL \
                 AND max(taken + time_limit, coalesce(reported, 0)) + {REPORT_PATIENCE} < ?2)"
            );
            let parameters = params![uuid, now, keep];
            let keep_ids = format!(
                "INSERT OR IGNORE INTO used_job SELECT id, expires FROM job \
                 WHERE expires > ?2 AND {old}"
            );
            transaction.execute(&keep_ids, parameters)?;
            let deleted = transaction.execute(&format!("DELETE FROM job WHERE {old}"), parameters)?;
            if deleted > 0 {
                transaction.execute("DELETE FROM used_job WHERE expires <= ?1", [now])?;
            }
            transaction.commit()?;
            Ok(deleted)
        })
    }

    /// Returns the jobs of a node or of all, newest first and at most `limit`, without their results.
    pub fn jobs(&self, uuid: Option<&str>, limit: u32) -> Result<Vec<JobEntry>, RegistryError> {
        self.with("read jobs of", |connection| match uuid {
            Some(uuid) => {
                let query = format!(
                    "SELECT {IN_LISTS} FROM job WHERE uuid = ?1 ORDER BY number DESC LIMIT ?2"
                );
                let mut query = connection.prepare_cached(&query)?;
                query
                    .query_map(params![uuid, limit], JobEntry::read)?
                    .collect()
            }
            None => {
                let query = format!("SELECT {IN_LISTS} FROM job ORDER BY number DESC LIMIT ?1");
                let mut query = connection.prepare_cached(&query)?;
                query.query_map([limit], JobEntry::read)?.collect()
            }
        })
    }

    /// Returns the jobs that a node may take, oldest first and at most `limit`.
    pub fn queued_jobs(
        &self,
        uuid: &str,
        now: i64,
        limit: u32,
    ) -> Result<Vec<JobEntry>, RegistryError> {
        self.with("read jobs of", |connection| {
            let query = format!(
                "SELECT {IN_LISTS} FROM job WHERE uuid = ?2 AND {QUEUED} ORDER BY number LIMIT ?3"
            );
            let mut query = connection.prepare_cached(&query)?;
            query
                .query_map(params![now, uuid, limit], JobEntry::read)?
                .collect()
        })
    }

    /// Returns a job with its output from a byte on.
    pub fn job(
        &self,
        id: &str,
        after: u64,
    ) -> Result<Option<(JobEntry, JobOutput)>, RegistryError> {
        self.with("read a job of", |connection| {
            let transaction = connection.transaction()?;
            let Some((entry, extent)) = find_with_extent(&transaction, id)? else {
                return Ok(None);
            };
            let output = extent.read(&transaction, after)?;
            Ok(Some((entry, output)))
        })
    }

    /// Records that a node took a job. Of several attempts exactly one succeeds.
    pub fn take_job(&self, id: &str, uuid: &str, at: i64) -> Result<TakeOutcome, RegistryError> {
        self.with("write a job to", |connection| {
            let transaction = connection.transaction()?;
            let take =
                format!("UPDATE job SET taken = ?1 WHERE id = ?2 AND uuid = ?3 AND {QUEUED}");
            let changed = transaction.execute(&take, params![at, id, uuid])?;
            let found = find(&transaction, id)?.filter(|job| job.uuid == uuid);
            transaction.commit()?;
            Ok(match found {
                None => TakeOutcome::Unknown,
                Some(job) if changed == 1 => TakeOutcome::Taken(Box::new(job)),
                Some(job) => TakeOutcome::NotQueued(job.state(at)),
            })
        })
    }

    /// Cancels a job that its node has not taken.
    pub fn cancel_job(&self, id: &str, at: i64) -> Result<CancelOutcome, RegistryError> {
        self.with("write a job to", |connection| {
            let transaction = connection.transaction()?;
            let cancel = format!("UPDATE job SET cancelled = ?1 WHERE id = ?2 AND {QUEUED}");
            transaction.execute(&cancel, params![at, id])?;
            let found = find(&transaction, id)?;
            transaction.commit()?;
            Ok(match found {
                None => CancelOutcome::Unknown,
                Some(job) if job.state(at) == JobState::Cancelled => {
                    CancelOutcome::Cancelled(Box::new(job))
                }
                Some(job) => CancelOutcome::NotQueued(job.state(at)),
            })
        })
    }

    /// Cancels all jobs that a node has not taken, and returns how many. Those that it has taken and
    /// not ended are lost until it reports about them again.
    pub fn cancel_jobs_of(&self, uuid: &str, at: i64) -> Result<usize, RegistryError> {
        self.with("write jobs to", |connection| {
            let transaction = connection.transaction()?;
            let cancel = format!("UPDATE job SET cancelled = ?1 WHERE uuid = ?2 AND {QUEUED}");
            let cancelled = transaction.execute(&cancel, params![at, uuid])?;
            transaction.execute(
                "UPDATE job SET cancelled = ?1 WHERE uuid = ?2 \
                 AND taken IS NOT NULL AND cancelled IS NULL AND outcome IS NULL",
                params![at, uuid],
            )?;
            transaction.commit()?;
            Ok(cancelled)
        })
    }

    /// Records what a node reports about a job that it took. Output that was sent before is not
    /// appended again; after an outcome nothing changes.
    pub fn report_job(
        &self,
        id: &str,
        uuid: &str,
        at: i64,
        report: &JobReport,
    ) -> Result<WriteOutcome, RegistryError> {
        let result = report.outcome.as_ref().map(|outcome| &outcome.result);
        let result = result.and_then(|result| serde_json::to_string(result).ok());
        self.with("write a job to", |connection| {
            let transaction = connection.transaction()?;
            let found = find_with_extent(&transaction, id)?;
            let Some((job, mut extent)) = found.filter(|(job, _)| job.uuid == uuid) else {
                return Ok(WriteOutcome::Unknown);
            };
            if job.outcome.is_some() {
                return Ok(match job.outcome == report.outcome {
                    true => WriteOutcome::Repeated,
                    false => WriteOutcome::AfterEnd,
                });
            }
            if job.taken.is_none() {
                return Ok(WriteOutcome::NotTaken(job.state(at)));
            }
            extent.append(&transaction, report.offset, &report.output)?;
            let outcome = report.outcome.as_ref();
            transaction.execute(
                "UPDATE job SET reported = ?2, sent = ?3, kept = ?4, truncated = ?5, ended = ?6, \
                 outcome = ?7, message = ?8, result = ?9, cancelled = NULL WHERE number = ?1",
                params![
                    extent.job,
                    at,
                    i64::try_from(extent.sent).unwrap_or(i64::MAX),
                    i64::try_from(extent.kept).unwrap_or(i64::MAX),
                    extent.truncated,
                    outcome.map(|_| at),
                    outcome.map(|outcome| outcome.state.name()),
                    outcome.and_then(|outcome| outcome.message.as_ref()),
                    result,
                ],
            )?;
            transaction.commit()?;
            Ok(match outcome {
                Some(_) => WriteOutcome::Ended,
                None => WriteOutcome::Recorded,
            })
        })
    }
}

/// Adds a job without statement in a transaction, as [`Registry::add_trigger_job`] does.
pub(super) fn add_trigger_job(
    transaction: &Transaction<'_>,
    uuid: &str,
    origin: &str,
    (at, expires): (i64, i64),
) -> rusqlite::Result<Option<JobEntry>> {
    let node = "SELECT name, lower(hex(randomblob(16))) FROM node \
        WHERE uuid = ?1 AND enrolled IS NOT NULL AND revoked IS NULL";
    let node = transaction.query_row(node, [uuid], |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((node, id)) = node.optional()? else {
        return Ok(None);
    };
    let queued = format!("SELECT 1 FROM job WHERE uuid = ?2 AND statement IS NULL AND {QUEUED}");
    if transaction.prepare(&queued)?.exists(params![at, uuid])? {
        return Ok(None);
    }
    let job = JobEntry {
        id,
        uuid: uuid.to_owned(),
        node,
        kind: JobKind::Converge,
        origin: origin.to_owned(),
        statement: None,
        issued: at,
        expires,
        time_limit: TRIGGER_TIME_LIMIT,
        taken: None,
        cancelled: None,
        ended: None,
        reported: None,
        outcome: None,
    };
    insert(transaction, &job)?;
    Ok(Some(job))
}

fn insert(transaction: &Transaction<'_>, job: &JobEntry) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO job (id, uuid, node, kind, origin, issued, expires, time_limit, statement) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            job.id,
            job.uuid,
            job.node,
            job.kind.name(),
            job.origin,
            job.issued,
            job.expires,
            job.time_limit,
            job.statement,
        ],
    )?;
    Ok(())
}

fn find(connection: &Connection, id: &str) -> rusqlite::Result<Option<JobEntry>> {
    let mut query = connection.prepare_cached("SELECT * FROM job WHERE id = ?1")?;
    query.query_row([id], JobEntry::read).optional()
}

fn find_with_extent(
    connection: &Connection,
    id: &str,
) -> rusqlite::Result<Option<(JobEntry, Extent)>> {
    let mut query = connection.prepare_cached("SELECT * FROM job WHERE id = ?1")?;
    let read = |row: &Row<'_>| {
        let size = |column| -> rusqlite::Result<u64> {
            let size: i64 = row.get(column)?;
            Ok(u64::try_from(size).unwrap_or(0))
        };
        let extent = Extent {
            job: row.get("number")?,
            sent: size("sent")?,
            kept: usize::try_from(size("kept")?).unwrap_or(0),
            truncated: row.get("truncated")?,
        };
        Ok((JobEntry::read(row)?, extent))
    };
    query.query_row([id], read).optional()
}
