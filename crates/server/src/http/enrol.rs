//! Certificates of nodes: `POST /v1/enrol` and `POST /v1/renew`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use homestak_api::certificate::{Issued, Role};
use homestak_api::v1::enrol::{EnrolRequest, EnrolResponse};
use homestak_store::registry::{CertificateEntry, NodeEntry};
use http::StatusCode;

use super::{Answer, Call, blocking, json};
use crate::app::App;
use crate::caller::Caller;
use crate::contact;
use crate::refusal::Refusal;

/// Exchanges a provisioning token for a certificate. The token is spent.
pub(super) async fn enrol(call: &mut Call<'_>) -> Answer {
    if let Caller::Operator(_) | Caller::Node(_) = &call.caller {
        return Err(Refusal::malformed("enrol without a client certificate"));
    }
    let request: EnrolRequest = call.body().await?;
    let proof = contact::first(call, &request.node).await?;
    let (app, peer) = (call.app, call.peer);
    let statement = &proof.spec.statement;
    if request.uuid != statement.uuid.as_str() {
        let why = "the token is for another guest";
        return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why));
    }
    let role = Role::Node {
        name: statement.node.clone(),
        uuid: request.uuid.clone(),
    };
    let issued = issue(app, &role, &request)?;
    proof.consume(app).await?;
    let entry = NodeEntry {
        uuid: request.uuid,
        name: statement.node.clone(),
        manifest: statement.manifest.clone(),
        host: statement.host.clone(),
        certificate: Some(recorded(&issued)),
        renewed_late: false,
        enrolled: Some(app.now().as_second()),
        revoked: None,
        address: Some(peer.address.to_string()),
        agent: Some(request.agent),
        last_contact: Some(app.now().as_second()),
    };
    put(app, entry).await?;
    tracing::info!(address = %peer.address, node = statement.node, "enrolled");
    Ok(json(StatusCode::CREATED, &EnrolResponse::from(issued)))
}

/// Exchanges a certificate for a new one. One that has expired is exchanged once.
pub(super) async fn renew(call: &mut Call<'_>) -> Answer {
    let (app, peer, caller) = (call.app, call.peer, call.caller.clone());
    let (node, is_late) = match caller {
        Caller::Node(node) => (node, false),
        Caller::ExpiredNode(node) => (node, true),
        Caller::Refused(why) => {
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why));
        }
        Caller::Anonymous => {
            let why = "the node's client certificate is required";
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E300", why));
        }
        Caller::Operator(_) => return Err(Refusal::forbidden("an operator is not a node")),
    };
    if is_late && node.renewed_late {
        let why = "the certificate expired, and was renewed after that once already; enrol again";
        return Err(Refusal::login(StatusCode::FORBIDDEN, "E302", why));
    }
    let request: EnrolRequest = call.body().await?;
    if request.uuid != node.uuid {
        return Err(Refusal::forbidden("the certificate is another guest's"));
    }
    let role = Role::Node {
        name: node.name.clone(),
        uuid: node.uuid.clone(),
    };
    let issued = issue(app, &role, &request)?;
    let entry = NodeEntry {
        certificate: Some(recorded(&issued)),
        // A renewal in time shows that the node is looked after again.
        renewed_late: is_late,
        address: Some(peer.address.to_string()),
        agent: Some(request.agent),
        last_contact: Some(app.now().as_second()),
        ..(*node).clone()
    };
    put(app, entry).await?;
    tracing::info!(address = %peer.address, node = node.name, is_late, "certificate renewed");
    Ok(json(StatusCode::CREATED, &EnrolResponse::from(issued)))
}

fn issue(app: &App, role: &Role, request: &EnrolRequest) -> Result<Issued, Refusal> {
    let key = STANDARD.decode(&request.public_key);
    let key = key.map_err(|_| Refusal::malformed("`public_key` is not base64"))?;
    let served = app.served();
    let issuer = &served.published.secrets.intermediate;
    issuer
        .issue_to(role, &key, app.now())
        .map_err(|error| match error {
            homestak_api::certificate::CertificateError::PublicKey => {
                Refusal::malformed(error.to_string())
            }
            error => {
                let error = homestak_core::error::chain(&error);
                tracing::error!(
                    error,
                    "cannot issue a certificate; publish again on the driver"
                );
                Refusal::internal()
            }
        })
}

fn recorded(issued: &Issued) -> CertificateEntry {
    CertificateEntry {
        fingerprint: issued.fingerprint.clone(),
        not_before: issued.not_before.as_second(),
        not_after: issued.not_after.as_second(),
    }
}

async fn put(app: &std::sync::Arc<App>, entry: NodeEntry) -> Result<(), Refusal> {
    let app = app.clone();
    blocking(move || app.nodes.put(entry)).await
}
