//! Turns an answer into an HTTP response.
//!
//! In: an [`Answer`]. Out: status, reason phrase, headers and bytes.
//! Never: deciding whether it is delivered.

use http::{Response, StatusCode};
use hyper::ext::ReasonPhrase;

use super::wire::Body;
use crate::calls::{Answer, Delivery};

/// Writes an answer.
pub(crate) fn response(answer: &Answer) -> Response<Body> {
    let mut body = match &answer.body {
        Some(body) => body.to_string().into_bytes(),
        None => Vec::new(),
    };
    if answer.delivery == Delivery::Garbage {
        body = b"<html><body>502 Bad Gateway</body></html>".to_vec();
    }
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = match answer.delivery {
        Delivery::Truncated => Body::half(body),
        Delivery::Whole | Delivery::Garbage | Delivery::Reset | Delivery::Silence => {
            Body::whole(body)
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let fixed = http::HeaderValue::from_static;
    headers.insert("cache-control", fixed("max-age=0"));
    headers.insert("pragma", fixed("no-cache"));
    headers.insert("server", fixed("pve-api-daemon/3.0"));
    if answer.body.is_some() {
        headers.insert("content-type", fixed("application/json;charset=UTF-8"));
    }
    // A phrase may hold what a header may not; the body says the same.
    if let Ok(reason) = ReasonPhrase::try_from(answer.reason.clone().into_bytes()) {
        response.extensions_mut().insert(reason);
    }
    response
}
