//! `/v1/reports` and `/v1/nodes/{uuid}/reports`.

use homestak_api::v1::answer::ReportAccepted;
use homestak_api::v1::report::{ReceivedReport, Report, Reports};
use http::StatusCode;

use super::node::find_or_expected;
use super::{Answer, Call, blocking, json};
use crate::rate::NodeAction;
use crate::refusal::Refusal;

/// `POST /v1/reports`: a node reports about itself.
pub(super) async fn add(call: &mut Call<'_>) -> Answer {
    let node = call.node()?;
    call.require_published(&node)?;
    let app = call.app;
    call.limited(NodeAction::Report, &node.uuid)?;
    let report: Report = call.body().await?;
    let body = serde_json::to_string(&report).map_err(|_| Refusal::internal())?;
    let (registry, at) = (app.registry.clone(), app.now().as_second());
    let (uuid, keep) = (node.uuid.clone(), app.reports_per_node());
    let id = blocking(move || registry.add_report(&uuid, at, &body, keep)).await?;
    app.accounts.add(&node.uuid, id, at, &report);
    app.reports.notify(&node.uuid);
    Ok(json(StatusCode::CREATED, &ReportAccepted { id }))
}

/// `GET /v1/nodes/{uuid}/reports?after=ID&wait=SECONDS`: reports above a number; waits for the first.
/// Those from before the enrolment are left out: a former guest with the same UUID may have sent them.
pub(super) async fn list(call: &Call<'_>, uuid: &str) -> Answer {
    call.operator()?;
    find_or_expected(call.app, uuid)?;
    let after = i64::try_from(call.number("after")?).unwrap_or(i64::MAX);
    let wait = call.wait()?;
    let mut arrived = call.app.reports.watch(uuid);
    let stopping = &call.app.stopping;
    let mut waiting = std::pin::pin!(tokio::time::sleep(wait));
    loop {
        arrived.mark_seen();
        let (registry, of) = (call.app.registry.clone(), uuid.to_owned());
        let mut found = blocking(move || registry.reports(&of, after)).await?;
        let enrolled = call.app.nodes.by_uuid(uuid).and_then(|node| node.enrolled);
        found.retain(|entry| enrolled.is_some_and(|at| entry.received >= at));
        let is_over = waiting.is_elapsed() || wait.is_zero() || stopping.is_cancelled();
        if !found.is_empty() || is_over {
            let read = |entry: homestak_store::registry::ReportEntry| {
                let report = serde_json::from_str(&entry.body).ok()?;
                Some(ReceivedReport {
                    id: entry.id,
                    received: entry.received,
                    report,
                })
            };
            let reports = found.into_iter().filter_map(read).collect();
            return Ok(json(StatusCode::OK, &Reports { reports }));
        }
        tokio::select! {
            // Cancel safety: reports are read again from the registry.
            () = arrived.changed() => {}
            // Cancel safety: a timer.
            () = waiting.as_mut() => {}
            // Cancel safety: a flag.
            () = stopping.cancelled() => {}
        }
    }
}
