//! Routes requests, and logs what became of each.
//!
//! Endpoints of the seeds are unversioned and answer GET and HEAD; everything else is below `/v1/`.

mod enrol;
mod node;
mod report;
mod spec;
mod token;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::app::App;
use crate::caller::Caller;
use crate::listen::Peer;
use crate::refusal::{Body, Refusal};

type Answer = Result<Response<Body>, Refusal>;

/// A request with what is known of its sender.
pub(crate) struct Call<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) peer: Peer,
    pub(crate) caller: Caller,
    pub(crate) head: Parts,
    body: Option<Incoming>,
}

/// Answers a request.
pub(crate) async fn answer(
    app: &Arc<App>,
    peer: Peer,
    request: Request<Incoming>,
) -> Response<Body> {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let (method, is_v1) = (request.method().clone(), path.starts_with("/v1/"));
    let (head, body) = request.into_parts();
    let call = Call {
        app,
        caller: app.caller(peer),
        peer,
        head,
        body: Some(body),
    };
    let limit = app.limits().request();
    // Cancel safety: what a handler wrote before it was cut off is whole; clients ask again.
    let answer = match timeout(limit, route(call, &method, &path)).await {
        Ok(answer) => answer,
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "E100",
            "the request took too long",
        )),
    };
    let mut answer = match answer {
        Ok(answer) => {
            tracing::debug!(address = %peer.address, %method, path, status = answer.status().as_u16());
            answer
        }
        Err(refusal) => {
            if refusal.is_failed_login {
                app.throttle.fail(&peer.address.to_string(), app.now());
            }
            tracing::info!(
                address = %peer.address, %method, path,
                status = refusal.status.as_u16(), code = refusal.code, reason = refusal.message,
                "refused"
            );
            refusal.answer(is_v1)
        }
    };
    if method == Method::HEAD {
        // The length of the answer stays; git clients break on a body.
        let length = http_body::Body::size_hint(answer.body()).exact();
        if let Some(length) = length {
            let value = HeaderValue::from(length);
            answer
                .headers_mut()
                .insert(http::header::CONTENT_LENGTH, value);
        }
        *answer.body_mut() = Full::default();
    }
    answer
}

async fn route(mut call: Call<'_>, method: &Method, path: &str) -> Answer {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match (segments.as_slice(), is_read) {
        (["health"], true) => Ok(json(StatusCode::OK, &serde_json::json!({ "status": "ok" }))),
        (["specs"], true) => Ok(spec::list(&call)),
        (["spec", identity], true) => spec::get(&call, identity).await,
        (["health" | "specs"] | ["spec", _], false) => Err(Refusal::method()),
        (["v1", rest @ ..], _) => version_1(&mut call, method, rest).await,
        _ => Err(Refusal::not_served()),
    }
}

async fn version_1(call: &mut Call<'_>, method: &Method, path: &[&str]) -> Answer {
    match (method.as_str(), path) {
        ("POST", ["enrol"]) => enrol::enrol(call).await,
        ("POST", ["renew"]) => enrol::renew(call).await,
        ("POST", ["reports"]) => report::add(call).await,
        ("GET" | "HEAD", ["agents", architecture]) => spec::agent(call, architecture).await,
        ("GET" | "HEAD", ["nodes"]) => node::list(call),
        ("GET" | "HEAD", ["nodes", uuid]) => node::show(call, uuid),
        ("GET" | "HEAD", ["nodes", uuid, "reports"]) => report::list(call, uuid).await,
        ("POST", ["nodes", uuid, "revoke"]) => node::revoke(call, uuid).await,
        ("GET" | "HEAD", ["tokens"]) => token::list(call).await,
        ("POST", ["tokens", id, "revoke"]) => token::revoke(call, id).await,
        (_, ["enrol" | "renew" | "reports" | "nodes" | "tokens", ..] | ["agents", _]) => {
            Err(Refusal::method())
        }
        _ => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "E100",
            "unknown endpoint",
        )),
    }
}

impl Call<'_> {
    /// Requires an operator; returns the name.
    fn operator(&self) -> Result<&str, Refusal> {
        match &self.caller {
            Caller::Operator(name) => Ok(name),
            Caller::Refused(why) => Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", *why)),
            Caller::Anonymous => Err(Refusal::login(
                StatusCode::UNAUTHORIZED,
                "E300",
                "an operator's client certificate is required",
            )),
            Caller::Node(_) | Caller::ExpiredNode(_) => {
                Err(Refusal::forbidden("a node may not do this"))
            }
        }
    }

    /// Refuses an address that failed too often lately.
    pub(crate) fn throttled(&self, key: &str) -> Result<(), Refusal> {
        match self.app.throttle.wait(key, self.app.now()) {
            None => Ok(()),
            Some(wait) => Err(Refusal {
                retry_after: Some(wait),
                ..Refusal::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "E303",
                    "too many failed attempts; try again later",
                )
            }),
        }
    }

    /// Reads the body as JSON.
    async fn body<T: DeserializeOwned>(&mut self) -> Result<T, Refusal> {
        let limit = self.app.limits().body_bytes;
        let body = self.body.take().ok_or_else(Refusal::internal)?;
        let body = Limited::new(body, limit);
        let body = body.collect().await.map_err(|error| match error
            .is::<http_body_util::LengthLimitError>()
        {
            true => Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "E101",
                format!("the body is larger than {limit} bytes"),
            ),
            false => Refusal::malformed("the body could not be read"),
        })?;
        serde_json::from_slice(&body.to_bytes())
            .map_err(|error| Refusal::malformed(format!("the body is not valid: {error}")))
    }
}

/// Returns an answer with a JSON body, indented by two as in the seeds.
fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut answer = Response::new(Full::new(Bytes::from(text + "\n")));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Does work that waits for the disk on a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, homestak_store::registry::RegistryError> + Send + 'static,
) -> Result<T, Refusal> {
    // Cancel safety: the work is finished, and nobody takes the result.
    match homestak_api::runtime::off(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            tracing::error!(error = %homestak_core::error::chain(&error), "the registry failed");
            Err(Refusal::internal())
        }
        Err(_) => Err(Refusal::internal()),
    }
}
