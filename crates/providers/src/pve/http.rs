//! HTTPS transport with connection reuse, limits and timeouts; every failure is classified.
//!
//! Connections are always verified, errors contain no secrets, and changes are not sent twice.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use homestak_api::runtime::{SharedClock, checkpoint, interruptible};
use homestak_api::trust;
use homestak_core::foreign::ForeignText;
use homestak_engine::context;
use homestak_engine::journal::Fence;
use homestak_engine::ports::{ErrorClass, Sent};
use reqwest::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::error::{PveError, Reason, classify};
use super::notifier::Notifier;
use super::requests::{ApiCall, Method, TICKET};
use super::session::{LoginSession, Ticket};
use super::settings::{Credential, Endpoint, PveLimits, PveSettings};
use super::upload::Upload;

/// How long a response is still waited for after an interrupt.
const ROOM: Duration = Duration::from_millis(500);
/// Connections idle longer are dropped by the server (5 s); a request on such a one would be lost.
const IDLE: Duration = Duration::from_secs(4);
/// The largest answer that is read; 10,000 guests are about 5 MB.
const MAX_RESPONSE: usize = 64 << 20;
/// Seconds for which an unreachable host is called through the entry host.
const DOWN_SECONDS: i64 = 60;
/// How often a query is sent on connection failures.
const ATTEMPTS: u32 = 4;

/// An answer.
#[derive(Debug)]
pub struct ApiResponse {
    /// The requested data.
    pub data: Value,
    /// How much there is in all, where the answer is a part.
    pub total: Option<u64>,
}

/// The connections to a Proxmox VE cluster.
pub(super) struct Transport {
    entry: HostConnection,
    nodes: BTreeMap<String, HostConnection>,
    credential: Credential,
    session: LoginSession,
    clock: SharedClock,
    limits: PveLimits,
    pub(super) notifier: Notifier,
    sent: AtomicU64,
}

/// One address.
struct HostConnection {
    base: String,
    client: reqwest::Client,
    in_flight: Semaphore,
    uploads: Semaphore,
    /// Until when it is not tried, in seconds since 1970.
    down_until: AtomicI64,
    /// Whether it has accepted us, so that a refusal is a change.
    accepted: AtomicBool,
}

impl HostConnection {
    fn new(endpoint: &Endpoint, limits: &PveLimits) -> Result<Self, PveError> {
        let config = trust::client_config(&endpoint.trust).map_err(|error| {
            PveError::new(ErrorClass::Refused, Reason::Certificate, format!("{error}"))
        })?;
        let url = reqwest::Url::parse(&endpoint.url)
            .ok()
            .filter(|url| url.scheme() == "https" && url.has_host())
            .ok_or_else(|| {
                let detail = format!("`{}` is not an https URL", endpoint.url);
                PveError::new(ErrorClass::Refused, Reason::Other, detail)
                    .with_hint("write it as https://host:8006")
            })?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(limits.in_flight)
            .connect_timeout(limits.connect)
            .build()
            .map_err(|error| PveError::bug(chain(&error)))?;
        Ok(Self {
            base: format!("{}/api2/json", url.as_str().trim_end_matches('/')),
            client,
            in_flight: Semaphore::new(limits.in_flight.max(1)),
            uploads: Semaphore::new(limits.uploads.max(1)),
            down_until: AtomicI64::new(0),
            accepted: AtomicBool::new(false),
        })
    }

    /// Adds to a rejection that the host accepted the certificate or token before.
    fn note_change(
        &self,
        result: Result<ApiResponse, PveError>,
        credential: &Credential,
    ) -> Result<ApiResponse, PveError> {
        let mut error = match result {
            Ok(answer) => {
                self.accepted.store(true, Ordering::Relaxed);
                return Ok(answer);
            }
            Err(error) => error,
        };
        if !self.accepted.load(Ordering::Relaxed) {
            return Err(error);
        }
        match (error.reason, credential) {
            (Reason::Certificate, _) => {
                let detail = format!(
                    "the host's certificate changed during the run: {}",
                    error.detail
                );
                error.detail = detail.into();
            }
            (Reason::Unauthenticated, Credential::Token(_)) => {
                let detail = format!(
                    "the host rejects the token that it accepted before: {}",
                    error.detail
                );
                error.detail = detail.into();
                error.hint = "check whether the token was removed or has expired: `pveum user token list USER` on the host".to_owned();
            }
            _ => {}
        }
        Err(error)
    }
}

impl Transport {
    /// Prepares the connections; nothing is sent.
    pub(super) fn new(settings: &PveSettings, clock: SharedClock) -> Result<Self, PveError> {
        let limits = settings.limits.clone();
        let nodes = settings
            .nodes
            .iter()
            .map(|(name, endpoint)| Ok((name.clone(), HostConnection::new(endpoint, &limits)?)))
            .collect::<Result<_, PveError>>()?;
        Ok(Self {
            entry: HostConnection::new(&settings.endpoint, &limits)?,
            nodes,
            credential: settings.credential.clone(),
            session: LoginSession::default(),
            clock,
            limits,
            notifier: Notifier::default(),
            sent: AtomicU64::new(0),
        })
    }

