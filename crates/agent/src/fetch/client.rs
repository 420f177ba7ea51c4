//! The request for a spec, repeated while the server is unreachable.

use homestak_api::probe;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::doc::secrets::Secret;
use homestak_core::error::chain;
use reqwest::Url;
use reqwest::header::ACCEPT;

use crate::args::FetchArgs;
use crate::error::{AgentError, FetchError};
use crate::{clock, http, ui};

/// A request for the spec of a machine.
pub(super) struct SpecRequest {
    pub(super) server: String,
    pub(super) identity: String,
    pub(super) token: Secret,
    /// `None` trusts the certificate that the server presents.
    pub(super) trust: Option<Trust>,
}

/// Returns host and port of a server.
pub(crate) fn host_and_port(server: &str) -> Result<(String, u16), FetchError> {
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
    let runtime = http::runtime()?;
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
                if let (Some(fingerprint), false) = (pinned(&trust), lost) {
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

/// Returns the fingerprint that a server was recognised by.
fn pinned(trust: &Trust) -> Option<Fingerprint> {
    match trust {
        Trust::Pinned(fingerprint) => Some(*fingerprint),
        Trust::Site(fingerprints) | Trust::SiteSince(fingerprints, _) => {
            fingerprints.first().copied()
        }
        Trust::WebPki | Trust::Authority(_) => None,
    }
}

async fn send(request: &SpecRequest, trust: &Trust) -> Result<String, FetchError> {
    let server = &request.server;
    let client = http::client(trust, None)?;
    let request = client
        .get(format!("{server}/spec/{}", request.identity))
        .header(ACCEPT, "application/json")
        .bearer_auth(request.token.expose());
    let answer = http::send(server, request).await?;
    String::from_utf8(answer.body)
        .map_err(|_| FetchError::NoSpec(vec!["the response is not UTF-8".to_owned()]))
}
