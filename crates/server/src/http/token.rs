//! `/v1/tokens`: provisioning tokens that were issued, and their revocation.

use homestak_api::v1::node_status::{Revocation, TokenStatus, Tokens};
use homestak_store::registry::TokenEntry;
use http::StatusCode;

use super::{Answer, Call, blocking, json};
use crate::refusal::Refusal;

/// `GET /v1/tokens`
pub(super) async fn list(call: &Call<'_>) -> Answer {
    call.operator()?;
    let registry = call.app.registry.clone();
    let tokens = blocking(move || registry.tokens()).await?;
    let tokens = tokens.into_iter().map(status).collect();
    Ok(json(StatusCode::OK, &Tokens { tokens }))
}

/// `POST /v1/tokens/{id}/revoke`
pub(super) async fn revoke(call: &mut Call<'_>, id: &str) -> Answer {
    let operator = call.operator()?.to_owned();
    call.body::<Revocation>().await?;
    let (app, id, at) = (call.app.clone(), id.to_owned(), call.app.now().as_second());
    let revoked = blocking(move || app.tokens.revoke(&id, at));
    let token = revoked
        .await?
        .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "E200", "no token has this id"))?;
    tracing::info!(
        operator,
        token = token.id,
        node = token.node,
        "token revoked"
    );
    Ok(json(StatusCode::OK, &status(token)))
}

fn status(entry: TokenEntry) -> TokenStatus {
    TokenStatus {
        id: entry.id,
        node: entry.node,
        uuid: entry.uuid,
        issued: entry.issued,
        expires: entry.expires,
        used: entry.used,
        revoked: entry.revoked,
    }
}