    /// Returns how many requests were sent so far.
    pub(super) fn requests(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Sends a call. Queries are retried on connection failures; changes only if they were certainly
    /// not sent.
    pub(super) async fn send(&self, call: &ApiCall) -> Result<ApiResponse, PveError> {
        let mut pause = Duration::from_millis(200);
        let mut asked = 1;
        loop {
            let error = match self.send_once(call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let again = match call.method() {
                Method::Get => error.is_transient(),
                Method::Post | Method::Put | Method::Delete => {
                    error.class == ErrorClass::Unreachable { sent: Sent::No }
                }
            };
            if !again || asked >= ATTEMPTS {
                return Err(error);
            }
            asked += 1;
            self.clock.sleep(pause).await;
            pause = (pause * 3).min(Duration::from_secs(5));
        }
    }

    /// Sends a call once, straight to the host it is about where that is possible. A session that
    /// ran out is renewed.
    pub(super) async fn send_once(&self, call: &ApiCall) -> Result<ApiResponse, PveError> {
        let now = self.clock.now().as_second();
        let own = call
            .node()
            .and_then(|node| self.nodes.get(node))
            .filter(|connection| connection.down_until.load(Ordering::Relaxed) <= now);
        let Some(connection) = own else {
            return self.send_signed(&self.entry, call).await;
        };
        match self.send_signed(connection, call).await {
            // The host may be reachable from the entry, when it is not from here.
            Err(error) if error.class == (ErrorClass::Unreachable { sent: Sent::No }) => {
                connection
                    .down_until
                    .store(now + DOWN_SECONDS, Ordering::Relaxed);
                self.send_signed(&self.entry, call).await
            }
            result => result,
        }
    }

    async fn send_signed(
        &self,
        connection: &HostConnection,
        call: &ApiCall,
    ) -> Result<ApiResponse, PveError> {
        let (headers, ticket) = self.sign(connection).await?;
        let result = self.exchange(connection, call, headers).await;
        match (&result, ticket) {
            (Err(error), Some(ticket)) if error.reason == Reason::Unauthenticated => {
                self.session.drop(&ticket);
                let (headers, _) = self.sign(connection).await?;
                self.exchange(connection, call, headers).await
            }
            _ => result,
        }
    }

    /// Sends a file. Its parts have the order the server wants.
    pub(super) async fn upload(
        &self,
        call: &ApiCall,
        upload: Upload,
    ) -> Result<ApiResponse, PveError> {
        let path = call.path()?;
        let own = call.node().and_then(|node| self.nodes.get(node));
        let connection = own.unwrap_or(&self.entry);
        let (headers, _) = self.sign(connection).await?;
        let _permit = match connection.uploads.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                self.notifier.waiting("other uploads to the same host");
                permit(&connection.uploads).await?
            }
        };
        let (form, progress) = upload.into_form(call).await?;
        let request = connection
            .client
            .post(format!("{}{path}", connection.base))
            .headers(headers)
            .headers(fence()?)
            .multipart(form);
        self.sent.fetch_add(1, Ordering::Relaxed);
        // Cancel safety: dropping the request closes the connection; the server then discards the
        // part it received. The stall timer changes nothing.
        tokio::select! {
            answer = receive(request) => connection.note_change(answer, &self.credential),
            () = progress.wait_for_stall(&self.clock, self.limits.upload_stall) => {
                Err(lost(format!("the upload made no progress for {:?}", self.limits.upload_stall)))
            }
        }
    }

    async fn exchange(
        &self,
        connection: &HostConnection,
        call: &ApiCall,
        headers: HeaderMap,
    ) -> Result<ApiResponse, PveError> {
        let url = format!("{}{}", connection.base, call.path()?);
        let request = match call.method() {
            Method::Get => connection.client.get(url).query(call.params()),
            Method::Delete => connection.client.delete(url).query(call.params()),
            Method::Post => connection.client.post(url).form(call.params()),
            Method::Put => connection.client.put(url).form(call.params()),
        };
        let _permit = permit(&connection.in_flight).await?;
        checkpoint().await;
        self.sent.fetch_add(1, Ordering::Relaxed);
        // Cancel safety: dropping this may leave a request that is acted on; callers that are
        // dropped are repeated, and probe first.
        let request = match call.method() {
            Method::Get => request,
            Method::Post | Method::Put | Method::Delete => request.headers(fence()?),
        };
        let request = request.headers(headers).timeout(self.limits.answer);
        let result = interruptible(ROOM, receive(request)).await;
        let result = connection.note_change(result, &self.credential);
        trace(call, &result);
        result
    }

