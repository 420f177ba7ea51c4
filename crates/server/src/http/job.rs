//! Jobs: operators submit, follow and cancel them; nodes take them and report their outcomes.

use std::sync::Arc;

use homestak_api::v1::node_job::{
    JobDetail, JobOffer, JobOffers, JobReport, JobState, JobStatus, JobSubmission, Jobs,
};
use homestak_store::registry::{
    AddOutcome, CancelOutcome, JobEntry, NodeEntry, TakeOutcome, WriteOutcome,
};
use http::StatusCode;
use serde_json::json;

use super::node::find;
use super::{Answer, Call, blocking, json};
use crate::job::verified;
use crate::rate::NodeAction;
use crate::refusal::Refusal;

/// The most jobs of a node that wait at a time.
const MOST_QUEUED: u32 = 100;
/// The most jobs in a list.
const LONGEST_LIST: u32 = 200;
/// The largest offset of output: more than a node can send within the longest time limit.
const LARGEST_OFFSET: u64 = 1 << 40;
/// The largest outcome, in bytes; the limit of bodies may be larger.
const LARGEST_OUTCOME: usize = 64 << 10;

/// `POST /v1/nodes/{uuid}/jobs`: an operator queues a job that the site's key has signed.
pub(super) async fn submit(call: &mut Call<'_>, uuid: &str) -> Answer {
    let operator = call.operator()?.to_owned();
    let node = find(call.app, uuid)?;
    let text = call.body::<JobSubmission>().await?.statement;
    let (app, now) = (call.app, call.app.now().as_second());
    let statement = verified(&text, &app.served().site, &node, now)?;
    if node.revoked.is_some() {
        return Err(conflict("the node was revoked"));
    }
    let entry = JobEntry {
        id: statement.id,
        uuid: node.uuid.clone(),
        node: node.name.clone(),
        kind: statement.kind,
        origin: statement.operator,
        statement: Some(text),
        issued: statement.issued,
        expires: statement.expires,
        time_limit: i64::try_from(statement.time_limit).map_err(|_| Refusal::internal())?,
        taken: None,
        cancelled: None,
        ended: None,
        reported: None,
        outcome: None,
    };
    let (registry, keep) = (app.registry.clone(), app.jobs_per_node());
    let outcome = blocking(move || {
        let outcome = registry.add_job(&entry, now, MOST_QUEUED)?;
        registry.prune_jobs(&entry.uuid, now, keep)?;
        Ok(outcome)
    });
    let (code, entry) = match outcome.await? {
        AddOutcome::Added(entry) => (StatusCode::CREATED, entry),
        AddOutcome::Known(entry) => (StatusCode::OK, entry),
        AddOutcome::Used => return Err(conflict("the job's id was used before")),
        AddOutcome::Expired => return Err(conflict("the job has expired")),
        AddOutcome::Full => {
            let message = format!("{MOST_QUEUED} jobs of the node are queued already");
            return Err(conflict(message));
        }
    };
    if code == StatusCode::CREATED {
        app.jobs.notify(&entry.uuid);
        let (job, kind) = (&entry.id, entry.kind.name());
        tracing::info!(operator, job, kind, node = entry.node, "job queued");
    }
    Ok(json(code, &status(entry, now)))
}

/// `GET /v1/jobs`
pub(super) async fn list(call: &Call<'_>) -> Answer {
    call.operator()?;
    listed(call, None).await
}

/// `GET /v1/nodes/{uuid}/jobs`
pub(super) async fn of_node(call: &Call<'_>, uuid: &str) -> Answer {
    call.operator()?;
    listed(call, Some(find(call.app, uuid)?)).await
}

async fn listed(call: &Call<'_>, node: Option<Arc<NodeEntry>>) -> Answer {
    let (registry, now) = (call.app.registry.clone(), call.app.now().as_second());
    let found = blocking(move || {
        let uuid = node.as_ref().map(|node| &*node.uuid);
        registry.jobs(uuid, LONGEST_LIST)
    });
    let jobs = found.await?.into_iter().map(|entry| status(entry, now));
    let jobs = jobs.collect();
    Ok(json(StatusCode::OK, &Jobs { jobs }))
}

