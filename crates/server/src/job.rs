//! Jobs of nodes: which statements are accepted, and who is notified of changes.

use std::sync::Arc;

use homestak_api::job_statement::{JobStatement, MAX_LIFETIME, MAX_TIME_LIMIT};
use homestak_api::publication::SiteInfo;
use homestak_api::signature::{Purpose, SignatureError, verify};
use homestak_store::registry::{JobEntry, NodeEntry, Registry, RegistryError};
use http::StatusCode;

use crate::refusal::Refusal;
use crate::watch::{NodeWatch, NodeWatches};

/// The longest statement, in bytes; one of the driver has less than 1 KiB.
const LONGEST_STATEMENT: usize = 8 << 10;
/// The longest name of an operator, in bytes.
const LONGEST_NAME: usize = 128;
/// How far the driver's clock may be ahead of the server's, in seconds.
const CLOCK_SKEW: i64 = 300;

/// Those who wait for a change of a node's jobs, and the jobs.
pub(crate) struct Jobs {
    registry: Arc<Registry>,
    waiting: NodeWatches,
}

impl Jobs {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            waiting: NodeWatches::default(),
        }
    }

    /// Returns what wakes when a job of a node changes.
    pub(crate) fn watch(&self, uuid: &str) -> NodeWatch<'_> {
        self.waiting.watch(uuid)
    }

    /// Wakes those who wait for the jobs of a node.
    pub(crate) fn notify(&self, uuid: &str) {
        self.waiting.notify(uuid);
    }

    /// Cancels what a node has not taken, and marks what it has taken as lost, because it is another
    /// machine now, or none of the site. Blocks on disk I/O.
    pub(crate) fn cancel_of(&self, uuid: &str, at: i64) -> Result<(), RegistryError> {
        let cancelled = self.registry.cancel_jobs_of(uuid, at)?;
        if cancelled > 0 {
            tracing::info!(
                uuid,
                cancelled,
                "jobs cancelled: the node lost its certificate"
            );
        }
        // Also without jobs: a node that was revoked does not wait any longer.
        self.notify(uuid);
        Ok(())
    }

    /// Notifies nodes of jobs that a trigger added, and deletes the oldest jobs of these nodes. Blocks on
    /// disk I/O.
    pub(crate) fn announce_added(
        &self,
        added: &[JobEntry],
        keep: u32,
    ) -> Result<(), RegistryError> {
        for job in added {
            self.notify(&job.uuid);
        }
        for job in added {
            self.registry.prune_jobs(&job.uuid, job.issued, keep)?;
        }
        Ok(())
    }
}

/// Verifies a signed job for a node, except that it may have expired.
pub(crate) fn verified(
    text: &str,
    site: &SiteInfo,
    node: &NodeEntry,
    now: i64,
) -> Result<JobStatement, Refusal> {
    if text.len() > LONGEST_STATEMENT {
        let message = format!("the statement is longer than {LONGEST_STATEMENT} bytes");
        return Err(Refusal::malformed(message));
    }
    let statement: JobStatement = verify(Purpose::Job, text, &site.keys).map_err(unusable)?;
    let other = |what: &str| {
        let message = format!("the statement is for another {what}");
        Err(Refusal::new(StatusCode::FORBIDDEN, "E301", message))
    };
    if statement.site != site.site {
        return other("site");
    }
    if statement.uuid.as_str() != node.uuid {
        return other("guest");
    }
    if statement.node != node.name {
        return other("node");
    }
    let is_id = |id: &str| {
        let mut digits = id.bytes();
        id.len() == 32 && digits.all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !is_id(&statement.id) {
        return Err(Refusal::malformed(
            "the job's id is not 32 hexadecimal digits in lower case",
        ));
    }
    let JobStatement {
        issued, expires, ..
    } = statement;
    let lifetime = expires.checked_sub(issued);
    let is_short = lifetime.is_some_and(|lifetime| (1..=MAX_LIFETIME).contains(&lifetime));
    if !is_short || expires.saturating_sub(now) > MAX_LIFETIME + CLOCK_SKEW {
        let message = format!("the job must expire within {MAX_LIFETIME} seconds");
        return Err(Refusal::malformed(message));
    }
    if !(1..=MAX_TIME_LIMIT).contains(&statement.time_limit) {
        let message = format!("the time limit is not between 1 and {MAX_TIME_LIMIT} seconds");
        return Err(Refusal::malformed(message));
    }
    let operator = &statement.operator;
    if operator.len() > LONGEST_NAME || operator.chars().any(char::is_control) {
        return Err(Refusal::malformed(
            "the operator's name is too long or has control characters",
        ));
    }
    Ok(statement)
}

fn unusable(error: SignatureError) -> Refusal {
    match error {
        SignatureError::Signature => Refusal::new(StatusCode::FORBIDDEN, "E301", error.to_string()),
        SignatureError::Key | SignatureError::Malformed | SignatureError::Payload => {
            Refusal::malformed(error.to_string())
        }
    }
}
