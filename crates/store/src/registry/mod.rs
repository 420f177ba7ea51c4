//! What a server records: enrolled nodes and their certificates, the use of tokens, reports, jobs.
//!
//! Every write is on disk before its call returns. The calls block on disk I/O, so callers on a
//! runtime move them to a thread that may block.

mod entry;
mod file;
mod job;
mod job_entry;
mod job_output;
mod node;
mod report;
#[cfg(test)]
mod tests;
mod trigger;

pub use entry::{CertificateEntry, NodeEntry, ReportEntry, TokenEntry};
pub use file::{Registry, RegistryError};
pub use job::{AddOutcome, CancelOutcome, TakeOutcome, WriteOutcome};
pub use job_entry::{JobEntry, MAX_OUTPUT, REPORT_PATIENCE, TRIGGER_TIME_LIMIT};
pub use job_output::JobOutput;
pub use trigger::{HookOutcome, RepositoryCheck, RepositoryEntry, RepositoryKey, TriggerJobs};
