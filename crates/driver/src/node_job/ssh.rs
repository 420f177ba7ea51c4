//! Runs jobs over SSH.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use homestak_api::v1::node_job::{JobState, JobStatus};
use homestak_api::v1::node_update::{JobRoute, NodeJob};
use homestak_core::doc::timeouts::Limit;
use homestak_providers::push::{NodeJobCall, NodeJobEvent, run_node_job};

use super::event::{JobEvent, JobObserver};
use super::request::{JobRequest, new_id};
use super::{error, follow, statement};
use crate::blocking::run_blocking;
use crate::error::DriverError;
use crate::nodes::{RecordedNode, connection};
use crate::server::ServerLease;

/// Ends the thread that follows a job when its future is dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a job on a node, and waits for its outcome.
pub(super) async fn run(
    lease: &ServerLease,
    node: &RecordedNode,
    request: &JobRequest,
    observe: &JobObserver,
) -> Result<NodeJob, DriverError> {
    let settings = lease.settings().clone();
    let session = lease.session().clone();
    let call = NodeJobCall {
        kind: request.kind,
        options: request.options.clone(),
        id: request.id.clone().unwrap_or_else(new_id),
        is_known: request.id.is_some(),
        time_limit: request.time_limit,
        away: session.timeouts().of(Limit::Boot),
    };
    let (id, begun) = (call.id.clone(), settings.time.now().as_second());
    let dropped = StopOnDrop::default();
    let (stop, observe, of) = (dropped.0.clone(), observe.clone(), node.clone());
    // Cancel safety: the node continues on its own; the flag ends the thread that follows it.
    let (outcome, output) = run_blocking(move || {
        let connection = connection(&of, &session, &settings)?;
        let id = call.id.clone();
        observe(JobEvent::Submitted {
            id,
            route: JobRoute::Ssh,
        });
        let kept = std::sync::Mutex::new(follow::KeptOutput::default());
        let on_event = |event: NodeJobEvent| match event {
            NodeJobEvent::Line(line) => {
                let text = format!("{line}\n");
                let mut kept = kept
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                kept.add(&text);
                observe(JobEvent::Output(text));
            }
            NodeJobEvent::Lost => {
                observe(JobEvent::Waiting(
                    "the node to be reachable again".to_owned(),
                ));
            }
            NodeJobEvent::Back => observe(JobEvent::State(JobState::Taken)),
        };
        let stop = || stop.load(Ordering::Relaxed);
        // A new connection: one that is kept open would hide that the node accepts no others.
        let ssh = connection.ssh.clone().unshared();
        let ended = run_node_job(&ssh, &call, &on_event, &stop);
        let outcome = ended
            .map_err(|error| error::of_ssh(&error, (&of, &connection), (call.kind, &call.id)))?;
        let kept = kept
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok((outcome, kept))
    })
    .await?;
    let now = lease.settings().time.now().as_second();
    Ok(NodeJob {
        job: JobStatus {
            id,
            node: node.name().to_owned(),
            uuid: node.record.guest.uuid.to_string(),
            kind: request.kind,
            origin: statement::operator(),
            state: outcome.state,
            issued: begun,
            expires: begun,
            time_limit: request.time_limit,
            taken: Some(begun),
            ended: Some(now),
            outcome: Some(outcome),
        },
        route: JobRoute::Ssh,
        output: output.text,
        truncated: output.truncated,
    })
}