/// `GET /v1/jobs/{job}?after=BYTES&wait=SECONDS`: waits for more output, another state or the end.
pub(super) async fn show(call: &Call<'_>, id: &str) -> Answer {
    call.operator()?;
    let app = call.app;
    let (after, wait) = (call.number("after")?, call.wait()?);
    let read = async || {
        let (registry, id) = (app.registry.clone(), id.to_owned());
        let found = blocking(move || registry.job(&id, after)).await?;
        found.ok_or_else(missing)
    };
    let (first, _) = read().await?;
    let before = first.state(app.now().as_second());
    let mut changes = app.jobs.watch(&first.uuid);
    let mut waiting = std::pin::pin!(tokio::time::sleep(wait));
    loop {
        changes.mark_seen();
        let (entry, output) = read().await?;
        let now = app.now().as_second();
        let state = entry.state(now);
        let is_over = waiting.is_elapsed() || wait.is_zero() || app.stopping.is_cancelled();
        if is_over || state != before || state.is_ended() || !output.text.is_empty() {
            let detail = JobDetail {
                job: status(entry, now),
                output: output.text,
                next: output.next,
                truncated: output.truncated,
            };
            return Ok(json(StatusCode::OK, &detail));
        }
        tokio::select! {
            // Cancel safety: the job is read again from the registry.
            () = changes.changed() => {}
            // Cancel safety: a timer.
            () = waiting.as_mut() => {}
            // Cancel safety: a flag.
            () = app.stopping.cancelled() => {}
        }
    }
}

/// `POST /v1/jobs/{job}/cancel`
pub(super) async fn cancel(call: &mut Call<'_>, id: &str) -> Answer {
    let operator = call.operator()?.to_owned();
    call.body::<serde_json::Value>().await?;
    let (registry, now) = (call.app.registry.clone(), call.app.now().as_second());
    let of = id.to_owned();
    match blocking(move || registry.cancel_job(&of, now)).await? {
        CancelOutcome::Cancelled(entry) => {
            call.app.jobs.notify(&entry.uuid);
            tracing::info!(operator, job = id, node = entry.node, "job cancelled");
            Ok(json(StatusCode::OK, &status(*entry, now)))
        }
        CancelOutcome::Unknown => Err(missing()),
        CancelOutcome::NotQueued(state) => Err(not_queued(state)),
    }
}

/// `GET /v1/offers?wait=SECONDS`: the jobs that the node may take; waits for the first.
pub(super) async fn offers(call: &mut Call<'_>) -> Answer {
    let node = call.node()?;
    call.require_published(&node)?;
    call.limited(NodeAction::TakeJobs, &node.uuid)?;
    let (app, uuid) = (call.app, node.uuid.clone());
    let wait = call.wait()?;
    call.forget_head();
    let mut changes = app.jobs.watch(&uuid);
    let mut waiting = std::pin::pin!(tokio::time::sleep(wait));
    loop {
        changes.mark_seen();
        let (registry, of, now) = (app.registry.clone(), uuid.clone(), app.now().as_second());
        let found = blocking(move || registry.queued_jobs(&of, now, MOST_QUEUED)).await?;
        // It may have been revoked while it waited.
        super::node_of(&app.caller(call.peer))?;
        app.accounts.contact(&uuid, now);
        let is_over = waiting.is_elapsed() || wait.is_zero() || app.stopping.is_cancelled();
        if is_over || !found.is_empty() {
            let jobs = found.into_iter().map(offer).collect();
            return Ok(json(StatusCode::OK, &JobOffers { jobs }));
        }
        tokio::select! {
            // Cancel safety: jobs are read again from the registry.
            () = changes.changed() => {}
            // Cancel safety: a timer.
            () = waiting.as_mut() => {}
            // Cancel safety: a flag.
            () = app.stopping.cancelled() => {}
        }
    }
}

