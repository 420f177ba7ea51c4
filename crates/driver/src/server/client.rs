//! Queries a server as an operator: with the driver's client certificate, over TLS that ends at the
//! site's authority. A server that accepts it serves this site.

use std::time::Duration;

use homestak_api::certificate::{CertificateError, Credential};
use homestak_api::trust::{
    Fingerprint, Trust, TrustError, client_config_with_credential, is_untrusted,
};
use homestak_api::v1::node_job::{JobDetail, JobStatus, JobSubmission, Jobs};
use homestak_api::v1::node_status::{NodeStatus, Nodes, Revocation, TokenStatus, Tokens};
use homestak_api::v1::report::Reports;
use homestak_core::foreign::{ForeignText, escape_json};
use homestak_engine::ports::{ErrorClass, Sent};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::DriverError;

/// The time limit of a request, beside what the request itself waits for.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How large an answer may be, in bytes: far more than the largest list has. A server must not fill the
/// memory of its driver.
const MAX_ANSWER: usize = 32 << 20;

/// Why a server could not be queried.
#[derive(Debug, thiserror::Error)]
pub enum ServerClientError {
    /// The client could not be created.
    #[error("set up the connection to the server")]
    Setup(#[source] reqwest::Error),
    /// The operator's certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// TLS could not be set up.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// No answer.
    #[error("no answer from {url}")]
    Unreachable {
        /// The server.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// The answer is not what was asked for.
    #[error("the answer of {url} cannot be read")]
    Unreadable {
        /// The server.
        url: String,
    },
    /// The server refused.
    #[error("{url} answered {status}: {detail}")]
    Refused {
        /// The server.
        url: String,
        /// The status code.
        status: u16,
        /// The reason it gave.
        detail: String,
    },
}

impl From<ServerClientError> for DriverError {
    fn from(error: ServerClientError) -> Self {
        let class = match &error {
            ServerClientError::Unreachable { .. } => {
                Some(ErrorClass::Unreachable { sent: Sent::Maybe })
            }
            ServerClientError::Refused { status, .. } if is_busy(*status) => Some(ErrorClass::Busy),
            ServerClientError::Setup(_)
            | ServerClientError::Certificate(_)
            | ServerClientError::Trust(_)
            | ServerClientError::Unreadable { .. }
            | ServerClientError::Refused { .. } => None,
        };
        let text = homestak_core::error::chain(&error);
        let failed = Self::failed(format!("The server could not be queried: {text}."));
        Self { class, ..failed }
    }
}

/// Returns whether a status code means that the request is to be repeated later.
fn is_busy(status: u16) -> bool {
    matches!(status, 429 | 503)
}

impl ServerClientError {
    /// Returns why a server that answers does not serve this site; `None` when nothing answers.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Refused { detail, .. } => {
                Some(format!("it does not accept this driver: {detail}"))
            }
            Self::Unreachable { .. } if self.is_foreign() => {
                Some("its certificate is not one that this site knows".to_owned())
            }
            Self::Unreachable { .. }
            | Self::Setup(_)
            | Self::Certificate(_)
            | Self::Trust(_)
            | Self::Unreadable { .. } => None,
        }
    }

    /// Returns whether a server answered with a certificate that this site does not know.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if is_untrusted(source))
    }

    /// Returns whether a repeated request may succeed: there was no answer, or the server is busy.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => is_busy(*status),
            Self::Setup(_) | Self::Certificate(_) | Self::Trust(_) | Self::Unreadable { .. } => {
                false
            }
        }
    }

    /// Returns whether the server answered and has no such node, token or job.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }
}

/// An operator's connection to a server.
#[derive(Clone)]
pub struct ServerClient {
    url: String,
    http: reqwest::Client,
}

