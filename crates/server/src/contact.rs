//! The first contact of a node, before it has a certificate.
//!
//! A provisioning token is accepted for its own node as long as it is open; what the node's posture
//! allows comes beside it. Once a node has enrolled, only its certificate counts.

use std::sync::Arc;

use homestak_api::publication::{FirstContact, sha256};
use homestak_core::token::{self, TokenError};
use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use subtle::ConstantTimeEq as _;

use crate::app::App;
use crate::http::{Call, blocking};
use crate::published::{Named, ServedSpec};
use crate::refusal::Refusal;
use crate::throttle::ThrottleKey;

/// How a node authenticated.
pub(crate) struct Proof {
    pub(crate) spec: Arc<ServedSpec>,
    /// The id of a token of version 2.
    token: Option<String>,
}

impl Proof {
    /// Returns the id of its token, if it has one.
    pub(crate) fn token(&self) -> Option<String> {
        self.token.clone()
    }

    /// Records the use of a token that is valid once, and refuses one that was used before.
    pub(crate) async fn consume_if_single_use(&self, app: &Arc<App>) -> Result<(), Refusal> {
        let Some(id) = self.token().filter(|_| self.spec.published.single_use) else {
            return Ok(());
        };
        let (state, now) = (app.clone(), app.now().as_second());
        match blocking(move || state.tokens.use_once(&id, now)).await? {
            true => Ok(()),
            false => Err(spent()),
        }
    }
}

pub(crate) fn revoked() -> Refusal {
    Refusal::login(StatusCode::FORBIDDEN, "E302", "the node was revoked")
}

pub(crate) fn spent() -> Refusal {
    let why = "the token was used or revoked; only the node's certificate counts now";
    Refusal::login(StatusCode::FORBIDDEN, "E302", why)
}

pub(crate) fn no_spec(identity: &str) -> Refusal {
    let message = format!("no spec is published for `{identity}`");
    Refusal::new(StatusCode::NOT_FOUND, "E200", message)
}

fn ambiguous(identity: &str) -> Refusal {
    let message =
        format!("several nodes are called `{identity}`; use a token that names the guest");
    Refusal::new(StatusCode::CONFLICT, "E201", message)
}

/// Returns the token of a request, which has one `Authorization` header at most.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let wrong = |why| Refusal::login(StatusCode::BAD_REQUEST, "E300", why);
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() {
        return Err(wrong("there is more than one Authorization header"));
    }
    let text = header.to_str().ok();
    let token = text.and_then(|text| text.strip_prefix("Bearer "));
    let malformed = || wrong("the Authorization header is not `Bearer TOKEN`");
    token.map(Some).ok_or_else(malformed)
}

/// Returns the node that a provisioning token names, before it is verified.
pub(crate) fn token_node(headers: &HeaderMap) -> Result<String, Refusal> {
    let token = bearer(headers)?.ok_or_else(missing)?;
    Ok(token::inspect(token).map_err(|error| refused(&error))?.node)
}

fn missing() -> Refusal {
    let why = "the Authorization header is missing";
    Refusal::login(StatusCode::BAD_REQUEST, "E300", why)
}

fn refused(error: &TokenError) -> Refusal {
    let status = match error.code() {
        "E500" => StatusCode::INTERNAL_SERVER_ERROR,
        "E300" => StatusCode::BAD_REQUEST,
        _ => StatusCode::UNAUTHORIZED,
    };
    let message = match error {
        // Without the names: what the client asked for may be anything.
        TokenError::Identity { .. } => "the token is for another node".to_owned(),
        error => error.to_string(),
    };
    Refusal::login(status, error.code(), message)
}

/// Verifies that a request comes from a node at its first contact, and returns its spec.
pub(crate) fn first(call: &Call<'_>, identity: &str) -> Result<Proof, Refusal> {
    let proof = prove(call, identity)?;
    let node = call.app.nodes.by_uuid(proof.spec.statement.uuid.as_str());
    let has_enrolled = node.is_some_and(|node| node.certificate.is_some());
    let is_open = match &proof.token {
        Some(id) => call.app.tokens.is_open(id),
        None => true,
    };
    match has_enrolled || !is_open {
        true => Err(spent()),
        false => Ok(proof),
    }
}

