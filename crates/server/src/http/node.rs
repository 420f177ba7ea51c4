//! `/v1/nodes`: operators list, inspect and revoke nodes.

use std::sync::Arc;

use homestak_api::v1::node_status::{NodeStatus, Nodes, Revocation};
use homestak_store::registry::NodeEntry;
use http::StatusCode;

use super::{Answer, Call, blocking, json};
use crate::app::App;
use crate::published::ServedSpec;
use crate::refusal::Refusal;

/// `GET /v1/nodes`: nodes that have enrolled or were revoked, and nodes that are expected to enrol.
pub(super) fn list(call: &Call<'_>) -> Answer {
    call.operator()?;
    let app = call.app;
    let entries = app.nodes.all();
    let served = app.served();
    let specs = served.specs();
    let expected = specs.filter_map(|spec| app.expected(spec.statement.uuid.as_str()));
    let expected = expected.map(|spec| status_of_expected(&spec));
    let known = entries.iter().map(|entry| status(app, entry));
    let mut nodes: Vec<NodeStatus> = known.chain(expected).collect();
    nodes.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
    Ok(json(StatusCode::OK, &Nodes { nodes }))
}

/// `GET /v1/nodes/{uuid}`
pub(super) fn show(call: &Call<'_>, uuid: &str) -> Answer {
    call.operator()?;
    let found = match call.app.expected(uuid) {
        Some(spec) => status_of_expected(&spec),
        None => status(call.app, &*find(call.app, uuid)?),
    };
    Ok(json(StatusCode::OK, &found))
}

/// `POST /v1/nodes/{uuid}/revoke`: refuses the node from its next request on. The tokens of a node that
/// has not enrolled are revoked, and it cannot enrol without a token either.
pub(super) async fn revoke(call: &mut Call<'_>, uuid: &str) -> Answer {
    let operator = call.operator()?.to_owned();
    let app = call.app;
    find_or_expected(app, uuid)?;
    let request: Revocation = call.body().await?;
    let (state, at, reason) = (app.clone(), app.now().as_second(), request.reason);
    let change = move |entry: &NodeEntry| {
        let mut revoked = entry.clone();
        revoked.revoked.get_or_insert((at, reason));
        Some(revoked)
    };
    let guest = uuid.to_owned();
    let revoked = blocking(move || {
        // Tokens first: otherwise the node could enrol after it was found not to have enrolled.
        state.tokens.revoke_of(&guest, at)?;
        let expected = || {
            state
                .served()
                .of_guest(&guest)
                .map(|spec| entry_of_expected(&spec))
        };
        let revoked = state.nodes.change_or_add(&guest, expected, change)?;
        state.jobs.cancel_of(&guest, at)?;
        Ok(revoked)
    });
    // Its spec may have been withdrawn in the meantime.
    let revoked = revoked.await?.ok_or_else(missing)?;
    let answer = status(app, &revoked);
    tracing::info!(operator, node = answer.name, uuid, "node revoked");
    Ok(json(StatusCode::OK, &answer))
}

/// Returns the entry of a node that is revoked before it has enrolled.
fn entry_of_expected(spec: &ServedSpec) -> NodeEntry {
    let statement = &spec.statement;
    NodeEntry {
        uuid: statement.uuid.as_str().to_owned(),
        name: statement.node.clone(),
        manifest: statement.manifest.clone(),
        host: statement.host.clone(),
        certificate: None,
        public_key: None,
        replaced: None,
        replaced_until: None,
        renewed_late: false,
        enrolled: None,
        revoked: None,
        address: None,
        agent: None,
        last_contact: None,
    }
}

/// Fails unless a node has an entry, or is expected to enrol.
pub(super) fn find_or_expected(app: &App, uuid: &str) -> Result<(), Refusal> {
    match app.expected(uuid) {
        Some(_) => Ok(()),
        None => find(app, uuid).map(drop),
    }
}

/// Returns the entry of a node.
pub(super) fn find(app: &App, uuid: &str) -> Result<Arc<NodeEntry>, Refusal> {
    app.nodes.by_uuid(uuid).ok_or_else(missing)
}

fn missing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "E200", "no node has this UUID")
}

/// Returns the status of a node that has an entry.
fn status(app: &App, entry: &NodeEntry) -> NodeStatus {
    let spec = app.served().of_guest(&entry.uuid);
    let last = app.accounts.of(&entry.uuid);
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
        agent: last.agent.or_else(|| entry.agent.clone()),
        last_contact: last.contact.max(entry.last_contact),
        reported: last.reported,
        result: last.result,
        reported_generation: last.generation,
        drift: last.drift,
        error: last.error,
    }
}

/// Returns the status of a node that is expected to enrol.
fn status_of_expected(spec: &ServedSpec) -> NodeStatus {
    let statement = &spec.statement;
    let revoked = spec.published.revoked.as_ref();
    NodeStatus {
        uuid: statement.uuid.as_str().to_owned(),
        name: statement.node.clone(),
        manifest: statement.manifest.clone(),
        host: statement.host.clone(),
        generation: Some(statement.generation),
        enrolled: None,
        certificate_expires: None,
        revoked: revoked.map(|revoked| revoked.at),
        revoke_reason: revoked.map(|revoked| revoked.reason.clone()),
        address: None,
        agent: None,
        last_contact: None,
        reported: None,
        result: None,
        reported_generation: None,
        drift: None,
        error: None,
    }
}
