//! Requests to the servers of a site. Each request is sent to one server after another until one
//! answers.

use std::time::Duration;

use homestak_api::publication::STATEMENT_HEADER;
use homestak_api::trust::{Fingerprint, TlsCredential, Trust};
use homestak_api::v1::enrol::{EnrolRequest, EnrolResponse};
use homestak_api::v1::node_job::{JobOffers, JobReport};
use homestak_api::v1::report::Report;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{ACCEPT, DATE, ETAG, HeaderMap, HeaderName, IF_NONE_MATCH};
use reqwest::{RequestBuilder, StatusCode};
use tokio::runtime::Runtime;

use super::registration::{Contact, MAX_LIFETIME};
use crate::error::FetchError;
use crate::http::{self, Answer};

/// The timeout of downloading the agent, over a slow line.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// The largest list of jobs, in bytes.
const MAX_OFFERS: usize = 1 << 20;

/// A client of the servers of a site.
pub(super) struct Client {
    servers: Vec<String>,
    http: reqwest::Client,
    runtime: Runtime,
}

/// A certificate that a server issued.
pub(super) struct IssuedCertificate {
    /// In PEM, with those that signed it.
    pub(super) chain: String,
    /// When to renew it, by the clock of this machine.
    pub(super) renew_after: i64,
}

