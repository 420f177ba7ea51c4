//! Repositories that the server sends: a bare copy of each, with the working tree as a commit.
//!
//! The repositories of users are only read. `git` never runs with their configuration: it works in
//! a directory of our own that borrows their objects, so their hooks, filters and other commands
//! cannot be started. For root, it runs as the owner of the repository.

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
