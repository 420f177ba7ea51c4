//! HTTPS to servers: no redirects, no proxy, answers of limited size. Every failure is classified as
//! unreachable, untrusted or refused.

use std::time::Duration;

use homestak_api::trust::{self, TlsCredential, Trust};
use homestak_core::error::chain;
use reqwest::{Client, RequestBuilder, StatusCode, header::HeaderMap};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::FetchError;

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of connecting: an address that does not answer must not hold up the others.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it takes to notice which connections were closed.
const NOTICE_CLOSED: Duration = Duration::from_millis(1);
/// The largest answer, which is a spec.
const MAX_SIZE: usize = 16 << 20;

/// An answer that is not a refusal.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// The body of a refusal: as in earlier homestak tools, or of RFC 9457.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RefusalBody {
    error: RefusalError,
    code: String,
    detail: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RefusalError {
    code: String,
    message: String,
}

/// Creates a client, with a certificate of its own if there is one.
pub(crate) fn client(trust: &Trust, own: Option<TlsCredential>) -> Result<Client, FetchError> {
    let config = trust::client_config_with_credential(trust, own).map_err(FetchError::Trust)?;
    Client::builder()
        .tls_backend_preconfigured(config)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(TIMEOUT)
        .build()
        .map_err(|error| FetchError::Setup(error.to_string()))
}

/// Creates what requests run on.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, FetchError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| FetchError::Setup(error.to_string()))
}

/// Keeps this process running when the SSH session that started it ends.
pub(crate) fn ignore_hangup() -> Result<tokio::runtime::Runtime, FetchError> {
    let runtime = runtime()?;
    {
        let _entered = runtime.enter();
        // Without a handler, a disconnect ends it; then the next pass does the rest.
        _ = signal(SignalKind::hangup());
    }
    Ok(runtime)
}

/// Sends a request to a server, and reads the answer. 304 is no refusal.
pub(crate) async fn send(server: &str, request: RequestBuilder) -> Result<Answer, FetchError> {
    send_limited(server, request, MAX_SIZE).await
}

/// The same for an answer of another size, in bytes.
pub(crate) async fn send_limited(
    server: &str,
    request: RequestBuilder,
    limit: usize,
) -> Result<Answer, FetchError> {
    let lost = |error: reqwest::Error| unreachable(server, &error);
    // A runtime runs during requests only: without a moment to notice it, the request would be written
    // to a connection that the server has closed since the last one, and be lost.
    tokio::time::sleep(NOTICE_CLOSED).await;
    let mut response = request.send().await.map_err(lost)?;
    let status = response.status();
    let headers = response.headers().clone();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > limit {
            return Err(FetchError::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return Ok(Answer {
            status,
            headers,
            body,
        });
    }
    let refusal: RefusalBody = serde_json::from_slice(&body).unwrap_or_default();
    let first = |one: String, other: String| if one.is_empty() { other } else { one };
    Err(FetchError::Refused {
        server: server.to_owned(),
        status: status.as_u16(),
        code: first(refusal.error.code, refusal.code),
        message: first(refusal.error.message, refusal.detail),
    })
}

/// Classifies a failed request.
fn unreachable(server: &str, error: &reqwest::Error) -> FetchError {
    let whole = chain(error);
    // Without the URL, which is in the message already.
    let why = whole.split_once("): ").map_or(&*whole, |(_, why)| why);
    let server = server.to_owned();
    let why = why.to_owned();
    if trust::is_untrusted(error) {
        return FetchError::Certificate { server, why };
    }
    FetchError::Unreachable {
        server,
        attempts: 1,
        why,
    }
}
