//! Converts an [`Answer`] into an HTTP response.

use http::{Response, StatusCode};
use hyper::ext::ReasonPhrase;

use super::wire::Body;
use crate::calls::{Answer, Delivery};

/// Returns the HTTP response for an answer.
pub(crate) fn response(answer: Answer) -> Response<Body> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // Omitted if it contains bytes that HTTP does not allow; the body has the message too.
    let reason = ReasonPhrase::try_from(answer.reason.clone().into_bytes());
    let delivery = answer.delivery;
    let text = answer.into_text();
    let is_json = text.is_some();
    let body = text.unwrap_or_default().into_bytes();
    let mut response = Response::new(match delivery {
        Delivery::Garbage => Body::whole(b"<html><body>502 Bad Gateway</body></html>".to_vec()),
        Delivery::Truncated => Body::half(body),
        Delivery::Whole | Delivery::Reset | Delivery::Silence => Body::whole(body),
    });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let fixed = http::HeaderValue::from_static;
    headers.insert("cache-control", fixed("max-age=0"));
    headers.insert("pragma", fixed("no-cache"));
    headers.insert("server", fixed("pve-api-daemon/3.0"));
    if is_json {
        headers.insert("content-type", fixed("application/json;charset=UTF-8"));
    }
    if let Ok(reason) = reason {
        response.extensions_mut().insert(reason);
    }
    response
}