/// The same for an enrolment: also with the token that a node enrolled with before, since the answer
/// may have been lost.
pub(crate) fn prove(call: &Call<'_>, identity: &str) -> Result<Proof, Refusal> {
    call.throttled(ThrottleKey::of(call.peer.address))?;
    let proof = match bearer(&call.head.headers)? {
        None => by_network(call, identity)?,
        Some(token) => {
            // Guessing at one token from many addresses is slowed down too.
            let key = call.app.throttle.token(token);
            call.throttled(key)?;
            let proof = match by_shared_token(call, identity, token) {
                Some(proof) => Ok(proof),
                None => by_provisioning_token(call, identity, token),
            };
            if proof.is_err() {
                call.app.throttle.fail(key, call.app.now());
            }
            proof?
        }
    };
    let uuid = proof.spec.statement.uuid.as_str();
    let node = call.app.nodes.by_uuid(uuid);
    let is_revoked = node.is_some_and(|node| node.revoked.is_some());
    if is_revoked || proof.spec.published.revoked.is_some() {
        return Err(revoked());
    }
    if call.app.proofs.admits(call.peer.address, call.app.now()) {
        tracing::info!(
            address = %call.peer.address, node = identity, uuid,
            token = proof.token.as_deref().unwrap_or_default(), "proof of first contact is valid"
        );
    }
    Ok(proof)
}

/// By an address in a trusted network, where the posture allows it. Not for a guest that a token was
/// ever issued for: in the network are also programs that are not the guest, and it had something
/// better. Without its registry, the server does not know that it has enrolled.
fn by_network(call: &Call<'_>, identity: &str) -> Result<Proof, Refusal> {
    if !call.app.is_trusted(call.peer.address) {
        return Err(missing());
    }
    match call.app.served().of_node(identity) {
        Named::One(spec)
            if spec.published.first_contact == FirstContact::Network
                && spec.published.token.is_none()
                && !spec.published.had_token =>
        {
            Ok(Proof { spec, token: None })
        }
        Named::Several => Err(ambiguous(identity)),
        Named::One(_) | Named::None => Err(missing()),
    }
}

/// By the token that the posture names, where it names one.
fn by_shared_token(call: &Call<'_>, identity: &str, token: &str) -> Option<Proof> {
    let Named::One(spec) = call.app.served().of_node(identity) else {
        return None;
    };
    if spec.published.first_contact == FirstContact::Network {
        return None;
    }
    let expected = spec.published.token_sha256.as_deref()?;
    let found = sha256(token.as_bytes());
    let is_same = bool::from(found.as_bytes().ct_eq(expected.as_bytes()));
    is_same.then_some(Proof { spec, token: None })
}

fn by_provisioning_token(call: &Call<'_>, identity: &str, token: &str) -> Result<Proof, Refusal> {
    let served = call.app.served();
    let claims = served.verify(token, identity, call.app.now().as_second());
    let claims = claims.map_err(|error| refused(&error))?;
    let spec = match &claims.guest {
        Some(guest) => served
            .of_guest(&guest.uuid)
            .ok_or_else(|| no_spec(identity))?,
        None => match served.of_node(identity) {
            Named::One(spec) => spec,
            Named::None => return Err(no_spec(identity)),
            Named::Several => return Err(ambiguous(identity)),
        },
    };
    // With version 2, the registry has for which guest a token was issued. The spec that its node is to
    // have may have been replaced by another one since.
    let is_its_spec = claims.guest.is_some() || spec.published.spec == claims.spec;
    if spec.statement.node != identity || !is_its_spec {
        return Err(no_spec(identity));
    }
    let token = claims.guest.as_ref().map(|guest| guest.token_id.clone());
    let uuid = spec.statement.uuid.as_str();
    if let Some(id) = &token
        && !call.app.tokens.is_issued(id, uuid)
    {
        return Err(spent());
    }
    Ok(Proof { spec, token })
}
