//! Answers requests, and logs the outcome of each.

mod enrol;
mod hook;
mod job;
mod node;
mod query;
mod repo;
mod report;
mod spec;
mod token;
mod trigger;
mod upload_pack;

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use bytes::{Bytes, BytesMut};
use homestak_api::v1::answer::Health;
use homestak_api::v1::node_status::Reloaded;
use homestak_api::v1::openapi;
use homestak_store::registry::NodeEntry;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::Instrument as _;

use crate::app::App;
use crate::body::{Body, SentBody};
use crate::caller::Caller;
use crate::connections::{Connection, ConnectionState};
use crate::listen::Peer;
use crate::rate::NodeAction;
use crate::refusal::Refusal;
use crate::route::{self, Endpoint, NoRoute};
use crate::throttle::ThrottleKey;

type Answer = Result<Response<Body>, Refusal>;

/// Longer parts of a path are cut in the log: no name is as long, and a token is longer.
const LOGGED_SEGMENT: usize = 64;
/// How many characters of a path, a method and a reason are logged.
const LOGGED_PATH: usize = 200;
const LOGGED_METHOD: usize = 16;
const LOGGED_REASON: usize = 300;

static OPENAPI: LazyLock<Bytes> =
    LazyLock::new(|| Bytes::from(format!("{:#}\n", openapi::document())));

/// A request with what is known of its sender.
pub(crate) struct Call<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) peer: Peer,
    pub(crate) caller: Caller,
    pub(crate) head: Parts,
    connection: &'a Connection,
    body: Option<Incoming>,
}

/// Answers a request. It keeps what it needs once, since thousands of requests wait: no `async fn`, which
/// has room for its arguments twice.
pub(crate) fn answer<'a>(
    app: &'a Arc<App>,
    peer: Peer,
    connection: &'a Connection,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<SentBody>, Infallible>> + use<'a> {
    connection.begin();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let (head, body) = request.into_parts();
    let mut call = Call {
        app,
        caller: app.caller(peer),
        peer,
        head,
        connection,
        body: Some(body),
    };
    async move {
        let found = route::route(method.as_str(), &path);
        // The template of the path: a path may have a token.
        let span = tracing::error_span!(
            "request",
            method = cut(method.as_str(), LOGGED_METHOD),
            route = found.map_or("none", |(endpoint, _)| route::template(endpoint)),
            caller = %call.caller,
        );
        let responding = respond(&mut call, found, &method, &path);
        let answer = responding.instrument(span).await;
        // The connection is busy until the answer has been sent.
        let sending = connection.sending();
        Ok(answer.map(|body| SentBody::new(body, sending)))
    }
}

async fn respond(
    call: &mut Call<'_>,
    found: Result<(Endpoint, &str), NoRoute>,
    method: &Method,
    path: &str,
) -> Response<Body> {
    let (app, peer, connection) = (call.app, call.peer, call.connection);
    let operator = match &call.caller {
        Caller::Operator(name) => Some(name.clone()),
        Caller::Anonymous | Caller::Node(_) | Caller::ExpiredNode(_) | Caller::Refused(_) => None,
    };
    let limit = app.limits().request();
    // Cancel safety: writes of a handler that was dropped are complete; clients retry.
    let answer = match timeout(limit, dispatch(call, found, path)).await {
        Ok(answer) => answer,
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "E100",
            "the request took too long",
        )),
    };
    let mut answer = match answer {
        Ok(answer) => {
            tracing::debug!(address = %peer.address, path = logged(path), status = answer.status().as_u16(), "answered");
            // Of nodes at `debug` only: they would displace everything else.
            if let Some(operator) = operator
                && connection.is_first_accepted()
                && app.operators.admits(peer.address, app.now())
            {
                tracing::info!(
                    address = %peer.address, operator, path = logged(path),
                    "certificate of an operator is accepted"
                );
            }
            answer
        }
        Err(refusal) => {
            if refusal.is_failed_login {
                app.throttle.fail(ThrottleKey::of(peer.address), app.now());
            }
            if app.refusals.admits(peer.address, app.now()) {
                tracing::info!(
                    address = %peer.address, path = logged(path), status = refusal.status.as_u16(), code = refusal.code,
                    reason = cut(&refusal.message, LOGGED_REASON),
                    "refused"
                );
            }
            refusal.answer(route::is_v1(path))
        }
    };
    if *method == Method::HEAD {
        // The length of the answer stays; git clients break on a body.
        let length = http_body::Body::size_hint(answer.body()).exact();
        let length = length.filter(|_| answer.status() != StatusCode::NOT_MODIFIED);
        if let Some(length) = length {
            let value = HeaderValue::from(length);
            answer.headers_mut().insert(CONTENT_LENGTH, value);
        }
        *answer.body_mut() = Body::default();
    }
    answer
}

