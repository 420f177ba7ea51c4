//! What starts runs of nodes: requests of webhooks that were accepted, and commits of repositories.
//!
//! A request or a commit is recorded together with its jobs: a server that is killed in between
//! neither loses them nor adds them again.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::file::{Registry, RegistryError};
use super::job::add_trigger_job;
use super::job_entry::JobEntry;

/// How long the id of a request is remembered, in seconds. A server accepts requests of a few minutes;
/// with a day, a clock that is set back by less does not make old requests acceptable.
const REMEMBERED: i64 = 24 * 3600;
/// The most requests of a webhook that are remembered: one every nine seconds for a day.
const MOST_REQUESTS: u32 = 10_000;
/// How long a repository that no spec names is remembered, in seconds.
const REPOSITORY_REMEMBERED: i64 = 30 * 24 * 3600;

/// Jobs of a trigger that are to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerJobs {
    /// The guests of the nodes.
    pub guests: Vec<String>,
    /// What started them.
    pub origin: String,
    /// The time.
    pub at: i64,
    /// Until when nodes may take them.
    pub expires: i64,
}

/// The outcome of a request of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    /// It is the first with its id; the jobs were added.
    Accepted(Vec<JobEntry>),
    /// A request with this id was accepted before.
    Repeated,
    /// There were too many requests of this webhook.
    Full,
}

/// A branch of a repository with those who sign its commits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepositoryKey {
    /// The address of the repository.
    pub repo: String,
    /// The branch; empty for the default one.
    pub branch: String,
    /// Identifies the signers; empty if none are needed.
    pub signers: String,
}

/// What is recorded of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryEntry {
    /// Which one.
    pub key: RepositoryKey,
    /// The newest commit that started runs, or that was there at the first check.
    pub accepted: Option<String>,
    /// When it was first seen.
    pub changed: Option<i64>,
    /// A newer commit that was refused, with the reason.
    pub refused: Option<(String, String)>,
    /// When it was last checked.
    pub checked: i64,
    /// Why the last check failed.
    pub error: Option<String>,
}

/// What a check of a branch found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepositoryCheck {
    /// It could not be read.
    Failed(String),
    /// The commit is the one that was accepted before.
    Same,
    /// The commit is the one that was refused before.
    StillRefused,
    /// The branch was read for the first time.
    First(String),
    /// A new commit, with the jobs that it starts.
    New(String, TriggerJobs),
    /// A new commit whose signature is refused, and why.
    Refused(String, String),
}

impl Registry {
    /// Records a request of a webhook and adds its jobs, unless a request with this id was accepted
    /// before. Of several attempts exactly one succeeds.
    pub fn accept_hook(
        &self,
        hook: &str,
        id: &str,
        jobs: &TriggerJobs,
    ) -> Result<HookOutcome, RegistryError> {
        self.with("write a request of a webhook to", |connection| {
            let transaction = connection.transaction()?;
            delete_old_requests(&transaction, hook, jobs.at)?;
            let known = "SELECT 1 FROM hook_request WHERE hook = ?1 AND id = ?2";
            if transaction.prepare_cached(known)?.exists([hook, id])? {
                return Ok(HookOutcome::Repeated);
            }
            let count = "SELECT count(*) FROM hook_request WHERE hook = ?1";
            let count: u32 = transaction.query_row(count, [hook], |row| row.get(0))?;
            if count >= MOST_REQUESTS {
                return Ok(HookOutcome::Full);
            }
            transaction.execute(
                "INSERT INTO hook_request (hook, id, received) VALUES (?1, ?2, ?3)",
                params![hook, id, jobs.at],
            )?;
            let added = add_all(&transaction, jobs)?;
            transaction.commit()?;
            Ok(HookOutcome::Accepted(added))
        })
    }

    /// Deletes the requests of webhooks other than these, as far as they need not be remembered.
    pub fn delete_other_hooks(&self, hooks: &[&str], now: i64) -> Result<(), RegistryError> {
        self.with("delete requests of webhooks from", |connection| {
            let transaction = connection.transaction()?;
            let all: Vec<String> = {
                let mut query = transaction.prepare("SELECT DISTINCT hook FROM hook_request")?;
                let names = query.query_map((), |row| row.get(0))?;
                names.collect::<Result<_, _>>()?
            };
            for hook in all.iter().filter(|hook| !hooks.contains(&hook.as_str())) {
                delete_old_requests(&transaction, hook, now)?;
            }
            transaction.commit()
        })
    }

