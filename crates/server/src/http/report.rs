//! `/v1/reports` and `/v1/nodes/{uuid}/reports`.

use std::time::Duration;

use homestak_api::v1::report::{ReceivedReport, Report, Reports};
use http::StatusCode;

use super::node::find;
use super::{Answer, Call, blocking, json};
use crate::caller::Caller;
use crate::refusal::Refusal;

/// The longest wait for a new report.
const LONGEST_WAIT: Duration = Duration::from_secs(25);

/// `POST /v1/reports`: a node reports about itself.
pub(super) async fn add(call: &mut Call<'_>) -> Answer {
    let node = match &call.caller {
        Caller::Node(node) => node.clone(),
        Caller::ExpiredNode(_) => {
            let why = "the certificate has expired; renew it";
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why));
        }
        Caller::Refused(why) => {
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", *why));
        }
        Caller::Anonymous => {
            let why = "the node's client certificate is required";
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E300", why));
        }
        Caller::Operator(_) => return Err(Refusal::forbidden("an operator is not a node")),
    };
    let app = call.app;
    let report: Report = call.body().await?;
    let body = serde_json::to_string(&report).map_err(|_| Refusal::internal())?;
    let (registry, at) = (app.registry.clone(), app.now().as_second());
    let (uuid, keep) = (node.uuid.clone(), app.settings.reports_per_node);
    let id = blocking(move || registry.add_report(&uuid, at, &body, keep)).await?;
    app.reports.send_replace(id);
    Ok(json(StatusCode::CREATED, &serde_json::json!({ "id": id })))
}

/// `GET /v1/nodes/{uuid}/reports?after=ID&wait=SECONDS`: reports above a number; waits for the first.
pub(super) async fn list(call: &Call<'_>, uuid: &str) -> Answer {
    call.operator()?;
    find(call.app, uuid)?;
    let query = call.head.uri.query().unwrap_or_default();
    let number = |key: &str| -> Result<u64, Refusal> {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        match pairs.find(|(name, _)| *name == key) {
            None => Ok(0),
            Some((_, value)) => value
                .parse()
                .map_err(|_| Refusal::malformed(format!("`{key}` is not a number"))),
        }
    };
    let after = i64::try_from(number("after")?).unwrap_or(i64::MAX);
    let wait = Duration::from_secs(number("wait")?).min(LONGEST_WAIT);
    let mut arrived = call.app.reports.subscribe();
    let mut waiting = std::pin::pin!(tokio::time::sleep(wait));
    loop {
        arrived.mark_unchanged();
        let (registry, of) = (call.app.registry.clone(), uuid.to_owned());
        let found = blocking(move || registry.reports(&of, after)).await?;
        let is_over = waiting.is_elapsed() || wait.is_zero();
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
            _ = arrived.changed() => {}
            // Cancel safety: a timer.
            () = waiting.as_mut() => {}
        }
    }
}
