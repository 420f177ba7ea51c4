//! Why a request was refused, as a response and as a log line.

use std::time::Duration;

use bytes::Bytes;
use homestak_api::v1::answer::{ErrorAnswer, ErrorDetail, Problem};
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};

use crate::body::Body;

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
    /// The methods that are allowed instead.
    pub(crate) allow: Option<&'static str>,
    /// Whether it counts as a failure to authenticate.
    pub(crate) is_failed_login: bool,
    /// How to authenticate, with status 401.
    pub(crate) challenge: &'static str,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after: None,
            allow: None,
            is_failed_login: false,
            challenge: "Bearer",
        }
    }

    /// The path is not served: 400 as in earlier homestak tools, 404 below `/v1/`.
    pub(crate) fn unknown_endpoint(is_v1: bool) -> Self {
        let status = match is_v1 {
            true => StatusCode::NOT_FOUND,
            false => StatusCode::BAD_REQUEST,
        };
        Self::new(status, "E100", "unknown endpoint")
    }

    /// The method is not one of those that are allowed.
    pub(crate) fn method(allow: &'static str) -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self {
            allow: Some(allow),
            ..Self::new(status, "E100", "method not allowed")
        }
    }

    /// The request is malformed.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "E101", message)
    }

    /// The body, or what it decodes to, is too large.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "E101", message)
    }

    /// The body has another type or encoding.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "E101", message)
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

    /// The caller is authenticated, but not allowed to do this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::login(StatusCode::FORBIDDEN, "E301", message)
    }

    /// Too much is being received at a time.
    pub(crate) fn too_many_bodies() -> Self {
        let why = "too many bodies of requests are being received; try again later";
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "E303", why)
        }
    }

    /// The server failed.
    pub(crate) fn internal() -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "E500", "internal error; see the server's log")
    }

    /// Returns the answer: as in earlier homestak tools, or of RFC 9457 below `/v1/`.
    pub(crate) fn answer(&self, is_v1: bool) -> Response<Body> {
        let (code, message) = (self.code.to_owned(), self.message.clone());
        let (kind, body) = if is_v1 {
            let body = serde_json::to_string_pretty(&Problem {
                kind: "about:blank".to_owned(),
                title: self
                    .status
                    .canonical_reason()
                    .unwrap_or_default()
                    .to_owned(),
                status: self.status.as_u16(),
                detail: message,
                code,
            });
            ("application/problem+json", body)
        } else {
            let error = ErrorDetail { code, message };
            let body = serde_json::to_string_pretty(&ErrorAnswer { error });
            ("application/json", body)
        };
        let body = body.unwrap_or_default() + "\n";
        let mut answer = Response::new(Body::from(Bytes::from(body)));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(wait) = self.retry_after {
            // Rounded up: a client that waits exactly this long is answered.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(methods) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(self.challenge));
        }
        // The rest of the body is not read, so nothing after it is a request.
        if let StatusCode::LENGTH_REQUIRED
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::SERVICE_UNAVAILABLE = self.status
        {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}
