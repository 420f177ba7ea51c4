//! Jobs of nodes: submits them through the server or over SSH, and follows them. Never prints.

mod error;
mod event;
mod follow;
mod request;
mod runner;
mod ssh;
mod statement;

pub use event::{JobEvent, JobObserver};
pub use follow::whole_job;
pub use request::{DEFAULT_EXPIRES, JobRequest, default_time_limit, parse_id};
pub use runner::{ABANDON_TIME, Abandoned, JobRunner, LastKnown};

/// How much output of a job is kept, in bytes: as much as a server keeps.
const MAX_OUTPUT: usize = 256 << 10;
