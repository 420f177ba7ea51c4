//! One question to a server, asked again when the way was bad.
//!
//! In: a question. Out: the text of a spec.
//! Never: another address than the one asked; an answer of more than 16 MiB; a question asked again
//! that was understood and refused.

use std::time::Duration;

use homestak_api::trust;
use reqwest::Url;
use reqwest::header::ACCEPT;
use serde::Deserialize;

use super::{FetchError, Question};
use crate::args::FetchArgs;
use crate::{clock, ui};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// No spec is larger.
const LARGEST: usize = 16 << 20;

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
    let url = address(server)?;
    let host = url.host_str().unwrap_or_default().to_owned();
    Ok((host, url.port_or_known_default().unwrap_or(443)))
}

fn address(server: &str) -> Result<Url, FetchError> {
    let url = Url::parse(server).ok();
    let plain = |url: &Url| {
        url.scheme() == "https"
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
    };
    url.filter(plain)
        .ok_or_else(|| FetchError::Address(server.to_owned()))
}

/// Asks, as often as it is worth.
pub(super) fn ask(question: &Question, args: &FetchArgs) -> Result<String, FetchError> {
    address(&question.server)?;
    let url = format!("{}/spec/{}", question.server, question.identity);
    let config = trust::client_config(&question.trust).map_err(FetchError::Trust)?;
    let setup = |error: &dyn std::fmt::Display| FetchError::Setup(error.to_string());
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(PATIENCE)
        .build()
        .map_err(|error| setup(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| setup(&error))?;
    let mut attempt = 1;
    let mut pause = args.wait;
    loop {
        let fault = match runtime.block_on(once(&client, &url, question)) {
            Ok(text) => return Ok(text),
            Err(fault) => fault,
        };
        if !fault.is_passing() || attempt >= args.attempts {
            return Err(fault.after(attempt));
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

async fn once(
    client: &reqwest::Client,
    url: &str,
    question: &Question,
) -> Result<String, FetchError> {
    let server = &question.server;
    let lost = |error: reqwest::Error| unreachable(server, &error);
    let request = client.get(url).header(ACCEPT, "application/json");
    let sent = request.bearer_auth(&question.token).send().await;
    let mut response = sent.map_err(lost)?;
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
    let whole = homestak_core::error::chain(error);
    // The address is part of the first words, and known.
    let why = whole.split_once("): ").map_or(&*whole, |(_, why)| why);
    let server = server.to_owned();
    let why = why.to_owned();
    if whole.contains("not the recorded one") || whole.contains("invalid peer certificate") {
        return FetchError::Certificate { server, why };
    }
    FetchError::Unreachable {
        server,
        attempts: 1,
        why,
    }
}