/// `POST /v1/jobs/{job}/take`: succeeds once.
pub(super) async fn take(call: &mut Call<'_>, id: &str) -> Answer {
    let node = call.node()?;
    call.require_published(&node)?;
    call.limited(NodeAction::TakeJobs, &node.uuid)?;
    call.body::<serde_json::Value>().await?;
    let (app, now) = (call.app, call.app.now().as_second());
    let (registry, of, uuid) = (app.registry.clone(), id.to_owned(), node.uuid.clone());
    // Cancel safety: the node may not get the answer, and then does not execute the job.
    let taken = blocking(move || registry.take_job(&of, &uuid, now)).await?;
    app.accounts.contact(&node.uuid, now);
    match taken {
        TakeOutcome::Taken(entry) => {
            app.jobs.notify(&node.uuid);
            let kind = entry.kind.name();
            tracing::info!(job = id, kind, node = node.name, "job taken");
            Ok(json(StatusCode::OK, &status(*entry, now)))
        }
        TakeOutcome::Unknown => Err(missing()),
        TakeOutcome::NotQueued(state) => Err(not_queued(state)),
    }
}

/// `POST /v1/jobs/{job}/report`: output of a job that the node took, and its outcome.
pub(super) async fn report(call: &mut Call<'_>, id: &str) -> Answer {
    let node = call.node()?;
    call.limited(NodeAction::ReportJob, &node.uuid)?;
    let report: JobReport = call.body().await?;
    check(&report)?;
    let state = report.outcome.as_ref().map(|outcome| outcome.state.name());
    let (app, now) = (call.app, call.app.now().as_second());
    let (registry, of, uuid) = (app.registry.clone(), id.to_owned(), node.uuid.clone());
    let written = blocking(move || registry.report_job(&of, &uuid, now, &report)).await?;
    app.accounts.contact(&node.uuid, now);
    match written {
        WriteOutcome::Recorded => app.jobs.notify(&node.uuid),
        WriteOutcome::Ended => {
            app.jobs.notify(&node.uuid);
            tracing::info!(job = id, node = node.name, state, "job ended");
        }
        WriteOutcome::Repeated => {}
        WriteOutcome::Unknown => return Err(missing()),
        WriteOutcome::NotTaken(state) => {
            let message = format!("the job was not taken; it is {}", state.name());
            return Err(conflict(message));
        }
        WriteOutcome::AfterEnd => return Err(conflict("the job has ended")),
    }
    Ok(json(StatusCode::OK, &json!({})))
}

/// Checks what the types of a report do not.
fn check(report: &JobReport) -> Result<(), Refusal> {
    if report.offset > LARGEST_OFFSET {
        return Err(Refusal::malformed("`offset` is too large"));
    }
    let Some(outcome) = &report.outcome else {
        return Ok(());
    };
    match outcome.state {
        JobState::Succeeded | JobState::Failed | JobState::Refused => {}
        JobState::Queued
        | JobState::Taken
        | JobState::Cancelled
        | JobState::Expired
        | JobState::Lost => {
            return Err(Refusal::malformed(
                "the outcome's `state` is not `succeeded`, `failed` or `refused`",
            ));
        }
    }
    let size = serde_json::to_vec(outcome).map_or(usize::MAX, |text| text.len());
    if size > LARGEST_OUTCOME {
        let message = format!("the outcome is larger than {LARGEST_OUTCOME} bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        return Err(Refusal::new(status, "E101", message));
    }
    Ok(())
}

fn missing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "E200", "no job has this id")
}

fn conflict(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::CONFLICT, "E202", message)
}

fn not_queued(state: JobState) -> Refusal {
    conflict(format!("the job is {}", state.name()))
}

fn offer(entry: JobEntry) -> JobOffer {
    let trigger = entry.statement.is_none().then_some(entry.origin);
    JobOffer {
        id: entry.id,
        statement: entry.statement,
        trigger,
    }
}

fn status(entry: JobEntry, now: i64) -> JobStatus {
    JobStatus {
        state: entry.state(now),
        id: entry.id,
        node: entry.node,
        uuid: entry.uuid,
        kind: entry.kind,
        origin: entry.origin,
        issued: entry.issued,
        expires: entry.expires,
        time_limit: u64::try_from(entry.time_limit).unwrap_or(0),
        taken: entry.taken,
        // A job that was taken and lost has no end.
        ended: entry
            .ended
            .or(entry.cancelled.filter(|_| entry.taken.is_none())),
        outcome: entry.outcome,
    }
}
