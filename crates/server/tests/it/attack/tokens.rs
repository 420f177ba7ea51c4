//! Tokens that are forged, cut, exchanged, expired, revoked, or used again.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use homestak_core::token::{Claims, GuestClaims, SigningKey, mint};
use serde_json::json;

use super::{Target, enrolment};
use crate::endpoint::{signed, signed_with};
use crate::raw::request;
use crate::site::{DB, TestSite, V1_KEY, V2_KEY, WEB, at, v1, v2};

const MALFORMED: (u16, &str) = (400, "E300");
const INVALID: (u16, &str) = (401, "E301");
const SPENT: (u16, &str) = (403, "E302");
const UNKNOWN: (u16, &str) = (404, "E200");

/// Claims of `web` that do not expire during the attacks, changed.
fn claims(site: &TestSite, change: impl FnOnce(&mut Claims, &mut GuestClaims)) -> Claims {
    let mut claims = site.claims(WEB, "web");
    let mut guest = claims.guest.take().expect("version 2");
    guest.expires_at = at(30 * 24 * 3600).as_second();
    change(&mut claims, &mut guest);
    Claims {
        guest: Some(guest),
        ..claims
    }
}

fn with_key(claims: &Claims, key: &str) -> String {
    mint(claims, &SigningKey::from_hex(key).expect("a key"))
}