/// A spec as a server sent it, not verified yet.
pub(super) struct FetchedSpec {
    pub(super) statement: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Client {
    /// Creates a client, with a certificate of its own once there is one.
    pub(super) fn new(contact: &Contact, own: Option<TlsCredential>) -> Result<Self, FetchError> {
        let fingerprints = contact.fingerprints.iter();
        let fingerprints = fingerprints.filter_map(|text| Fingerprint::parse(text));
        let trust = Trust::SiteSince(fingerprints.collect(), contact.latest);
        Ok(Self {
            servers: contact.servers.clone(),
            http: http::client(&trust, own)?,
            runtime: http::runtime()?,
        })
    }

    fn send(
        &self,
        request: impl Fn(&reqwest::Client, &str) -> RequestBuilder,
    ) -> Result<Answer, FetchError> {
        self.send_to_each(|server| {
            let answer = http::send(server, request(&self.http, server));
            self.runtime.block_on(answer)
        })
    }

    /// The same for a request whose refusal may be permanent. If no server answers, returns the error
    /// of the preferred one: a later one may be a server that was replaced and no longer knows this
    /// machine, so its refusal does not count while the preferred one is not reached.
    fn send_decisive(
        &self,
        request: impl Fn(&reqwest::Client, &str) -> RequestBuilder,
    ) -> Result<Answer, FetchError> {
        let mut first = None;
        for server in &self.servers {
            let answer = http::send(server, request(&self.http, server));
            match self.runtime.block_on(answer) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    tracing::debug!(server, %error, "no answer");
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or(FetchError::NoServer))
    }

    /// Sends a request to each server until one answers. If none does, returns the first refusal,
    /// or else the error of the first server.
    fn send_to_each(
        &self,
        send: impl Fn(&str) -> Result<Answer, FetchError>,
    ) -> Result<Answer, FetchError> {
        let mut first: Option<FetchError> = None;
        for server in &self.servers {
            let error = match send(server) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tracing::debug!(server, %error, "no answer");
            let counts = match &first {
                None => true,
                Some(first) => error.is_refusal() && !first.is_refusal(),
            };
            if counts {
                first = Some(error);
            }
        }
        Err(first.unwrap_or(FetchError::NoServer))
    }

    /// Exchanges a token for a certificate.
    pub(super) fn enrol(
        &self,
        token: &str,
        request: &EnrolRequest,
        now: i64,
    ) -> Result<IssuedCertificate, FetchError> {
        let answer = self.send_decisive(|http, server| {
            let post = http.post(format!("{server}/v1/enrol"));
            post.bearer_auth(token).json(request)
        })?;
        issued(&answer, now)
    }

    /// Exchanges the certificate for a new one.
    pub(super) fn renew(
        &self,
        request: &EnrolRequest,
        now: i64,
    ) -> Result<IssuedCertificate, FetchError> {
        let answer = self
            .send_decisive(|http, server| http.post(format!("{server}/v1/renew")).json(request))?;
        issued(&answer, now)
    }

    /// Fetches the spec of a node; `None` if it still has this entity tag.
    pub(super) fn spec(
        &self,
        node: &str,
        etag: Option<&str>,
    ) -> Result<Option<FetchedSpec>, FetchError> {
        let answer = self.send(|http, server| {
            let get = http.get(format!("{server}/spec/{node}"));
            let get = get.header(ACCEPT, "application/json");
            match etag {
                Some(etag) => get.header(IF_NONE_MATCH, etag),
                None => get,
            }
        })?;
        if answer.status == StatusCode::NOT_MODIFIED {
            return match etag {
                Some(_) => Ok(None),
                None => Err(FetchError::NoSpec(vec!["it is empty".to_owned()])),
            };
        }
        let statement = HeaderName::from_static(STATEMENT_HEADER);
        Ok(Some(FetchedSpec {
            statement: text(&answer.headers, &statement),
            etag: text(&answer.headers, &ETAG),
            body: answer.body,
        }))
    }

    /// Returns the signed statement of the agent that is published for this machine, if there is one.
    pub(super) fn agent_statement(&self) -> Result<Option<String>, FetchError> {
        let answer = self.send(|http, server| http.head(agent_url(server)));
        match answer {
            Err(FetchError::Refused { status: 404, .. }) => Ok(None),
            answer => {
                let name = HeaderName::from_static(STATEMENT_HEADER);
                Ok(text(&answer?.headers, &name))
            }
        }
    }

    /// Downloads the agent, of a size in bytes.
    pub(super) fn agent(&self, size: u64) -> Result<Vec<u8>, FetchError> {
        let limit = usize::try_from(size).unwrap_or(usize::MAX);
        let answer = self.send_to_each(|server| {
            let request = self.http.get(agent_url(server)).timeout(DOWNLOAD_TIMEOUT);
            let answer = http::send_limited(server, request, limit);
            self.runtime.block_on(answer)
        });
        Ok(answer?.body)
    }

    /// Sends a report.
    pub(super) fn report(&self, report: &Report) -> Result<(), FetchError> {
        self.send(|http, server| http.post(format!("{server}/v1/reports")).json(report))
            .map(drop)
    }

    /// Requests jobs; a server without any answers after a while.
    pub(super) fn offers(&self, wait: Duration) -> Result<JobOffers, FetchError> {
        let seconds = wait.as_secs();
        let answer = self.send_to_each(|server| {
            let url = format!("{server}/v1/offers?wait={seconds}");
            let answer = http::send_limited(server, self.http.get(url), MAX_OFFERS);
            self.runtime.block_on(answer)
        })?;
        serde_json::from_slice(&answer.body)
            .map_err(|_| FetchError::NoSpec(vec!["it is no list of jobs".to_owned()]))
    }

    /// Takes a job.
    pub(super) fn take(&self, id: &str) -> TakeAnswer {
        let (mut is_refused, mut lost) = (false, None);
        for server in &self.servers {
            let request = self.http.post(format!("{server}/v1/jobs/{id}/take"));
            let request = request.json(&serde_json::json!({}));
            match self.runtime.block_on(http::send(server, request)) {
                Ok(_) => return TakeAnswer::Taken,
                Err(FetchError::Refused {
                    status: 404 | 409 | 410,
                    ..
                }) => is_refused = true,
                Err(error) => lost = Some(error),
            }
        }
        match (is_refused, lost) {
            (true, None) => TakeAnswer::Refused,
            (_, Some(error)) => TakeAnswer::Lost(error),
            (false, None) => TakeAnswer::Lost(FetchError::NoServer),
        }
    }

    /// Sends output or the outcome of a job.
    pub(super) fn job_report(&self, id: &str, report: &JobReport) -> Result<(), FetchError> {
        self.send(|http, server| {
            let url = format!("{server}/v1/jobs/{id}/report");
            http.post(url).json(report)
        })
        .map(drop)
    }
}

/// The answer to taking a job.
pub(super) enum TakeAnswer {
    /// This machine has it now.
    Taken,
    /// It was cancelled, has expired, or was taken before.
    Refused,
    /// No server answered, or one refused after the answer of another was lost: it may be taken.
    Lost(FetchError),
}

fn agent_url(server: &str) -> String {
    format!("{server}/v1/agents/{}", std::env::consts::ARCH)
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn issued(answer: &Answer, now: i64) -> Result<IssuedCertificate, FetchError> {
    let issued: EnrolResponse = serde_json::from_slice(&answer.body)
        .map_err(|_| FetchError::NoSpec(vec!["it is no certificate".to_owned()]))?;
    // The clock of this machine may be wrong: only the remaining time counts.
    let date = text(&answer.headers, &DATE);
    let date = date.and_then(|date| DateTimeParser::new().parse_timestamp(&date).ok());
    let date = date.map_or(now, |date| date.as_second());
    Ok(IssuedCertificate {
        renew_after: renewal(now, issued.not_after.saturating_sub(date)),
        chain: issued.chain,
    })
}

/// Returns when to renew a certificate that is valid for `left` seconds: after two thirds of them.
fn renewal(now: i64, left: i64) -> i64 {
    now.saturating_add(left.clamp(0, MAX_LIFETIME) / 3 * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(date: &'static str, not_after: i64) -> Answer {
        let body = EnrolResponse {
            chain: "PEM".to_owned(),
            not_after,
        };
        let mut headers = HeaderMap::new();
        headers.insert(DATE, reqwest::header::HeaderValue::from_static(date));
        Answer {
            status: StatusCode::CREATED,
            headers,
            body: serde_json::to_vec(&body).expect("JSON"),
        }
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_lifetime_whatever_the_clock_shows() {
        // 2027-01-15 08:00:00, and 30 days later.
        let date = "Fri, 15 Jan 2027 08:00:00 GMT";
        let (from, days) = (1_800_000_000, 24 * 3600);
        for now in [from, 0, from + 900 * days] {
            let issued = issued(&answer(date, from + 30 * days), now).expect("a certificate");
            assert_eq!(issued.renew_after, now + 20 * days);
        }
        let issued = issued(&answer("soon", from + 30 * days), from).expect("a certificate");
        assert_eq!(issued.renew_after, from + 20 * days);
        assert_eq!(renewal(7, -5), 7);
        assert_eq!(renewal(i64::MAX, i64::MAX), i64::MAX);
        assert_eq!(renewal(7, i64::MAX), renewal(7, MAX_LIFETIME));
    }
}
