//! Fuzz targets for what clients send to a server, and for what a site signs and issues. A panic is
//! a bug.
//!
//! `crates/server/tests/fuzz.rs` includes this file, replays every stored input on the stable
//! toolchain and tries random ones, so it does not depend on the fuzzer.

use std::sync::LazyLock;

use homestak_api::certificate::{Credential, Role, certificates};
use homestak_api::node_key::NodeKey;
use homestak_api::publication::{SpecStatement, verify_spec};
use homestak_api::signature::{Purpose, SiteKey, SitePublicKey, verify};
use homestak_api::trust::Fingerprint;
use homestak_api::v1::enrol::EnrolRequest;
use homestak_api::v1::node_status::Revocation;
use homestak_api::v1::report::Report;
use homestak_core::token::{
    Claims, GuestClaims, SigningKey, TokenError, TokenKeys, inspect, mint, verify_at,
};
use homestak_server::route::{Endpoint, NoRoute, ROUTES, is_v1, route};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// All targets.
pub const TARGETS: &[&str] = &["path", "body", "provisioning", "certificate", "statement"];

/// Runs a target on one input. Panics if a check fails.
pub fn run(target: &str, bytes: &[u8]) {
    if target == "body" {
        return body(bytes);
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match target {
        "path" => path(text),
        "provisioning" => provisioning(text, bytes.len()),
        "certificate" => certificate(text, bytes),
        "statement" => statement(text, bytes),
        other => panic!("there is no target `{other}`"),
    }
}

/// An endpoint is found for one spelling of a path, with slashes at its end.
fn path(text: &str) {
    let (method, path) = text.split_once(' ').unwrap_or(("GET", text));
    let found = route(method, path);
    assert_eq!(
        route(method, &format!("{path}/")),
        found,
        "a slash at the end"
    );
    match found {
        Ok((endpoint, parameter)) => {
            let listed = ROUTES.iter().find(|(one, _, _)| *one == endpoint);
            let (_, _, template) = listed.expect("it is listed");
            // A path in a repository is checked by its own grammar.
            let has_one_segment = endpoint == Endpoint::Repo || !parameter.contains('/');
            assert!(has_one_segment, "{parameter}");
            assert_eq!(parameter.is_empty(), !template.contains('{'));
            let start = template.split('{').next().unwrap_or_default();
            assert!(path.starts_with(start), "{path} is {template}");
            assert_eq!(is_v1(path), template.starts_with("/v1/"));
        }
        Err(NoRoute::Method(allowed)) => {
            for method in allowed.split(", ") {
                assert!(route(method, path).is_ok(), "{method} {path}");
            }
        }
        Err(NoRoute::Path) => {}
    }
}

/// A body that is read is written so that it reads back as the same value.
fn body(bytes: &[u8]) {
    fn round_trip<T: DeserializeOwned + Serialize + PartialEq>(bytes: &[u8]) {
        let Ok(value) = serde_json::from_slice::<T>(bytes) else {
            return;
        };
        let text = serde_json::to_vec(&value).expect("JSON");
        assert!(serde_json::from_slice::<T>(&text).is_ok_and(|again| again == value));
    }
    round_trip::<EnrolRequest>(bytes);
    round_trip::<Report>(bytes);
    round_trip::<Revocation>(bytes);
}

const SITE: &str = "site";
const NOW: i64 = 1_800_000_000;

fn token_keys() -> (TokenKeys, SigningKey, SigningKey) {
    let key = |digits| SigningKey::from_hex(digits).expect("a key");
    let keys = TokenKeys::from_hex(Some("00ff"), [("k1", "11ee")]);
    (keys.expect("keys"), key("00ff"), key("11ee"))
}

/// A token that was not minted is refused; a minted one is valid for its node, unchanged and until
/// it expires.
fn provisioning(text: &str, size: usize) {
    let (keys, first, second) = token_keys();
    if let Ok(claims) = verify_at(text, &keys, None, SITE, NOW) {
        assert_eq!(Ok(claims), inspect(text));
    }
    let (node, spec) = text.split_at(text.floor_char_boundary(text.len() / 2));
    let own = |guest| Claims {
        node: node.into(),
        spec: spec.into(),
        issued_at: NOW,
        guest,
    };
    let guest = GuestClaims {
        uuid: text.into(),
        site: SITE.into(),
        token_id: spec.into(),
        key_id: "k1".into(),
        expires_at: NOW.saturating_add_unsigned(size as u64 + 1),
    };
    for (claims, key, other) in [
        (own(None), &first, &second),
        (own(Some(guest)), &second, &first),
    ] {
        let token = mint(&claims, key);
        let check = |token: &str| verify_at(token, &keys, Some(node), SITE, NOW);
        assert_eq!(check(&token).as_ref(), Ok(&claims));
        assert_eq!(check(&mint(&claims, other)), Err(TokenError::Signature));
        let elsewhere = verify_at(&token, &keys, Some(&format!("{node}x")), SITE, NOW);
        assert!(elsewhere.is_err(), "another node");
        if let Some(changed) = flipped(&token, size) {
            assert!(check(&changed).is_err(), "one bit was changed: {changed}");
        }
        if let Some(guest) = &claims.guest {
            let expired = verify_at(&token, &keys, Some(node), SITE, guest.expires_at);
            assert_eq!(expired, Err(TokenError::Expired(0)));
            let foreign = verify_at(&token, &keys, Some(node), "other", NOW);
            assert_eq!(foreign, Err(TokenError::Audience));
        }
    }
}

/// Returns a text with one bit changed, if it is text then.
fn flipped(text: &str, bit: usize) -> Option<String> {
    let mut bytes = text.as_bytes().to_vec();
    let at = bit % (bytes.len() * 8);
    bytes[at / 8] ^= 1 << (at % 8);
    String::from_utf8(bytes).ok()
}

static AUTHORITY: LazyLock<Credential> =
    LazyLock::new(|| Credential::authority(SITE, Timestamp::UNIX_EPOCH).expect("an authority"));

/// Certificates and keys in any text are read or refused; what is issued can be read.
fn certificate(text: &str, bytes: &[u8]) {
    let _ = certificates(text);
    let _ = Credential::from_text(text);
    if let Some(fingerprint) = Fingerprint::parse(text) {
        assert_eq!(
            Fingerprint::parse(&fingerprint.to_string()),
            Some(fingerprint)
        );
    }
    if let Ok(key) = NodeKey::from_pem(text) {
        let again = NodeKey::from_pem(&key.pem()).expect("the same");
        assert_eq!(again.public(), key.public());
        assert!(key.with_chain(text).is_err(), "a key is no chain");
    }
    let role = Role::Node {
        name: text.into(),
        uuid: text.into(),
    };
    let mut key = [4; 65];
    let length = bytes.len().min(64);
    key[1..=length].copy_from_slice(&bytes[..length]);
    let at = Timestamp::UNIX_EPOCH;
    assert!(AUTHORITY.issue_to(&role, bytes, at).is_err() || bytes.len() == 65);
    if let Ok(issued) = AUTHORITY.issue_to(&role, &key, at) {
        let chain = certificates(&issued.chain).expect("what was issued can be read");
        assert_eq!(chain.len(), 2);
        assert_eq!(Fingerprint::of(&chain[0]).to_string(), issued.fingerprint);
    }
}

static KEY: LazyLock<SiteKey> = LazyLock::new(|| SiteKey::generate().expect("a key"));

/// A statement that was not signed is refused; a signed one is valid for its purpose and unchanged.
fn statement(text: &str, bytes: &[u8]) {
    let keys = [KEY.public()];
    assert!(verify::<serde_json::Value>(Purpose::Spec, text, &keys).is_err());
    assert!(verify_spec(text, bytes, &keys).is_err());
    let _ = serde_json::from_str::<SpecStatement>(text);
    if let Ok(key) = SitePublicKey::parse(text) {
        assert_eq!(SitePublicKey::parse(&key.to_string()), Ok(key));
    }
    let signed = KEY.sign(Purpose::Spec, &text).expect("signed");
    let check = |purpose, signed: &str| verify::<String>(purpose, signed, &keys);
    assert_eq!(check(Purpose::Spec, &signed).as_deref(), Ok(text));
    assert!(check(Purpose::Agent, &signed).is_err());
    assert!(verify::<SpecStatement>(Purpose::Spec, &signed, &keys).is_err());
    if let Some(changed) = flipped(&signed, bytes.len()) {
        assert!(
            check(Purpose::Spec, &changed).is_err(),
            "one bit was changed"
        );
    }
}