    /// Returns when a request of a webhook was last accepted.
    pub fn last_hook(&self, hook: &str) -> Result<Option<i64>, RegistryError> {
        self.with("read requests of webhooks from", |connection| {
            let last = "SELECT max(received) FROM hook_request WHERE hook = ?1";
            connection.query_row(last, [hook], |row| row.get(0))
        })
    }

    /// Returns what is recorded of a branch.
    pub fn repository(
        &self,
        key: &RepositoryKey,
    ) -> Result<Option<RepositoryEntry>, RegistryError> {
        self.with("read a repository from", |connection| find(connection, key))
    }

    /// Records what a check found, and adds the jobs of a new commit. Returns those that were added.
    pub fn record_check(
        &self,
        key: &RepositoryKey,
        at: i64,
        check: &RepositoryCheck,
    ) -> Result<Vec<JobEntry>, RegistryError> {
        self.with("write a repository to", |connection| {
            let transaction = connection.transaction()?;
            transaction.execute(
                "DELETE FROM repository WHERE checked < ?1",
                [at - REPOSITORY_REMEMBERED],
            )?;
            let error = match check {
                RepositoryCheck::Failed(error) => Some(error),
                RepositoryCheck::Same
                | RepositoryCheck::StillRefused
                | RepositoryCheck::First(_)
                | RepositoryCheck::New(..)
                | RepositoryCheck::Refused(..) => None,
            };
            transaction.execute(
                "INSERT INTO repository (repo, branch, signers, checked, error) \
                 VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT DO UPDATE SET checked = ?4, error = ?5",
                params![key.repo, key.branch, key.signers, at, error],
            )?;
            let set = |change: &str, one: &str, two: Option<&str>| {
                let update = format!(
                    "UPDATE repository SET {change} WHERE repo = ?1 AND branch = ?2 AND signers = ?3"
                );
                let parameters = params![key.repo, key.branch, key.signers, one, two, at];
                transaction.execute(&update, parameters)
            };
            const ACCEPT: &str = "accepted = ?4, changed = ?6, refused = ?5, reason = ?5";
            let added = match check {
                RepositoryCheck::Failed(_) | RepositoryCheck::StillRefused => Vec::new(),
                // A refused commit that was reverted no longer matters.
                RepositoryCheck::Same => {
                    set("refused = NULL, reason = NULL, checked = ?6", "", None)?;
                    Vec::new()
                }
                RepositoryCheck::First(commit) => {
                    set(ACCEPT, commit, None)?;
                    Vec::new()
                }
                RepositoryCheck::New(commit, jobs) => {
                    set(ACCEPT, commit, None)?;
                    add_all(&transaction, jobs)?
                }
                RepositoryCheck::Refused(commit, why) => {
                    set("refused = ?4, reason = ?5, checked = ?6", commit, Some(why))?;
                    Vec::new()
                }
            };
            transaction.commit()?;
            Ok(added)
        })
    }
}

fn delete_old_requests(connection: &Connection, hook: &str, now: i64) -> rusqlite::Result<usize> {
    connection.execute(
        "DELETE FROM hook_request WHERE hook = ?1 AND received < ?2",
        params![hook, now - REMEMBERED],
    )
}

fn add_all(transaction: &Transaction<'_>, jobs: &TriggerJobs) -> rusqlite::Result<Vec<JobEntry>> {
    let mut added = Vec::new();
    for guest in &jobs.guests {
        added.extend(add_trigger_job(
            transaction,
            guest,
            &jobs.origin,
            (jobs.at, jobs.expires),
        )?);
    }
    Ok(added)
}

fn find(connection: &Connection, key: &RepositoryKey) -> rusqlite::Result<Option<RepositoryEntry>> {
    let mut query = connection.prepare_cached(
        "SELECT accepted, changed, refused, reason, checked, error FROM repository \
         WHERE repo = ?1 AND branch = ?2 AND signers = ?3",
    )?;
    let read = |row: &Row<'_>| {
        let refused: Option<String> = row.get(2)?;
        let reason: Option<String> = row.get(3)?;
        Ok(RepositoryEntry {
            key: key.clone(),
            accepted: row.get(0)?,
            changed: row.get(1)?,
            refused: refused.map(|commit| (commit, reason.unwrap_or_default())),
            checked: row.get(4)?,
            error: row.get(5)?,
        })
    };
    query
        .query_row([&key.repo, &key.branch, &key.signers], read)
        .optional()
}
