//! Why a request was refused, as an answer and as a line of the log.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

/// The body of every answer.
pub(crate) type Body = Full<Bytes>;

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The status of the answer.
    pub(crate) status: StatusCode,
    /// The code of the error, such as `E301`.
    pub(crate) code: &'static str,
    /// The message of the answer. It contains nothing that the client does not know.
    pub(crate) message: String,
    /// When to try again.
    pub(crate) retry_after: Option<Duration>,
    /// Whether it counts as a failure to authenticate.
    pub(crate) is_failed_login: bool,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after: None,
            is_failed_login: false,
        }
    }

    /// The path or method is not served.
    pub(crate) fn not_served() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "E100", "unknown endpoint")
    }

    /// The method is not allowed.
    pub(crate) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "E100", "method not allowed")
    }

    /// The request is malformed.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "E101", message)
    }

    /// The caller failed to authenticate.
    pub(crate) fn login(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            is_failed_login: true,
            ..Self::new(status, code, message)
        }
    }

    /// The caller is known, and may not do this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::login(StatusCode::FORBIDDEN, "E301", message)
    }

    /// The server failed.
    pub(crate) fn internal() -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "E500", "internal error; see the server's log")
    }

    /// Returns the answer: as of the seeds, or of RFC 9457 below `/v1/`.
    pub(crate) fn answer(&self, is_v1: bool) -> Response<Body> {
        let (kind, body) = if is_v1 {
            let body = json!({
                "type": "about:blank",
                "title": self.status.canonical_reason().unwrap_or_default(),
                "status": self.status.as_u16(),
                "detail": self.message,
                "code": self.code,
            });
            ("application/problem+json", body)
        } else {
            let body = json!({ "error": { "code": self.code, "message": self.message } });
            ("application/json", body)
        };
        let mut answer = Response::new(Full::new(Bytes::from(format!("{body:#}\n"))));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        answer
    }
}
