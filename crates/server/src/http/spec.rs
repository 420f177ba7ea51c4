//! `/specs`, `/spec/{identity}` and the agent's program.

use std::sync::Arc;

use homestak_api::publication::STATEMENT_HEADER;
use homestak_api::v1::answer::SpecNames;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Response, StatusCode};

use super::{Answer, Call, json};
use crate::body::Body;
use crate::caller::Caller;
use crate::contact;
use crate::published::ServedSpec;
use crate::refusal::Refusal;
use crate::throttle::ThrottleKey;

/// `GET /specs`
pub(super) fn list(call: &Call<'_>) -> Response<Body> {
    let served = call.app.served();
    let names = served.spec_names().into_iter().map(str::to_owned);
    let specs = names.collect();
    json(StatusCode::OK, &SpecNames { specs })
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
            let proof = contact::first(call, identity)?;
            proof.consume_if_single_use(call.app).await?;
            proof.spec
        }
    };
    Ok(send(call, &spec))
}

fn send(call: &Call<'_>, spec: &Arc<ServedSpec>) -> Response<Body> {
    let mut listed = call.head.headers.get_all(IF_NONE_MATCH).iter();
    let is_known = listed.any(|listed| lists(listed, &spec.etag));
    let body = match is_known {
        true => Body::default(),
        false => Body::from(spec.body.clone()),
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

/// Returns whether an `If-None-Match` header has an entity tag (RFC 9110, weak comparison).
fn lists(header: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(header), Ok(tag)) = (header.to_str(), tag.to_str()) else {
        return false;
    };
    let mut listed = header.split(',').map(str::trim);
    listed.any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// `GET /v1/agents/{architecture}`: the program, for a node at its first contact or with its
/// certificate. The identity is in the token or the certificate.
pub(super) fn agent(call: &Call<'_>, architecture: &str) -> Answer {
    match &call.caller {
        Caller::Node(node) | Caller::ExpiredNode(node) => call.require_published(node)?,
        Caller::Operator(_) => {}
        Caller::Refused(why) => {
            return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", *why));
        }
        Caller::Anonymous => {
            call.throttled(ThrottleKey::of(call.peer.address))?;
            let identity = contact::token_node(&call.head.headers)?;
            contact::first(call, &identity)?;
        }
    }
    let served = call.app.served();
    let agent = served.agents.get(architecture).ok_or_else(|| {
        let message = "there is no agent for this architecture";
        Refusal::new(StatusCode::NOT_FOUND, "E200", message)
    })?;
    let mut answer = Response::new(Body::from(agent.program.clone()));
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
