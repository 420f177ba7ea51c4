//! Triggers: signed requests and new commits that have nodes fetch and apply their specs.
//!
//! Nothing of a request's body and nothing in a repository is interpreted, checked out or executed:
//! of a repository, the id of one commit is read, and its signature where a spec demands one.

mod check;
mod git;
pub(crate) mod hook;
pub(crate) mod poll;
mod problem;
pub(crate) mod target;

pub use problem::trigger_problems;

/// How long a job of a trigger waits for its node, in seconds. Later, the node fetches a newer spec
/// anyway.
pub(crate) const JOB_LIFETIME: i64 = 24 * 3600;
