//! The first contact of a node, before it has a certificate.
//!
//! A provisioning token is always accepted for its own node; what the node's posture allows comes
//! beside it. Once a node has enrolled, only its certificate counts.

use std::sync::Arc;

use homestak_api::publication::{FirstContact, sha256};
use homestak_core::token::{self, Claims, TokenError};
use http::header::AUTHORIZATION;
use http::{HeaderValue, StatusCode};
use subtle::ConstantTimeEq as _;

use crate::app::App;
use crate::http::{Call, blocking};
use crate::published::{Named, ServedSpec};
use crate::refusal::Refusal;

/// How a node proved itself.
pub(crate) struct Proof {
    pub(crate) spec: Arc<ServedSpec>,
    /// The id of a token of version 2.
    token: Option<String>,
}

impl Proof {
    /// Records the use of a token, and refuses one that was used before.
    pub(crate) async fn consume(&self, app: &Arc<App>) -> Result<(), Refusal> {
        let Some(id) = self.token.clone() else {
            return Ok(());
        };
        let (registry, now) = (app.registry.clone(), app.now().as_second());
        match blocking(move || registry.use_token(&id, now)).await? {
            true => Ok(()),
            false => Err(spent()),
        }
    }

    pub(crate) async fn consume_if_single_use(&self, app: &Arc<App>) -> Result<(), Refusal> {
        match self.spec.published.single_use {
            true => self.consume(app).await,
            false => Ok(()),
        }
    }
}

fn spent() -> Refusal {
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

fn bearer(header: Option<&HeaderValue>) -> Result<Option<&str>, Refusal> {
    let Some(header) = header else {
        return Ok(None);
    };
    let text = header
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix("Bearer "));
    let wrong = || {
        let why = "the Authorization header is not `Bearer TOKEN`";
        Refusal::login(StatusCode::BAD_REQUEST, "E300", why)
    };
    text.map(Some).ok_or_else(wrong)
}

/// Returns the node that a provisioning token names, before it is verified.
pub(crate) fn token_node(header: Option<&HeaderValue>) -> Result<String, Refusal> {
    let token = bearer(header)?.ok_or_else(missing)?;
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
    Refusal::login(status, error.code(), error.to_string())
}

/// Verifies that a request comes from a node at its first contact, and returns its spec.
pub(crate) async fn first(call: &Call<'_>, identity: &str) -> Result<Proof, Refusal> {
    call.throttled(&call.peer.address.to_string())?;
    let header = call.head.headers.get(AUTHORIZATION);
    let proof = match bearer(header)? {
        None => by_network(call, identity)?,
        Some(token) => {
            // Guessing at one token from many addresses is slowed down too.
            let key = format!("token:{}", sha256(token.as_bytes()));
            call.throttled(&key)?;
            let proof = match by_shared_token(call, identity, token) {
                Some(proof) => Ok(proof),
                None => by_provisioning_token(call, identity, token).await,
            };
            if proof.is_err() {
                call.app.throttle.fail(&key, call.app.now());
            }
            proof?
        }
    };
    let uuid = proof.spec.statement.uuid.as_str();
    if let Some(node) = call.app.nodes.by_uuid(uuid) {
        if node.revoked.is_some() {
            let why = "the node was revoked";
            return Err(Refusal::login(StatusCode::FORBIDDEN, "E302", why));
        }
        if node.certificate.is_some() {
            return Err(spent());
        }
    }
    tracing::info!(
        address = %call.peer.address, node = identity, uuid,
        token = proof.token.as_deref().unwrap_or_default(), "first contact accepted"
    );
    Ok(proof)
}

/// By an address in a trusted network, where the posture allows it.
fn by_network(call: &Call<'_>, identity: &str) -> Result<Proof, Refusal> {
    if !call.app.is_trusted(call.peer.address) {
        return Err(missing());
    }
    match call.app.served().of_node(identity) {
        Named::One(spec) if spec.published.first_contact == FirstContact::Network => {
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

async fn by_provisioning_token(
    call: &Call<'_>,
    identity: &str,
    token: &str,
) -> Result<Proof, Refusal> {
    let served = call.app.served();
    let site = &served.published.site.site;
    let now = call.app.now().as_second();
    let claims = token::verify_at(token, &call.app.token_keys(), Some(identity), site, now);
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
    if spec.statement.node != identity || spec.published.spec != claims.spec {
        return Err(no_spec(identity));
    }
    let token = token_id(&claims);
    if let Some(id) = token.clone() {
        let registry = call.app.registry.clone();
        let entry = blocking(move || registry.token(&id)).await?;
        if entry.is_some_and(|entry| entry.revoked.is_some()) {
            return Err(spent());
        }
    }
    Ok(Proof { spec, token })
}

fn token_id(claims: &Claims) -> Option<String> {
    claims.guest.as_ref().map(|guest| guest.token_id.clone())
}