/// Returns a path as it is logged.
fn logged(path: &str) -> String {
    let shorten = |segment: &str| match segment.char_indices().nth(LOGGED_SEGMENT) {
        None => segment.to_owned(),
        Some(_) => cut(segment, 8),
    };
    // No more of them than are logged.
    let segments: Vec<String> = path.split('/').take(LOGGED_PATH).map(shorten).collect();
    cut(&segments.join("/"), LOGGED_PATH)
}

/// Returns a text as it is logged, of a number of characters at most.
fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}...", &text[..at]),
    }
}

async fn dispatch(
    call: &mut Call<'_>,
    found: Result<(Endpoint, &str), NoRoute>,
    path: &str,
) -> Answer {
    let (endpoint, parameter) = found.map_err(|error| match error {
        NoRoute::Path => Refusal::unknown_endpoint(route::is_v1(path)),
        NoRoute::Method(allow) => Refusal::method(allow),
    })?;
    call.check_framing()?;
    let is_public = matches!(
        endpoint,
        Endpoint::Health | Endpoint::Specs | Endpoint::OpenApi
    );
    if matches!(call.caller, Caller::Refused(_)) && !is_public {
        call.throttled(ThrottleKey::of(call.peer.address))?;
    }
    call.note_certificate().await;
    // In boxes: a request needs the memory of its endpoint, and not that of the largest one.
    match endpoint {
        Endpoint::Health => {
            let status = "ok".to_owned();
            Ok(json(StatusCode::OK, &Health { status }))
        }
        Endpoint::Specs => Ok(spec::list(call)),
        Endpoint::Spec => Box::pin(spec::get(call, parameter)).await,
        Endpoint::OpenApi => Ok(json_text(StatusCode::OK, OPENAPI.clone())),
        Endpoint::Enrol => Box::pin(enrol::enrol(call)).await,
        Endpoint::Renew => Box::pin(enrol::renew(call)).await,
        Endpoint::AddReport => Box::pin(report::add(call)).await,
        Endpoint::Agent => spec::agent(call, parameter),
        Endpoint::Nodes => node::list(call),
        Endpoint::Node => node::show(call, parameter),
        Endpoint::Reports => Box::pin(report::list(call, parameter)).await,
        Endpoint::RevokeNode => Box::pin(node::revoke(call, parameter)).await,
        Endpoint::Reload => Box::pin(reload(call)).await,
        Endpoint::AddJob => Box::pin(job::submit(call, parameter)).await,
        Endpoint::JobsOfNode => Box::pin(job::of_node(call, parameter)).await,
        Endpoint::Jobs => Box::pin(job::list(call)).await,
        Endpoint::Job => Box::pin(job::show(call, parameter)).await,
        Endpoint::CancelJob => Box::pin(job::cancel(call, parameter)).await,
        Endpoint::Offers => Box::pin(job::offers(call)).await,
        Endpoint::TakeJob => Box::pin(job::take(call, parameter)).await,
        Endpoint::ReportJob => Box::pin(job::report(call, parameter)).await,
        Endpoint::Hook => Box::pin(hook::receive(call, parameter)).await,
        Endpoint::Triggers => Box::pin(trigger::list(call)).await,
        Endpoint::Tokens => Box::pin(token::list(call)).await,
        Endpoint::Repo => Box::pin(repo::get(call, parameter)).await,
        Endpoint::UploadPack => Box::pin(upload_pack::post(call, parameter)).await,
        Endpoint::RevokeToken => Box::pin(token::revoke(call, parameter)).await,
    }
}