impl ServerClient {
    /// Uses the server at a URL. It must show one of the certificates, or one that they signed.
    pub fn new(
        url: &str,
        fingerprints: &[String],
        operator: &Credential,
    ) -> Result<Self, ServerClientError> {
        let known = fingerprints
            .iter()
            .filter_map(|text| Fingerprint::parse(text));
        let trust = Trust::Site(known.collect());
        let config = client_config_with_credential(&trust, Some(operator.for_tls()?))?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(TIMEOUT)
            .build()
            .map_err(ServerClientError::Setup)?;
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            http,
        })
    }

    /// Returns the URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the server answers, and accepts this driver as an operator.
    pub async fn is_healthy(&self) -> bool {
        self.nodes().await.is_ok()
    }

    /// Returns all nodes.
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>, ServerClientError> {
        Ok(self.get::<Nodes>("nodes", TIMEOUT).await?.nodes)
    }

    /// Returns a node.
    pub async fn node(&self, uuid: &str) -> Result<NodeStatus, ServerClientError> {
        self.get(&format!("nodes/{uuid}"), TIMEOUT).await
    }

    /// Returns the reports of a node after one; waits for the first for a while.
    pub async fn reports(
        &self,
        uuid: &str,
        after: i64,
        wait: Duration,
    ) -> Result<Reports, ServerClientError> {
        let path = format!("nodes/{uuid}/reports?after={after}&wait={}", wait.as_secs());
        let found = self.get(&path, TIMEOUT + wait).await?;
        escaped(found).ok_or_else(|| self.unreadable())
    }

    /// Revokes a node's certificate.
    pub async fn revoke_node(
        &self,
        uuid: &str,
        reason: &str,
    ) -> Result<NodeStatus, ServerClientError> {
        let reason = reason.to_owned();
        self.post(&format!("nodes/{uuid}/revoke"), &Revocation { reason })
            .await
    }

    /// Returns the provisioning tokens that were issued.
    pub async fn tokens(&self) -> Result<Vec<TokenStatus>, ServerClientError> {
        Ok(self.get::<Tokens>("tokens", TIMEOUT).await?.tokens)
    }

    /// Revokes a token.
    pub async fn revoke_token(&self, id: &str) -> Result<TokenStatus, ServerClientError> {
        self.post(&format!("tokens/{id}/revoke"), &Revocation::default())
            .await
    }

    /// Submits a signed job for a node. The same statement again returns the same job.
    pub async fn submit_job(
        &self,
        uuid: &str,
        statement: &str,
    ) -> Result<JobStatus, ServerClientError> {
        let statement = statement.to_owned();
        self.post(&format!("nodes/{uuid}/jobs"), &JobSubmission { statement })
            .await
    }

    /// Returns the jobs of all nodes, newest first.
    pub async fn jobs(&self) -> Result<Vec<JobStatus>, ServerClientError> {
        Ok(self.get::<Jobs>("jobs", TIMEOUT).await?.jobs)
    }

    /// Returns the jobs of a node, newest first.
    pub async fn node_jobs(&self, uuid: &str) -> Result<Vec<JobStatus>, ServerClientError> {
        let path = format!("nodes/{uuid}/jobs");
        Ok(self.get::<Jobs>(&path, TIMEOUT).await?.jobs)
    }

    /// Returns a job with its output after a number of bytes; waits for more for a while.
    pub async fn job(
        &self,
        id: &str,
        after: u64,
        wait: Duration,
    ) -> Result<JobDetail, ServerClientError> {
        let path = format!("jobs/{id}?after={after}&wait={}", wait.as_secs());
        self.get(&path, TIMEOUT + wait).await
    }

    /// Cancels a job that its node has not taken.
    pub async fn cancel_job(&self, id: &str) -> Result<JobStatus, ServerClientError> {
        let empty = serde_json::json!({});
        self.post(&format!("jobs/{id}/cancel"), &empty).await
    }

    /// Has the server read settings and published files again. Returns what changed.
    pub async fn reload(&self) -> Result<Vec<String>, ServerClientError> {
        let empty = serde_json::json!({});
        let reloaded: homestak_api::v1::node_status::Reloaded = self.post("reload", &empty).await?;
        Ok(reloaded.changes)
    }

    fn unreadable(&self) -> ServerClientError {
        let url = self.url.clone();
        ServerClientError::Unreadable { url }
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<T, ServerClientError> {
        let request = self.http.get(format!("{}/v1/{path}", self.url));
        self.send(request.timeout(timeout)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ServerClientError> {
        let request = self.http.post(format!("{}/v1/{path}", self.url));
        self.send(request.timeout(TIMEOUT).json(body)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<T, ServerClientError> {
        let lost = |source: reqwest::Error| ServerClientError::Unreachable {
            url: self.url.clone(),
            source: source.without_url(),
        };
        // Cancel safety: the server may process a request that was sent; its answer is lost.
        let mut response = request.send().await.map_err(lost)?;
        let status = response.status();
        let unreadable = || self.unreadable();
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(lost)? {
            body.extend_from_slice(&part);
            if body.len() > MAX_ANSWER {
                return Err(unreadable());
            }
        }
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|_| unreadable());
        }
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or("no reason given");
        Err(ServerClientError::Refused {
            url: self.url.clone(),
            status: status.as_u16(),
            detail: ForeignText::line(detail).into(),
        })
    }
}

/// Reads what nodes reported, with its texts escaped: they are printed as progress, as warnings and as
/// errors, where our own colours are not escaped.
pub(super) fn escaped<T: DeserializeOwned>(mut reported: Value) -> Option<T> {
    escape_json(&mut reported, ForeignText::lines);
    serde_json::from_value(reported).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_reports_have_no_colours_of_a_node() {
        let report = serde_json::json!({
            "id": 7, "received": 1, "run": "r", "state": "failed", "agent": "0.1.0\u{1b}[1m",
            "step": "write \u{1b}[32m/etc/motd", "error": "\u{1b}[31mred\nsecond line",
            "drift": ["\u{1b}[33myellow"],
        });
        let found = serde_json::json!({ "reports": [report] });
        let found: Reports = escaped(found).expect("reports");
        let report = &found.reports[0].report;
        let texts = [&report.agent, &report.drift[0]];
        let more = [&report.step, &report.error].map(|text| text.as_ref().expect("a text"));
        for text in texts.into_iter().chain(more) {
            assert!(!text.contains('\u{1b}'), "{text}");
        }
        assert_eq!(report.error.as_deref(), Some("\\x1b[31mred\nsecond line"));
    }
}
