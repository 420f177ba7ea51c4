//! Whether a node is healthy: a check succeeds, and finds no differences that the node did not have
//! before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_api::v1::node_job::{JobKind, JobState};

use super::plan::no_outcome;
use crate::node_job::{JobRequest, JobRunner, default_time_limit};
use crate::nodes::RecordedNode;

/// The pause between two checks of a node that is not healthy.
const PAUSE: Duration = Duration::from_secs(2);
/// The shortest time for which a check waits for its node, in seconds.
const SHORTEST: u64 = 5;

/// Has a node compare itself with its spec. Returns its differences, or why it could not.
pub(super) async fn check(
    runner: &JobRunner,
    node: &RecordedNode,
    within: Duration,
) -> Result<BTreeSet<String>, String> {
    let request = JobRequest {
        expires: within.as_secs().max(SHORTEST),
        time_limit: default_time_limit(JobKind::Check),
        ..JobRequest::new(JobKind::Check)
    };
    // Cancel safety: a check changes nothing.
    let ended = runner.run(node, &request, &(Arc::new(|_| ()) as _)).await;
    let ended = ended.map_err(|error| error.message.trim_end_matches('.').to_owned())?;
    let outcome = ended.job.outcome;
    let outcome = outcome.unwrap_or_else(|| no_outcome(ended.job.state));
    match outcome.state {
        JobState::Succeeded => Ok(outcome.result.differences.into_iter().collect()),
        JobState::Queued
        | JobState::Taken
        | JobState::Failed
        | JobState::Refused
        | JobState::Cancelled
        | JobState::Expired
        | JobState::Lost => Err(outcome
            .message
            .unwrap_or_else(|| format!("its check ended as {}", outcome.state.name()))),
    }
}

/// Waits until a node is healthy: it was updated, and may still restart or correct drift. The error
/// describes what is wrong with it; meanwhile it is reported whenever it changes.
pub(super) async fn wait_for(
    runner: &JobRunner,
    node: &RecordedNode,
    before: &BTreeSet<String>,
    report: &(dyn Fn(&str) + Sync),
) -> Result<(), String> {
    let mut reported = String::new();
    let (begun, limit) = (monotonic(), runner.boot_limit());
    loop {
        let left = limit.saturating_sub(monotonic().saturating_sub(begun));
        let why = match check(runner, node, left).await {
            Ok(after) => {
                let new: Vec<&str> = after.difference(before).map(String::as_str).collect();
                if new.is_empty() {
                    return Ok(());
                }
                format!(
                    "it differs from its spec since the update: {}",
                    new.join(", ")
                )
            }
            Err(why) => why,
        };
        if monotonic().saturating_sub(begun) + PAUSE >= limit {
            return Err(why);
        }
        if why != reported {
            report(&why);
            reported = why;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