/// `POST /v1/reload`: reads settings and published files again.
async fn reload(call: &mut Call<'_>) -> Answer {
    let operator = call.operator()?.to_owned();
    call.body::<serde_json::Value>().await?;
    let app = call.app.clone();
    // Cancel safety: the reload completes, and its result is dropped.
    let reloaded = homestak_api::runtime::run_blocking(move || app.reload()).await;
    let reloaded = reloaded.map_err(|_| Refusal::internal())?;
    match reloaded {
        Ok(changes) => {
            tracing::info!(operator, ?changes, "reloaded");
            Ok(json(StatusCode::OK, &Reloaded { changes }))
        }
        // Only operators get here, and they may know why.
        Err(error) => {
            let why = homestak_core::error::chain(&error);
            tracing::error!(
                error = why,
                "not reloaded; the previous configuration stays in effect"
            );
            Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "E400", why))
        }
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

    /// Requires a node with a valid certificate.
    fn node(&self) -> Result<Arc<NodeEntry>, Refusal> {
        node_of(&self.caller)
    }

    /// Refuses a node that has no published spec: its guest was destroyed, or fetches nothing any more,
    /// while no server ran that could revoke its certificate.
    fn require_published(&self, node: &NodeEntry) -> Result<(), Refusal> {
        match self.app.served().of_guest(&node.uuid) {
            Some(_) => Ok(()),
            None => Err(crate::contact::no_spec(&node.name)),
        }
    }

    /// Records that a node uses its new certificate, before anything is answered: the one before cannot
    /// renew from then on.
    async fn note_certificate(&self) {
        let (Caller::Node(node) | Caller::ExpiredNode(node)) = &self.caller else {
            return;
        };
        if node.replaced.is_some() {
            let (app, uuid) = (self.app.clone(), node.uuid.clone());
            // A failure is logged, and the next request tries again.
            _ = blocking(move || app.nodes.forget_replaced(&uuid)).await;
        }
    }

    /// Forgets the head of the request. It is part of hyper's buffer, which hyper uses again if nothing
    /// of it is left: a request that waits needs 8 KiB less.
    fn forget_head(&mut self) {
        self.head = Request::new(()).into_parts().0;
    }

    /// Refuses who failed too often lately.
    pub(crate) fn throttled(&self, key: ThrottleKey) -> Result<(), Refusal> {
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

    /// Refuses what a guest did too often lately.
    fn limited(&self, what: NodeAction, uuid: &str) -> Result<(), Refusal> {
        match self.app.rates.count(what, uuid, self.app.now()) {
            None => Ok(()),
            Some(wait) => Err(Refusal {
                retry_after: Some(wait),
                ..Refusal::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "E303",
                    "too many requests of this node; try again later",
                )
            }),
        }
    }

    /// Refuses a request whose length is not known from its head. With two ways to find the end of
    /// a body, what one reader takes for a body is a request to another.
    fn check_framing(&self) -> Result<(), Refusal> {
        let n_hosts = self.head.headers.get_all(HOST).iter().count();
        if n_hosts > 1 || (n_hosts == 0 && self.head.version == Version::HTTP_11) {
            return Err(Refusal::malformed("a request has one `Host` header"));
        }
        match self.head.headers.contains_key(TRANSFER_ENCODING) {
            false => Ok(()),
            true => Err(Refusal::new(
                StatusCode::LENGTH_REQUIRED,
                "E101",
                "send the body with `Content-Length`, without `Transfer-Encoding`",
            )),
        }
    }

    /// Refuses a caller who was accepted when the request began, and is not any more.
    fn check_again(&self) -> Result<(), Refusal> {
        let is_same = match (&self.caller, self.app.caller(self.peer)) {
            (Caller::Anonymous | Caller::Refused(_), _) => true,
            (Caller::Node(before), Caller::Node(now))
            | (Caller::ExpiredNode(before), Caller::ExpiredNode(now)) => before.uuid == now.uuid,
            (Caller::Operator(before), Caller::Operator(now)) => *before == now,
            (_, Caller::Refused(why)) => {
                return Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why));
            }
            (Caller::Node(_) | Caller::ExpiredNode(_) | Caller::Operator(_), _) => false,
        };
        let why = "the certificate is no longer accepted";
        match is_same {
            true => Ok(()),
            false => Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why)),
        }
    }

    /// Refuses a body of another type.
    fn require_type(&self, wanted: &str) -> Result<(), Refusal> {
        let kind = self.head.headers.get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        match kind.is_some_and(|kind| kind.eq_ignore_ascii_case(wanted)) {
            true => Ok(()),
            false => Err(Refusal::unsupported(format!("the body must be `{wanted}`"))),
        }
    }

    /// Reads the body as JSON. The caller is checked again after that.
    async fn body<T: DeserializeOwned>(&mut self) -> Result<T, Refusal> {
        self.body_within(usize::MAX).await
    }

    /// The same, for a body that has a limit below that of the settings.
    async fn body_within<T: DeserializeOwned>(&mut self, most: usize) -> Result<T, Refusal> {
        // Browsers send other types without asking, with the certificate of an operator.
        self.require_type("application/json")?;
        let limit = self.app.limits().body_bytes.min(most);
        let body = self.bytes_up_to(limit).await?;
        serde_json::from_slice(&body).map_err(|error| invalid_body(&error))
    }

    /// Reads the body, of any type, up to the limit of the settings.
    async fn bytes(&mut self) -> Result<BytesMut, Refusal> {
        let limit = self.app.limits().body_bytes;
        self.bytes_up_to(limit).await
    }

    /// Reads the body, of any type, up to a size.
    async fn bytes_up_to(&mut self, limit: usize) -> Result<BytesMut, Refusal> {
        let mut body = self.body.take().ok_or_else(Refusal::internal)?;
        // Known from the head: see `check_framing`.
        let length = http_body::Body::size_hint(&body).exact();
        let length = length.and_then(|length| usize::try_from(length).ok());
        let Some(length) = length.filter(|length| *length <= limit) else {
            return Err(Refusal::too_large(limit));
        };
        if !self.connection.receive(self.app.class(self.peer), length) {
            return Err(Refusal::too_many_bodies());
        }
        // The parts as they arrive may need many times their length.
        let mut bytes = BytesMut::with_capacity(length);
        let mut is_whole = true;
        while let Some(part) = body.frame().await {
            match part {
                Ok(part) => bytes.extend_from_slice(part.data_ref().map_or(&[], |data| data)),
                Err(_) => {
                    is_whole = false;
                    break;
                }
            }
        }
        self.connection.set_state(ConnectionState::Busy);
        self.check_again()?;
        match is_whole {
            true => Ok(bytes),
            false => Err(Refusal::malformed("the body could not be read")),
        }
    }
}

