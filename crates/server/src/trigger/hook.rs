//! Verifies requests of webhooks, in the format of Standard Webhooks: an id, a time, and an HMAC over
//! both and the body.

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, StatusCode};
use sha2::Sha256;

use crate::refusal::Refusal;

/// How far the time of a request may be from the server's, in seconds.
const TOLERANCE: i64 = 300;
/// The longest id.
const LONGEST_ID: usize = 128;
/// The most signatures of a request: one of each secret while it is replaced.
const MOST_SIGNATURES: usize = 8;
/// The longest header with signatures.
const LONGEST_SIGNATURES: usize = 1024;
/// The length of a signature.
const SIGNATURE: usize = 32;

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HookRequest {
    /// Its id, which is not used again.
    pub(crate) id: String,
    timestamp: String,
    signatures: Vec<[u8; SIGNATURE]>,
}

impl HookRequest {
    /// Reads the headers. What is refused here does not depend on the webhook.
    pub(crate) fn parse(headers: &HeaderMap, now: i64) -> Result<Self, Refusal> {
        let id = one(headers, "webhook-id")?;
        // Without dots, so that what is signed can be split in one way only.
        let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:".contains(&byte);
        if id.is_empty() || id.len() > LONGEST_ID || !id.bytes().all(is_id) {
            return Err(malformed(
                "`webhook-id` has 1 to 128 letters, digits, `_`, `-` and `:`",
            ));
        }
        let timestamp = one(headers, "webhook-timestamp")?;
        let is_number = !timestamp.starts_with('0')
            && timestamp.len() <= 12
            && timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let at = is_number.then(|| timestamp.parse::<i64>().ok()).flatten();
        let at = at.ok_or_else(|| malformed("`webhook-timestamp` is seconds since 1970"))?;
        if at.abs_diff(now) > TOLERANCE.unsigned_abs() {
            return Err(Refusal::login(
                StatusCode::UNAUTHORIZED,
                "E301",
                "the time of the request is more than 5 minutes from that of the server",
            ));
        }
        let listed = one(headers, "webhook-signature")?;
        if listed.len() > LONGEST_SIGNATURES {
            return Err(malformed("`webhook-signature` is too long"));
        }
        let listed: Vec<&str> = listed.split(' ').collect();
        if listed.len() > MOST_SIGNATURES {
            return Err(malformed("`webhook-signature` has too many signatures"));
        }
        // Other versions belong to other receivers.
        let signatures = listed.iter().filter_map(|one| one.strip_prefix("v1,"));
        Ok(Self {
            id: id.to_owned(),
            timestamp: timestamp.to_owned(),
            signatures: signatures.filter_map(decode).collect(),
        })
    }

    /// Returns whether it is signed with a key. Without a key the same work is done, so that the time
    /// does not reveal which webhooks exist.
    pub(crate) fn is_signed(&self, key: Option<&[u8]>, body: &[u8]) -> bool {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key.unwrap_or(&[0; SIGNATURE])) else {
            return false;
        };
        for part in [
            self.id.as_bytes(),
            b".",
            self.timestamp.as_bytes(),
            b".",
            body,
        ] {
            mac.update(part);
        }
        let matches = |signature: &[u8; SIGNATURE]| mac.clone().verify_slice(signature).is_ok();
        let matching = self.signatures.iter().filter(|one| matches(one)).count();
        matching > 0 && key.is_some()
    }
}

/// The answer to an unknown webhook and to a wrong signature.
pub(crate) fn not_signed() -> Refusal {
    let why = "there is no such webhook, or the signature is not valid";
    Refusal::login(StatusCode::UNAUTHORIZED, "E301", why)
}

fn malformed(why: &str) -> Refusal {
    Refusal::login(StatusCode::BAD_REQUEST, "E101", why)
}

/// Returns the value of a header that must be there once.
fn one<'h>(headers: &'h HeaderMap, name: &str) -> Result<&'h str, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().and_then(|value| value.to_str().ok());
    match (value, values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(malformed(&format!("`{name}` must be there once"))),
    }
}

fn decode(encoded: &str) -> Option<[u8; SIGNATURE]> {
    use base64::Engine as _;
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded);
    decoded.ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Standard Webhooks.
    #[test]
    fn a_request_of_another_implementation_is_verified() {
        let key =
            homestak_core::doc::secrets::webhook_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
                .expect("a key");
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            (
                "webhook-signature",
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
        ] {
            headers.insert(name, value.parse().expect("a value"));
        }
        let request = HookRequest::parse(&headers, 1_614_265_330).expect("well-formed");
        assert!(request.is_signed(Some(&key), b"{\"test\": 2432232314}"));
        assert!(!request.is_signed(Some(&key), b"{\"test\": 2432232315}"));
        assert!(!request.is_signed(None, b"{\"test\": 2432232314}"));
    }
}