    /// Returns the headers with the credentials.
    async fn sign(
        &self,
        connection: &HostConnection,
    ) -> Result<(HeaderMap, Option<Ticket>), PveError> {
        let mut headers = HeaderMap::new();
        let (user, password) = match &self.credential {
            Credential::Token(token) => {
                headers.insert(AUTHORIZATION, secret(&token.header())?);
                return Ok((headers, None));
            }
            Credential::Login { user, password } => (user, password),
        };
        let ticket = match self.session.current(self.clock.now()) {
            Some(ticket) => ticket,
            None => {
                let call = ApiCall::to(&TICKET)
                    .param("username", user)
                    .param("password", password.expose());
                let answer = self.exchange(connection, &call, HeaderMap::new()).await?;
                self.session.renew(&answer.data, self.clock.now())?
            }
        };
        headers.insert(COOKIE, secret(&ticket.cookie())?);
        let csrf = HeaderName::from_static("csrfpreventiontoken");
        headers.insert(csrf, secret(ticket.csrf())?);
        Ok((headers, Some(ticket)))
    }
}

/// Returns the header with the number under which the run of a change holds the host. Proxmox VE
/// ignores it; a simulator refuses an older number than the highest it has seen.
fn fence() -> Result<HeaderMap, PveError> {
    let header = |fence: Fence| {
        let value = format!("{} {}", fence.scope, fence.number);
        let value =
            HeaderValue::from_str(&value).map_err(|error| PveError::bug(error.to_string()))?;
        Ok((HeaderName::from_static("x-homestak-fence"), value))
    };
    context::fence().map(header).into_iter().collect()
}

/// Logs a call and its result, without parameters, which may contain secrets.
fn trace(call: &ApiCall, result: &Result<ApiResponse, PveError>) {
    let method = call.method();
    let path = call.path().unwrap_or_default();
    match result {
        Ok(_) => tracing::trace!(?method, path, "answered"),
        Err(error) => tracing::debug!(?method, path, reason = ?error.reason, "not answered"),
    }
}

async fn permit(semaphore: &Semaphore) -> Result<tokio::sync::SemaphorePermit<'_>, PveError> {
    let permit = semaphore.acquire().await;
    permit.map_err(|_| PveError::bug("the limit of requests was closed"))
}

fn secret(text: &str) -> Result<HeaderValue, PveError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        PveError::new(
            ErrorClass::Refused,
            Reason::Other,
            "the credential contains invalid characters",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

async fn receive(request: reqwest::RequestBuilder) -> Result<ApiResponse, PveError> {
    let mut response = request.send().await.map_err(|error| undelivered(&error))?;
    let status = response.status();
    let phrase = response
        .extensions()
        .get::<hyper::ext::ReasonPhrase>()
        .map(|phrase| String::from_utf8_lossy(phrase.as_bytes()).into_owned())
        .unwrap_or_else(|| status.canonical_reason().unwrap_or_default().to_owned());
    let mut body = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| lost(chain(&error)))?
    {
        if body.len() + chunk.len() > MAX_RESPONSE {
            return Err(PveError::invalid_response(
                "the response is larger than 64 MiB",
            ));
        }
        body.extend_from_slice(&chunk);
    }
    if !status.is_success() {
        return Err(classify(status.as_u16(), &phrase, &body));
    }
    parse_response(&body)
}

/// Reads a successful answer.
pub fn parse_response(body: &[u8]) -> Result<ApiResponse, PveError> {
    let json: Value = serde_json::from_slice(body).map_err(|_| {
        PveError::invalid_response("the response is not JSON; is this a Proxmox VE host?")
    })?;
    let Value::Object(mut object) = json else {
        return Err(PveError::invalid_response("the response is not an object"));
    };
    let total = object.get("total").and_then(super::quirks::parse_u64);
    match object.remove("data") {
        Some(data) => Ok(ApiResponse { data, total }),
        None => Err(PveError::invalid_response("the response has no data")),
    }
}

fn lost(detail: impl Into<ForeignText>) -> PveError {
    let class = ErrorClass::Unreachable { sent: Sent::Maybe };
    PveError::new(class, Reason::Connection, detail)
}

/// Classifies a request without a response.
fn undelivered(error: &reqwest::Error) -> PveError {
    let text = chain(error);
    if trust::is_untrusted(error) {
        return PveError::new(ErrorClass::Refused, Reason::Certificate, text).with_hint(
            "compare with `pvenode cert info` on the host; record the new fingerprint only \
             if the certificate was changed on purpose",
        );
    }
    if error.is_builder() {
        return PveError::bug(text);
    }
    if error.is_connect() {
        let class = ErrorClass::Unreachable { sent: Sent::No };
        return PveError::new(class, Reason::Connection, text);
    }
    lost(text)
}

/// Joins an error and its causes, without the address, which is known.
fn chain(error: &reqwest::Error) -> String {
    let mut parts = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if parts.last() != Some(&text) {
            parts.push(text);
        }
        source = cause.source();
    }
    if parts.is_empty() {
        let text = if error.is_timeout() {
            "timed out"
        } else {
            "the request failed"
        };
        parts.push(text.to_owned());
    }
    parts.join(": ")
}