/// Returns the node that a caller is.
fn node_of(caller: &Caller) -> Result<Arc<NodeEntry>, Refusal> {
    match caller {
        Caller::Node(node) => Ok(node.clone()),
        Caller::ExpiredNode(_) => {
            let why = "the certificate has expired; renew it";
            Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", why))
        }
        Caller::Refused(why) => Err(Refusal::login(StatusCode::UNAUTHORIZED, "E301", *why)),
        Caller::Anonymous => {
            let why = "the node's client certificate is required";
            Err(Refusal::login(StatusCode::UNAUTHORIZED, "E300", why))
        }
        Caller::Operator(_) => Err(Refusal::forbidden("an operator is not a node")),
    }
}

/// Describes where a body is not valid, without what it contains.
fn invalid_body(error: &serde_json::Error) -> Refusal {
    let text = error.to_string();
    let place = format!("line {} column {}", error.line(), error.column());
    Refusal::malformed(match text.strip_prefix("missing field `") {
        Some(rest) => {
            let field = rest.split('`').next().unwrap_or_default();
            format!("the body has no `{field}`")
        }
        None if error.is_data() => format!("the body has another form than expected at {place}"),
        None => format!("the body is not JSON: {place}"),
    })
}

/// Returns an answer with a JSON body, indented by two as in earlier homestak tools.
fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    json_text(status, Bytes::from(text + "\n"))
}

fn json_text(status: StatusCode, text: Bytes) -> Response<Body> {
    let mut answer = Response::new(Body::from(text));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Runs work that blocks on the disk on a separate thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, homestak_store::registry::RegistryError> + Send + 'static,
) -> Result<T, Refusal> {
    // Cancel safety: the work is finished, and its result is discarded.
    match homestak_api::runtime::run_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            tracing::error!(error = %homestak_core::error::chain(&error), "the registry failed");
            Err(Refusal::internal())
        }
        Err(_) => Err(Refusal::internal()),
    }
}
