//! Commands on nodes that run.

pub(super) mod exec;
pub(super) mod ssh;
