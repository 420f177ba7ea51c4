//! One request again and again: on open connections, or each time with a full handshake.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::certificate::Credential;
use homestak_api::limit::monotonic;
use homestak_api::trust::{Trust, client_config_with_credential};
use serde_json::json;

use crate::{Failure, percentile};

/// As many clients as wrk has.
const CLIENTS: usize = 32;

/// A request that is repeated.
#[derive(serde::Deserialize)]
pub(crate) struct RepeatedRequest {
    headers: BTreeMap<String, String>,
    /// The status of its answer.
    status: u16,
    /// A file with the certificate of the client in its first line.
    credential: Option<PathBuf>,
    /// Whether connections stay open.
    keep: bool,
}

/// Repeats a request.
pub(crate) async fn repeat(
    url: &str,
    trust: &Trust,
    request: RepeatedRequest,
    lasting: Duration,
) -> Result<serde_json::Value, Failure> {
    let own = request.credential.as_ref().map(|path| {
        let text = fs_err::read_to_string(path)?;
        let first = text.lines().next().ok_or("there is no certificate")?;
        Ok::<_, Failure>(Credential::from_text(first)?.for_tls()?)
    });
    let mut config = client_config_with_credential(trust, own.transpose()?)?;
    config.resumption = rustls::client::Resumption::disabled();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .pool_max_idle_per_host(if request.keep { CLIENTS } else { 0 })
        .http1_only()
        .no_proxy()
        .build()?;
    let request = Arc::new(request);
    let mut tasks = tokio::task::JoinSet::new();
    let begun = monotonic();
    for _ in 0..CLIENTS {
        let (client, url, request) = (client.clone(), url.to_owned(), request.clone());
        tasks.spawn(async move {
            let (mut taken, mut n_errors) = (Vec::new(), 0_u32);
            while monotonic() < begun + lasting {
                let started = monotonic();
                let headers = request.headers.iter();
                let repeated = headers.fold(client.get(&url), |repeated, (name, value)| {
                    repeated.header(name, value)
                });
                let answer = match repeated.send().await {
                    Ok(answer) if answer.status() == request.status => answer.bytes().await.ok(),
                    Ok(_) | Err(_) => None,
                };
                match answer {
                    Some(_) => taken.push(monotonic().saturating_sub(started)),
                    None => n_errors += 1,
                }
            }
            (taken, n_errors)
        });
    }
    let (mut taken, mut n_errors) = (Vec::new(), 0);
    while let Some(ended) = tasks.join_next().await {
        let (times, errors) = ended?;
        taken.extend(times);
        n_errors += errors;
    }
    taken.sort_unstable();
    Ok(json!({
        "requests": taken.len(), "errors": n_errors,
        "seconds": monotonic().saturating_sub(begun).as_secs_f64(),
        "p50": percentile(&taken, 0.5), "p99": percentile(&taken, 0.99),
    }))
}
