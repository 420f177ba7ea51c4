//! `/specs`, `/spec/{identity}` and the agent's program.

use std::sync::Arc;

use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::json as object;

use homestak_api::publication::STATEMENT_HEADER;

use super::{Answer, Call, json};
use crate::caller::Caller;
use crate::contact;
use crate::published::ServedSpec;
use crate::refusal::{Body, Refusal};

/// `GET /specs`
pub(super) fn list(call: &Call<'_>) -> Response<Body> {
    let served = call.app.served();
    json(StatusCode::OK, &object!({ "specs": served.spec_names() }))
}

/// `GET /spec/{identity}`
pub(super) async fn get(call: &Call<'_>, identity: &str) -> Answer {
    let spec = match &call.caller {
        Caller::Node(node) if node.name == identity => {
            let spec = call.app.served().of_guest(&node.uuid);
            spec.ok_or_else(|| contact::no_spec(identity))?
        }
        Caller::Node(_) | Caller::Operator(_) => {
            return Err(Refusal::forbidden("the certificate is not this node's"));
        }
        Caller::ExpiredNode(_) => {
            let why = "the certificate has expired; renew it";
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why));
        }
        Caller::Refused(why) => {
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", *why));
        }
        Caller::Anonymous => {
            let proof = contact::first(call, identity).await?;
            proof.consume_if_single_use(call.app).await?;
            proof.spec
        }
    };
    Ok(send(call, &spec))
}

fn send(call: &Call<'_>, spec: &Arc<ServedSpec>) -> Response<Body> {
    let known = call.head.headers.get(IF_NONE_MATCH);
    let is_known = known.is_some_and(|known| lists(known, &spec.etag));
    let body = match is_known {
        true => Full::default(),
        false => Full::new(spec.body.clone()),
    };
    let mut answer = Response::new(body);
    if is_known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(ETAG, spec.etag.clone());
    headers.insert(STATEMENT_HEADER, spec.header.clone());
    answer
}

/// Tells whether an `If-None-Match` header has an entity tag (RFC 9110, weak comparison).
fn lists(header: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(header), Ok(tag)) = (header.to_str(), tag.to_str()) else {
        return false;
    };
    let mut listed = header.split(',').map(str::trim);
    listed.any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// `GET /v1/agents/{architecture}`: the program, for a node at its first contact or with its
/// certificate. The identity is in the token or the certificate.
pub(super) async fn agent(call: &Call<'_>, architecture: &str) -> Answer {
    match &call.caller {
        Caller::Node(_) | Caller::ExpiredNode(_) | Caller::Operator(_) => {}
        Caller::Refused(why) => {
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", *why));
        }
        Caller::Anonymous => {
            let header = call.head.headers.get(AUTHORIZATION);
            let identity = contact::token_node(header)?;
            contact::first(call, &identity).await?;
        }
    }
    let served = call.app.served();
    let agent = served.agents.get(architecture).ok_or_else(|| {
        let message = format!("there is no agent for `{architecture}`");
        Refusal::new(StatusCode::NOT_FOUND, "E200", message)
    })?;
    let mut answer = Response::new(Full::new(agent.program.clone()));
    let headers = answer.headers_mut();
    let kind = HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(STATEMENT_HEADER, agent.header.clone());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_tag_is_found_in_every_form_of_the_header() {
        let tag = HeaderValue::from_static("\"7-abc\"");
        for header in ["\"7-abc\"", "W/\"7-abc\"", "\"x\", \"7-abc\"", "*"] {
            assert!(lists(&HeaderValue::from_static(header), &tag), "{header}");
        }
        for header in ["\"7-ab\"", "7-abc", "", "\"8-abc\""] {
            assert!(!lists(&HeaderValue::from_static(header), &tag), "{header}");
        }
    }
}
