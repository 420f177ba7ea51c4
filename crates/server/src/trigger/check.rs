//! Checks one branch and records what was found, with the jobs of a new commit.

use std::path::PathBuf;

use homestak_store::registry::{
    JobEntry, Registry, RegistryError, RepositoryCheck, RepositoryEntry, TriggerJobs,
};

use super::JOB_LIFETIME;
use super::git::GitCheck;
use super::target::{Branch, Followers, Polling};

/// The characters of a commit that are shown.
const SHORT: usize = 12;

/// What a check needs.
pub(super) struct Checking<'a> {
    pub(super) registry: &'a Registry,
    /// A directory for the check alone.
    pub(super) directory: PathBuf,
    pub(super) now: i64,
    pub(super) is_stopped: &'a (dyn Fn() -> bool + Sync),
}

/// What a check did.
#[derive(Default)]
pub(super) struct Checked {
    pub(super) jobs: Vec<JobEntry>,
    /// Whether the branch could not be read.
    pub(super) has_failed: bool,
}

impl Checking<'_> {
    /// Checks a branch for all who follow it. It waits for git and for the disk.
    pub(super) fn run(&self, branch: &Branch, polling: &Polling) -> Result<Checked, RegistryError> {
        let check = GitCheck::new(self.directory.clone(), branch, self.is_stopped);
        let check = check.map_err(|error| format!("cannot prepare the check: {error}"));
        let newest = check
            .as_ref()
            .map_err(Clone::clone)
            .and_then(GitCheck::commit);
        // Once for all signers.
        let mut fetched = None;
        let mut checked = Checked::default();
        for (signers, followers) in &polling.followers {
            let key = branch.key(signers);
            let before = self.registry.repository(&key)?;
            let found = match (&check, &newest) {
                (Ok(check), Ok(commit)) => {
                    let fetch = || fetched.get_or_insert_with(|| check.fetch(commit)).clone();
                    self.decide(check, before.as_ref(), (branch, commit), followers, fetch)
                }
                (Err(error), _) | (_, Err(error)) => RepositoryCheck::Failed(error.clone()),
            };
            if (self.is_stopped)() {
                return Ok(checked);
            }
            let jobs = self.registry.record_check(&key, self.now, &found)?;
            log(branch, before.as_ref(), &found, jobs.len());
            checked.has_failed |= matches!(found, RepositoryCheck::Failed(_));
            checked.jobs.extend(jobs);
        }
        Ok(checked)
    }

    /// Compares the newest commit with what is recorded, and verifies its signature where needed.
    fn decide(
        &self,
        check: &GitCheck<'_>,
        before: Option<&RepositoryEntry>,
        (branch, commit): (&Branch, &String),
        followers: &Followers,
        fetch: impl FnOnce() -> Result<(), String>,
    ) -> RepositoryCheck {
        let Some(accepted) = before.and_then(|before| before.accepted.as_ref()) else {
            // Whatever is there when a spec begins to follow a branch starts nothing.
            return RepositoryCheck::First(commit.clone());
        };
        if accepted == commit {
            return RepositoryCheck::Same;
        }
        let refused = before.and_then(|before| before.refused.as_ref());
        if refused.is_some_and(|(refused, _)| refused == commit) {
            return RepositoryCheck::StillRefused;
        }
        if let Some(signers) = &followers.signers {
            let verified = fetch().and_then(|()| check.verify(signers.iter()));
            match verified {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return RepositoryCheck::Refused(commit.clone(), why),
                Err(error) => return RepositoryCheck::Failed(error),
            }
        }
        let name = branch
            .branch
            .as_ref()
            .map_or("HEAD", |branch| branch.as_str());
        let jobs = TriggerJobs {
            guests: followers.guests.clone(),
            origin: format!("git {name} {}", short(commit)),
            at: self.now,
            expires: self.now + JOB_LIFETIME,
        };
        RepositoryCheck::New(commit.clone(), jobs)
    }
}

fn short(commit: &str) -> &str {
    commit.get(..SHORT).unwrap_or(commit)
}

/// Logs what is new.
fn log(branch: &Branch, before: Option<&RepositoryEntry>, found: &RepositoryCheck, n_jobs: usize) {
    let (repo, reference) = (branch.repo.as_str(), branch.reference());
    match found {
        RepositoryCheck::Same | RepositoryCheck::StillRefused => {}
        RepositoryCheck::First(commit) => {
            tracing::info!(
                repo,
                reference,
                commit = short(commit),
                "first seen; no job queued"
            );
        }
        RepositoryCheck::New(commit, _) => {
            tracing::info!(
                repo,
                reference,
                commit = short(commit),
                jobs = n_jobs,
                "new commit"
            );
        }
        RepositoryCheck::Refused(commit, reason) => {
            tracing::warn!(
                repo,
                reference,
                commit = short(commit),
                reason,
                "commit refused"
            );
        }
        RepositoryCheck::Failed(error) => {
            // Once, and not at every check.
            if before.and_then(|before| before.error.as_ref()) != Some(error) {
                tracing::warn!(repo, reference, error, "cannot check a repository");
            }
        }
    }
}
