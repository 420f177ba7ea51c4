//! Parses an HTTP request into a [`Request`].

use std::collections::BTreeMap;

use http::HeaderMap;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::multipart;
use crate::calls::{Credentials, Request};

/// Why a request cannot be parsed.
#[derive(Debug)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Parses head and body.
pub(crate) fn request(head: &Parts, body: &[u8]) -> Result<Request, Malformed> {
    let path = percent_decode_str(head.uri.path())
        .decode_utf8_lossy()
        .into_owned();
    let mut parameters = pairs(head.uri.query().unwrap_or(""));
    let mut upload = None;
    let kind = text(&head.headers, "content-type").unwrap_or_default();
    if let Some(boundary) = multipart::boundary(&kind) {
        let form = multipart::parse(body, &boundary).map_err(Malformed)?;
        parameters.extend(form.fields);
        upload = form.file;
    } else if kind.starts_with("application/json") {
        parameters.extend(json(body)?);
    } else if !body.is_empty() {
        parameters.extend(pairs(&String::from_utf8_lossy(body)));
    }
    Ok(Request {
        method: head.method.as_str().to_owned(),
        path,
        parameters,
        credentials: credentials(&head.headers),
        upload,
        fence: fence(&head.headers),
    })
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(ToOwned::to_owned)
}

fn fence(headers: &HeaderMap) -> Option<(String, i64)> {
    let header = text(headers, "x-homestak-fence")?;
    let (scope, number) = header.split_once(' ')?;
    Some((scope.to_owned(), number.parse().ok()?))
}

fn credentials(headers: &HeaderMap) -> Credentials {
    if let Some(header) = text(headers, "authorization") {
        let token = header
            .strip_prefix("PVEAPIToken=")
            .or_else(|| header.strip_prefix("PVEAPIToken "));
        return Credentials::Token(token.unwrap_or("").to_owned());
    }
    let cookie = text(headers, "cookie").unwrap_or_default();
    let ticket = cookie
        .split(';')
        .find_map(|part| part.trim().strip_prefix("PVEAuthCookie="));
    match ticket {
        Some(ticket) => Credentials::Ticket {
            ticket: decode(ticket),
            csrf: text(headers, "csrfpreventiontoken"),
        },
        None => Credentials::None,
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Parses `a=b&c=d`. A repeated name is a list, which PVE separates with NUL.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (
            decode(&key.replace('+', " ")),
            decode(&value.replace('+', " ")),
        );
        match found.get_mut(&key) {
            Some(known) => {
                known.push('\0');
                known.push_str(&value);
            }
            None => {
                found.insert(key, value);
            }
        }
    }
    found
}

fn json(body: &[u8]) -> Result<BTreeMap<String, String>, Malformed> {
    if body.is_empty() {
        return Ok(BTreeMap::new());
    }
    let value: Value = serde_json::from_slice(body).map_err(|_| Malformed("malformed JSON"))?;
    let object = value.as_object().ok_or(Malformed("malformed JSON"))?;
    Ok(object
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.clone(), plain(value)))
        .collect())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => u8::from(*flag).to_string(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join("\0"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plus_is_a_space_and_percent_is_decoded() {
        let found = pairs("description=a+b%2Bc&tags=x%3By");
        assert_eq!(found["description"], "a b+c");
        assert_eq!(found["tags"], "x;y");
    }
}
