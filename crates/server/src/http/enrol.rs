//! Certificates of nodes: `POST /v1/enrol` and `POST /v1/renew`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use homestak_api::certificate::{CertificateError, Issued, Role};
use homestak_api::publication::sha256;
use homestak_api::v1::enrol::{EnrolRequest, EnrolResponse};
use homestak_store::registry::{CertificateEntry, NodeEntry};
use http::StatusCode;

use super::{Answer, Call, blocking, json};
use crate::app::App;
use crate::caller::{Caller, EnrolOutcome, NoRenewal};
use crate::contact;
use crate::rate::NodeAction;
use crate::refusal::Refusal;

/// The largest body: names and a public key. Anyone may send one.
const LARGEST_BODY: usize = 4 << 10;

/// Exchanges a provisioning token for a certificate. The token is spent, except for the same key: a
/// node that did not get the answer asks again.
pub(super) async fn enrol(call: &mut Call<'_>) -> Answer {
    if let Caller::Operator(_) | Caller::Node(_) = &call.caller {
        return Err(Refusal::malformed("enrol without a client certificate"));
    }
    let request: EnrolRequest = call.body_within(LARGEST_BODY).await?;
    let proof = contact::prove(call, &request.node)?;
    let (app, peer) = (call.app, call.peer);
    let statement = &proof.spec.statement;
    if request.uuid != statement.uuid.as_str() {
        let why = "the token is for another guest";
        return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why));
    }
    let key = public_key(&request)?;
    let before = app.nodes.by_uuid(&request.uuid);
    let before = before.filter(|before| before.certificate.is_some());
    let is_first = before.is_none();
    // Others must not use up the requests of the node, nor have certificates signed for nothing.
    if before.is_some_and(|before| before.public_key != Some(sha256(&key))) {
        return Err(contact::spent());
    }
    call.limited(NodeAction::Enrol, &request.uuid)?;
    let role = Role::Node {
        name: statement.node.clone(),
        uuid: request.uuid.clone(),
    };
    let issued = issue(app, &role, &key)?;
    let now = app.now().as_second();
    let entry = NodeEntry {
        uuid: request.uuid,
        name: statement.node.clone(),
        manifest: statement.manifest.clone(),
        host: statement.host.clone(),
        certificate: Some(recorded(&issued)),
        public_key: Some(sha256(&key)),
        replaced: None,
        replaced_until: None,
        renewed_late: false,
        // The time at which the token is used: only this token enrols this guest again.
        enrolled: Some(now),
        revoked: None,
        address: Some(peer.address.to_string()),
        agent: Some(request.agent),
        last_contact: Some(now),
    };
    let (state, token) = (app.clone(), proof.token());
    let outcome = blocking(move || {
        let outcome = state.nodes.enrol(entry, token.as_deref(), now)?;
        if let (EnrolOutcome::Recorded, Some(id)) = (outcome, &token) {
            state.tokens.set_used(id, now);
        }
        Ok(outcome)
    });
    let outcome = outcome.await?;
    match outcome {
        EnrolOutcome::Recorded => {}
        EnrolOutcome::Spent => return Err(contact::spent()),
        EnrolOutcome::Revoked => return Err(contact::revoked()),
    }
    // A token enrols one guest for the first time.
    if is_first || app.certificates.admits(peer.address, app.now()) {
        tracing::info!(address = %peer.address, node = statement.node, "enrolled");
    }
    Ok(json(StatusCode::CREATED, &EnrolResponse::from(issued)))
}

/// Exchanges a certificate for a new one. One that has expired is exchanged once; one that was
/// replaced, until it expires or its replacement was used.
pub(super) async fn renew(call: &mut Call<'_>) -> Answer {
    let (app, peer) = (call.app, call.peer);
    let why = match &call.caller {
        Caller::Node(_) | Caller::ExpiredNode(_) => "the certificate is no longer accepted",
        Caller::Refused(why) => why,
        Caller::Anonymous => {
            let why = "the node's client certificate is required";
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E300", why));
        }
        Caller::Operator(_) => return Err(Refusal::forbidden("an operator is not a node")),
    };
    let shown = peer.certificate.ok_or_else(Refusal::internal)?;
    let may_renew = app.nodes.may_renew(shown, app.now().as_second());
    let (node, _) = may_renew.map_err(|refused| not_renewed(refused, why))?;
    call.require_published(&node)?;
    let request: EnrolRequest = call.body_within(LARGEST_BODY).await?;
    if request.uuid != node.uuid {
        return Err(Refusal::forbidden("the certificate is another guest's"));
    }
    let key = public_key(&request)?;
    call.limited(NodeAction::Renew, &node.uuid)?;
    let role = Role::Node {
        name: node.name.clone(),
        uuid: node.uuid.clone(),
    };
    let issued = issue(app, &role, &key)?;
    let (state, now) = (app.clone(), app.now().as_second());
    let certificate = recorded(&issued);
    let renewed = move |before: NodeEntry| NodeEntry {
        certificate: Some(certificate),
        public_key: Some(sha256(&key)),
        address: Some(peer.address.to_string()),
        agent: Some(request.agent),
        last_contact: Some(now),
        ..before
    };
    // The node may have been revoked, or have used its new certificate, while the body was received.
    let written = blocking(move || state.nodes.renew(shown, now, renewed)).await?;
    let written = written.map_err(|refused| not_renewed(refused, why))?;
    let is_late = written.renewed_late;
    if app.certificates.admits(peer.address, app.now()) {
        tracing::info!(address = %peer.address, node = node.name, is_late, "certificate renewed");
    }
    Ok(json(StatusCode::CREATED, &EnrolResponse::from(issued)))
}

fn not_renewed(refused: NoRenewal, why: &'static str) -> Refusal {
    let why = match refused {
        NoRenewal::Refused => return Refusal::login(StatusCode::UNAUTHORIZED, "E301", why),
        NoRenewal::LateAgain => {
            "the certificate expired, and was renewed after that once already; enrol again"
        }
        NoRenewal::ReplacedAndExpired => "the certificate was replaced, and expired; enrol again",
    };
    Refusal::login(StatusCode::FORBIDDEN, "E302", why)
}

fn public_key(request: &EnrolRequest) -> Result<Vec<u8>, Refusal> {
    let key = STANDARD.decode(&request.public_key);
    key.map_err(|_| Refusal::malformed("`public_key` is not base64"))
}

/// Issues a certificate for a public key.
fn issue(app: &App, role: &Role, key: &[u8]) -> Result<Issued, Refusal> {
    let served = app.served();
    let issuer = &served.secrets.intermediate;
    let issued = issuer.issue_to(role, key, app.now());
    issued.map_err(|error| match error {
        CertificateError::PublicKey => Refusal::malformed(error.to_string()),
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
