//! `/v1/nodes`: what operators see of nodes, and revoke.

use std::sync::Arc;

use homestak_api::v1::node_status::{NodeStatus, Nodes, Revocation};
use homestak_store::registry::NodeEntry;
use http::StatusCode;

use super::{Answer, Call, blocking, json};
use crate::app::App;
use crate::refusal::Refusal;

/// `GET /v1/nodes`
pub(super) fn list(call: &Call<'_>) -> Answer {
    call.operator()?;
    let entries = call.app.nodes.all();
    let nodes = entries
        .iter()
        .map(|entry| status(call.app, entry))
        .collect();
    Ok(json(StatusCode::OK, &Nodes { nodes }))
}

/// `GET /v1/nodes/{uuid}`
pub(super) fn show(call: &Call<'_>, uuid: &str) -> Answer {
    call.operator()?;
    let entry = find(call.app, uuid)?;
    Ok(json(StatusCode::OK, &status(call.app, &entry)))
}

/// `POST /v1/nodes/{uuid}/revoke`: from the next request on, the node is refused.
pub(super) async fn revoke(call: &mut Call<'_>, uuid: &str) -> Answer {
    let operator = call.operator()?.to_owned();
    let app = call.app;
    let entry = find(app, uuid)?;
    let request: Revocation = call.body().await?;
    let mut revoked = (*entry).clone();
    let at = app.now().as_second();
    revoked.revoked.get_or_insert((at, request.reason));
    let state = app.clone();
    let recorded = revoked.clone();
    blocking(move || state.nodes.put(recorded)).await?;
    tracing::info!(operator, node = revoked.name, uuid, "node revoked");
    Ok(json(StatusCode::OK, &status(app, &revoked)))
}

pub(super) fn find(app: &App, uuid: &str) -> Result<Arc<NodeEntry>, Refusal> {
    app.nodes.by_uuid(uuid).ok_or_else(|| {
        let message = format!("no node has the UUID `{uuid}`");
        Refusal::new(StatusCode::NOT_FOUND, "E200", message)
    })
}

fn status(app: &App, entry: &NodeEntry) -> NodeStatus {
    let spec = app.served().of_guest(&entry.uuid);
    NodeStatus {
        uuid: entry.uuid.clone(),
        name: entry.name.clone(),
        manifest: entry.manifest.clone(),
        host: entry.host.clone(),
        generation: spec.map(|spec| spec.statement.generation),
        enrolled: entry.enrolled,
        certificate_expires: entry.certificate.as_ref().map(|one| one.not_after),
        revoked: entry.revoked.as_ref().map(|(at, _)| *at),
        revoke_reason: entry.revoked.as_ref().map(|(_, reason)| reason.clone()),
        address: entry.address.clone(),
        agent: entry.agent.clone(),
        last_contact: entry.last_contact,
    }
}
