//! One request to a server, repeated when it was not reached. Nothing but the address that was
//! given is asked, at most 16 MiB are read, and what was refused is not asked again.

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

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// No spec is larger.
const LARGEST: usize = 16 << 20;

/// Who is asked, by whom, and with what.
pub(super) struct Question {
    pub(super) server: String,
    pub(super) identity: String,
    pub(super) token: Secret,
    /// `None` takes the certificate that is shown.
    pub(super) trust: Option<Trust>,
}

/// What a server says when it refuses.
#[derive(Debug, Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    error: Reason,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reason {
    code: String,
    message: String,
}

/// Returns host and port of a server.
pub(super) fn place(server: &str) -> Result<(String, u16), FetchError> {
    let plain = |url: &Url| {
        let secret = !url.username().is_empty() || url.password().is_some();
        let more = url.query().is_some() || url.fragment().is_some();
        url.scheme() == "https" && url.has_host() && !secret && !more
    };
    let url = Url::parse(server).ok().filter(plain);
    let Some(url) = url else {
        // What stands before an @ may be a password.
        let shown = server.rsplit_once('@').map_or(server, |(_, host)| host);
        return Err(FetchError::Address(shown.to_owned()));
    };
    let host = url.host_str().unwrap_or_default().to_owned();
    Ok((host, url.port_or_known_default().unwrap_or(443)))
}

/// Asks, as often as it is worth. `known` hears which certificate the server had that answered, when
/// it was taken for itself.
pub(super) fn ask(
    question: &Question,
    args: &FetchArgs,
    known: impl Fn(Fingerprint) -> Result<(), AgentError>,
) -> Result<String, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| FetchError::Setup(error.to_string()))?;
    let mut attempt = 1;
    let mut pause = args.wait;
    loop {
        let answer = match trusted(question) {
            Err(fault) => Err(fault),
            Ok(trust) => {
                let answer = runtime.block_on(once(question, &trust));
                let lost = matches!(
                    answer,
                    Err(FetchError::Unreachable { .. } | FetchError::Certificate { .. })
                );
                if let (Trust::Pinned(fingerprint), false) = (trust, lost) {
                    known(fingerprint)?;
                }
                answer
            }
        };
        let fault = match answer {
            Ok(text) => return Ok(text),
            Err(fault) => fault,
        };
        if !fault.is_passing() || attempt >= args.attempts {
            return Err(fault.after(attempt).into());
        }
        ui::say(&format!(
            "{fault}; asking again in {pause} s ({attempt} of {} times asked)",
            args.attempts
        ));
        clock::moment(pause.saturating_mul(1_000));
        pause = pause.saturating_mul(2);
        attempt += 1;
    }
}

/// Returns whom to trust: the certificate that is shown, when nothing else was said.
fn trusted(question: &Question) -> Result<Trust, FetchError> {
    if let Some(trust) = &question.trust {
        return Ok(trust.clone());
    }
    let server = &question.server;
    let (host, port) = place(server)?;
    let shown = probe::fingerprint(&host, port).map_err(|error| FetchError::Unreachable {
        server: server.clone(),
        attempts: 1,
        why: chain(&error),
    })?;
    ui::say(&format!(
        "notice: --insecure trusts {server} with the certificate it shows: {shown}"
    ));
    Ok(Trust::Pinned(shown))
}

async fn once(question: &Question, trust: &Trust) -> Result<String, FetchError> {
    let server = &question.server;
    let lost = |error: reqwest::Error| unreachable(server, &error);
    let config = trust::client_config(trust).map_err(FetchError::Trust)?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(PATIENCE)
        .build()
        .map_err(|error| FetchError::Setup(error.to_string()))?;
    let request = client
        .get(format!("{server}/spec/{}", question.identity))
        .header(ACCEPT, "application/json")
        .bearer_auth(question.token.expose());
    let mut response = request.send().await.map_err(lost)?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > LARGEST {
            return Err(FetchError::NoSpec(vec![
                "the answer is larger than 16 MiB".to_owned(),
            ]));
        }
        body.extend_from_slice(&chunk);
    }
    if status.is_success() {
        let text = String::from_utf8(body);
        return text.map_err(|_| FetchError::NoSpec(vec!["the answer is no text".to_owned()]));
    }
    let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
    Err(FetchError::Refused {
        server: server.clone(),
        status: status.as_u16(),
        code: refusal.error.code,
        message: refusal.error.message,
    })
}

/// Judges a question that got no answer.
fn unreachable(server: &str, error: &reqwest::Error) -> FetchError {
    let whole = chain(error);
    // The address is part of the first words, and known.
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
