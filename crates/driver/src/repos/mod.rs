//! Repositories that the server serves: a bare copy of each, with the working tree as a commit.
//!
//! The repositories of users are only read. `git` never runs with their configuration, so that their
//! hooks, filters and other commands cannot be started: it runs in a temporary repository that uses the
//! objects of the user's repository as an alternate. If the driver is root, `git` runs as the owner of
//! the repository.

mod copy;
mod error;
mod git;
mod parts;
mod record;
mod refresh;
mod secrets;
mod snapshot;
mod source;
mod temporary_repo;
#[cfg(test)]
mod tests;
mod working_tree;

pub use error::RepoError;
pub use record::{RepoOptions, RepoRecord, TokenChoice};
pub use refresh::{RepoFailure, RepoReport, RepoStatus};
pub(crate) use refresh::{RepoPlaces, prepare, problems, refresh};