/// Tokens with what they get for the spec of `web`, and for the agent, which is the same for all.
fn tokens(site: &TestSite) -> Vec<(&'static str, String, (u16, &'static str))> {
    let changed = |change: fn(&mut GuestClaims)| v2(&claims(site, |_, guest| change(guest)));
    let good = v2(&claims(site, |_, _| ()));
    let (payload, signature) = good.split_once('.').expect("two parts");
    let (first_payload, first_signature) = {
        let first = v1("web", "base");
        let (payload, signature) = first.split_once('.').expect("two parts");
        (payload.to_owned(), signature.to_owned())
    };
    let other = v2(&site.claims(DB, "db"));
    let (other_payload, other_signature) = other.split_once('.').expect("two parts");
    let guessed = V2_KEY.replace("ff", "fe");
    let jwt = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let raised = |to: &str| {
        let text = URL_SAFE_NO_PAD.decode(payload).expect("base64");
        let text = String::from_utf8(text).expect("JSON");
        URL_SAFE_NO_PAD.encode(text.replace("\"base\"", to))
    };
    let full = |v: u32, rest: &str| {
        format!(
            "{{\"v\":{v},\"n\":\"web\",\"s\":\"base\",\"iat\":1,\"aud\":\"site\",\
             \"jti\":\"t-web\",\"kid\":\"k1\",\"uuid\":\"{WEB}\"{rest}}}"
        )
    };
    vec![
        (
            "forged with a guessed key",
            with_key(&claims(site, |_, _| ()), &guessed),
            INVALID,
        ),
        (
            "version 2 with the key of version 1",
            with_key(&claims(site, |_, _| ()), V1_KEY),
            INVALID,
        ),
        (
            "version 1 with the key of version 2",
            signed_with(V2_KEY, r#"{"v":1,"n":"web","s":"base"}"#),
            INVALID,
        ),
        (
            "version 1 with an all-zero key",
            signed_with(&"00".repeat(32), r#"{"v":1,"n":"web","s":"base"}"#),
            INVALID,
        ),
        (
            "version 2 called version 1",
            signed_with(V2_KEY, &full(1, "")),
            INVALID,
        ),
        ("cut signature", good[..good.len() - 3].to_owned(), INVALID),
        (
            "cut payload",
            format!("{}.{signature}", &payload[..payload.len() - 4]),
            INVALID,
        ),
        ("payload alone", payload.to_owned(), MALFORMED),
        ("signature alone", format!(".{signature}"), INVALID),
        ("no signature", format!("{payload}."), INVALID),
        (
            "signature of another node",
            format!("{payload}.{other_signature}"),
            INVALID,
        ),
        (
            "payload of another node",
            format!("{other_payload}.{signature}"),
            INVALID,
        ),
        (
            "signature of version 1",
            format!("{payload}.{first_signature}"),
            INVALID,
        ),
        (
            "signature of version 2",
            format!("{first_payload}.{signature}"),
            INVALID,
        ),
        (
            "another spec in the payload",
            format!("{}.{signature}", raised("\"pve\"")),
            INVALID,
        ),
        (
            "signature twice",
            format!("{payload}.{signature}{signature}"),
            MALFORMED,
        ),
        (
            "extended signature",
            format!("{payload}.{signature}AAAA"),
            INVALID,
        ),
        (
            "expired",
            changed(|guest| guest.expires_at = at(-1).as_second()),
            INVALID,
        ),
        (
            "expired in 1969",
            changed(|guest| guest.expires_at = -1),
            INVALID,
        ),
        (
            "expired long ago",
            changed(|guest| guest.expires_at = i64::MIN + 1),
            INVALID,
        ),
        (
            "another site",
            changed(|guest| guest.site = "other".to_owned()),
            INVALID,
        ),
        (
            "no site",
            changed(|guest| guest.site = String::new()),
            INVALID,
        ),
        (
            "unknown key id",
            changed(|guest| guest.key_id = "k9".to_owned()),
            INVALID,
        ),
        (
            "key id as a path",
            changed(|guest| guest.key_id = "../secrets".to_owned()),
            INVALID,
        ),
        (
            "revoked",
            changed(|guest| guest.token_id = "t-web".to_owned()),
            SPENT,
        ),
        (
            "unknown guest",
            changed(|guest| guest.uuid = WEB.replace('1', "9")),
            UNKNOWN,
        ),
        (
            "another guest",
            changed(|guest| guest.uuid = DB.to_owned()),
            UNKNOWN,
        ),
        (
            "guest as a path",
            changed(|guest| guest.uuid = format!("../specs/{WEB}")),
            UNKNOWN,
        ),
        ("another spec", v1("web", "pve"), UNKNOWN),
        (
            "expiry missing",
            signed_with(V2_KEY, &full(2, "")),
            MALFORMED,
        ),
        (
            "expiry as text",
            signed_with(V2_KEY, &full(2, r#","exp":"never""#)),
            MALFORMED,
        ),
        (
            "expiry as a fraction",
            signed_with(V2_KEY, &full(2, r#","exp":1e99"#)),
            MALFORMED,
        ),
        (
            "version 3",
            signed_with(V2_KEY, &full(3, r#","exp":9999999999"#)),
            MALFORMED,
        ),
        ("deep payload", signed(&"[".repeat(1000)), MALFORMED),
        ("no payload", signed(""), MALFORMED),
        ("a JSON web token", format!("{jwt}.{payload}."), MALFORMED),
        ("dots", "..".to_owned(), MALFORMED),
        (
            "standard base64",
            format!("{payload}.++++{}", &signature[4..]),
            MALFORMED,
        ),
        (
            "long",
            format!("{}.{}", "A".repeat(4000), "A".repeat(4000)),
            INVALID,
        ),
        ("text around it", format!("{good} x"), MALFORMED),
        ("quotes around it", format!("\"{good}\""), MALFORMED),
        ("the key itself", V1_KEY.to_owned(), MALFORMED),
    ]
}

#[tokio::test]
async fn an_invalid_token_gets_no_spec_no_certificate_and_no_agent() {
    let mut target = Target::start().await;
    let revoke = format!("{}/v1/tokens/t-web/revoke", target.site.url);
    let revoke = target.site.operator().post(revoke).json(&json!({}));
    assert_eq!(revoke.send().await.expect("an answer").status(), 200);
    for (what, token, expected) in tokens(&target.site) {
        target.secret(&token);
        let header = format!("Bearer {token}");
        let headers = [("authorization", header.as_str())];
        for (endpoint, bytes) in [
            ("spec", request("GET", "/spec/web", &headers, "")),
            (
                "enrol",
                request("POST", "/v1/enrol", &headers, &enrolment()),
            ),
            ("agent", request("GET", "/v1/agents/x86_64", &headers, "")),
        ] {
            let expected = match (endpoint, what) {
                // The agent's request names no node, so the payload is read to find one.
                ("agent", "signature alone" | "cut payload" | "long") => MALFORMED,
                _ => expected,
            };
            let what = format!("{endpoint}: {what}");
            target.refuse(&what, None, &bytes, expected).await;
        }
    }
    for (what, node) in [
        ("version 1", v1("db", "base")),
        ("version 2", v2(&target.site.claims(DB, "db"))),
    ] {
        target.secret(&node);
        let header = format!("Bearer {node}");
        let headers = [("authorization", header.as_str())];
        let spec = request("GET", "/spec/web", &headers, "");
        target
            .refuse(&format!("another node's, {what}"), None, &spec, INVALID)
            .await;
        let enrol = request("POST", "/v1/enrol", &headers, &enrolment());
        target
            .refuse(&format!("another node's, {what}"), None, &enrol, INVALID)
            .await;
    }
    assert_eq!(target.finish().await, 130);
}

#[tokio::test]
async fn a_token_that_was_used_is_refused_everywhere() {
    let mut target = Target::start().await;
    target.site.enrol(WEB, "web").await;
    let used = v2(&claims(&target.site, |_, _| ()));
    let again = v2(&claims(&target.site, |_, guest| {
        guest.token_id = "t-other".to_owned();
    }));
    for (what, token) in [
        ("used", used),
        ("another", again),
        ("version 1", v1("web", "base")),
    ] {
        target.secret(&token);
        let header = format!("Bearer {token}");
        let headers = [("authorization", header.as_str())];
        for bytes in [
            request("GET", "/spec/web", &headers, ""),
            request("HEAD", "/spec/web", &headers, ""),
            request("POST", "/v1/enrol", &headers, &enrolment()),
            request("GET", "/v1/agents/x86_64", &headers, ""),
        ] {
            match bytes.starts_with(b"HEAD") {
                // Its answer has no code.
                true => {
                    let mut client = crate::raw::RawClient::connect(&target.site, None).await;
                    let answer = client.exchange(&bytes).await.expect("an answer");
                    assert_eq!((answer.status, answer.header("etag")), (403, None));
                }
                false => target.refuse(what, None, &bytes, SPENT).await,
            }
        }
    }
    assert_eq!(target.finish().await, 9);
}

#[tokio::test]
async fn a_token_for_one_use_fetches_one_spec_by_any_method() {
    for first in ["GET", "HEAD"] {
        let mut target = Target::start().await;
        target
            .site
            .publish(WEB, "web", |spec| spec.single_use = true);
        (target.site.reload)();
        let token = v2(&claims(&target.site, |_, _| ()));
        target.secret(&token);
        let header = format!("Bearer {token}");
        let headers = [
            ("authorization", header.as_str()),
            ("if-none-match", "\"x\""),
        ];
        let mut client = crate::raw::RawClient::connect(&target.site, None).await;
        let answer = client
            .exchange(&request(first, "/spec/web", &headers, ""))
            .await;
        assert_eq!(answer.expect("an answer").status, 200);
        let spec = request("GET", "/spec/web", &headers, "");
        target.refuse("a second time", None, &spec, SPENT).await;
        assert_eq!(target.finish().await, 1);
    }
}
