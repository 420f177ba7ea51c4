//! The request for a spec, repeated while the server is unreachable. No redirects, no proxy, at most
//! 16 MiB.

use std::time::Duration;

use homestak_api::probe;
use homestak_api::trust::{self, Fingerprint, Trust};
use homestak_core::doc::secrets::Secret;
use homestak_core::error::chain;
use reqwest::Url;
use reqwest::header::ACCEPT;
use serde::Deserialize;

use crate::args::FetchArgs;
use crate::error::{AgentError, FetchError};
use crate::{clock, ui};

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest spec.
const MAX_SIZE: usize = 16 << 20;

/// A request for the spec of a machine.
pub(super) struct SpecRequest {
    pub(super) server: String,
    pub(super) identity: String,
    pub(super) token: Secret,
    /// `None` trusts the certificate that the server presents.
    pub(super) trust: Option<Trust>,
}

/// The body of an error response.
#[derive(Debug, Default, Deserialize)]
struct ErrorResponse {
    #[serde(default)]
    error: ErrorBody,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    code: String,
    message: String,
}

/// Returns host and port of a server.
pub(super) fn host_and_port(server: &str) -> Result<(String, u16), FetchError> {
    let plain = |url: &Url| {
        let secret = !url.username().is_empty() || url.password().is_some();
        let more = url.query().is_some() || url.fragment().is_some();
        url.scheme() == "https" && url.has_host() && !secret && !more
    };
    let url = Url::parse(server).ok().filter(plain);
    let Some(url) = url else {
        // The part before an @ may be a password.
        let shown = server.rsplit_once('@').map_or(server, |(_, host)| host);
        return Err(FetchError::Address(shown.to_owned()));
    };
    let host = url.host_str().unwrap_or_default().to_owned();
    Ok((host, url.port_or_known_default().unwrap_or(443)))
}

/// Sends a request, and repeats it after transient errors. `trusted` is called with the fingerprint of a
/// pinned server that responded.
pub(super) fn fetch(
    request: &SpecRequest,
    args: &FetchArgs,
    trusted: impl Fn(Fingerprint) -> Result<(), AgentError>,
) -> Result<String, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| FetchError::Setup(error.to_string()))?;
    let mut attempt = 1;
    let mut pause = args.wait;
    loop {
        let response = match trust_of(request) {
            Err(error) => Err(error),
            Ok(trust) => {
                let response = runtime.block_on(send(request, &trust));
                let lost = matches!(
                    response,
                    Err(FetchError::Unreachable { .. } | FetchError::Certificate { .. })
                );
                if let (Trust::Pinned(fingerprint), false) = (trust, lost) {
                    trusted(fingerprint)?;
                }
                response
            }
        };
        let error = match response {
            Ok(text) => return Ok(text),
            Err(error) => error,
        };
        if !error.is_transient() || attempt >= args.attempts {
            return Err(error.after(attempt).into());
        }
        ui::message(&format!(
            "{error}; retrying in {pause} s (attempt {attempt} of {})",
            args.attempts
        ));
        clock::sleep(pause.saturating_mul(1_000));
        pause = pause.saturating_mul(2);
        attempt += 1;
    }
}

/// Returns what to trust; for `--insecure` the certificate that the server presents.
fn trust_of(request: &SpecRequest) -> Result<Trust, FetchError> {
    if let Some(trust) = &request.trust {
        return Ok(trust.clone());
    }
    let server = &request.server;
    let (host, port) = host_and_port(server)?;
    let shown = probe::fingerprint(&host, port).map_err(|error| FetchError::Unreachable {
        server: server.clone(),
        attempts: 1,
        why: chain(&error),
    })?;
    ui::message(&format!(
        "notice: --insecure trusts the certificate that {server} presents: {shown}"
    ));
    Ok(Trust::Pinned(shown))
}

async fn send(request: &SpecRequest, trust: &Trust) -> Result<String, FetchError> {
    let server = &request.server;
    let lost = |error: reqwest::Error| unreachable(server, &error);
    let config = trust::client_config(trust).map_err(FetchError::Trust)?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(TIMEOUT)
        .build()
        .map_err(|error| FetchError::Setup(error.to_string()))?;
    let request = client
        .get(format!("{server}/spec/{}", request.identity))
        .header(ACCEPT, "application/json")
        .bearer_auth(request.token.expose());
    let mut response = request.send().await.map_err(lost)?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > MAX_SIZE {
            return Err(FetchError::NoSpec(vec![
                "the response is larger than 16 MiB".to_owned(),
            ]));
        }
        body.extend_from_slice(&chunk);
    }
    if status.is_success() {
        let text = String::from_utf8(body);
        return text.map_err(|_| FetchError::NoSpec(vec!["the response is not UTF-8".to_owned()]));
    }
    let response_error: ErrorResponse = serde_json::from_slice(&body).unwrap_or_default();
    Err(FetchError::Refused {
        server: server.clone(),
        status: status.as_u16(),
        code: response_error.error.code,
        message: response_error.error.message,
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
