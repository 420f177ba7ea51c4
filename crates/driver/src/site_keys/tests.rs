//! Tests of the keys of a site: generated once, private, renewed, replaced.

use std::os::unix::fs::PermissionsExt as _;

use homestak_core::token::{TokenKeys, verify_at};

use super::*;

fn site() -> SiteId {
    SiteId::from_random([7; 16])
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

#[test]
fn keys_are_generated_once_and_only_their_owner_reads_them() {
    let state = tempfile::tempdir().expect("a directory");
    let first = SiteKeys::open(state.path(), &site(), now()).expect("keys");
    let again = SiteKeys::open(state.path(), &site(), now()).expect("the same keys");
    assert_eq!(first.public_keys(), again.public_keys());
    assert_eq!(first.authority.issued(), again.authority.issued());
    assert_eq!(first.operator.issued(), again.operator.issued());
    let directory = state.path().join(DIRECTORY).join(site().to_string());
    let mode = |path: &Path| {
        let found = fs_err::metadata(path).expect("there");
        found.permissions().mode() & 0o777
    };
    assert_eq!(mode(&directory), 0o700);
    for name in [SITE_KEY, AUTHORITY, OPERATOR, TOKENS] {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
}

#[test]
fn the_operators_certificate_is_renewed_before_it_expires() {
    let state = tempfile::tempdir().expect("a directory");
    let first = SiteKeys::open(state.path(), &site(), now()).expect("keys");
    let later = now() + Duration::from_secs(300 * 24 * 3600);
    let renewed = SiteKeys::open(state.path(), &site(), later).expect("keys");
    assert_ne!(first.operator.issued(), renewed.operator.issued());
    assert_eq!(first.authority.issued(), renewed.authority.issued());
    let before = renewed.previous_operator.expect("the one before");
    assert_eq!(before.issued(), first.operator.issued());
    let expired = now() + Duration::from_secs(366 * 24 * 3600);
    let keys = SiteKeys::open(state.path(), &site(), expired).expect("keys");
    assert!(keys.previous_operator.is_none());
}

#[test]
fn the_current_site_key_signs_until_it_is_retired() {
    let state = tempfile::tempdir().expect("a directory");
    let open = || SiteKeys::open(state.path(), &site(), now()).expect("keys");
    let first = open().site_key.public();
    assert!(!open().retire_site_key(), "nothing follows it");
    open().announce_site_key().expect("generated");
    open().announce_site_key().expect("once");
    let keys = open().public_keys();
    assert_eq!((keys.len(), keys[0]), (2, first));
    let mut retiring = open();
    assert!(retiring.retire_site_key());
    assert_eq!(retiring.public_keys(), keys[1..]);
    // Killed before it is stored: nothing is lost.
    assert_eq!(open().public_keys(), keys);
    retiring.store_site_key().expect("stored");
    assert_eq!(open().public_keys(), keys[1..]);
}

#[test]
fn tokens_of_an_older_key_are_valid_until_it_is_retired() {
    let state = tempfile::tempdir().expect("a directory");
    let open = || SiteKeys::open(state.path(), &site(), now()).expect("keys");
    let issued = IssuedToken {
        id: "1".to_owned(),
        issued: now().as_second(),
        expires: now().as_second() + 60,
    };
    let guest = ("web", "base", "a-guest");
    let token = open().mint(&site(), guest, &issued).expect("a token");
    open().add_token_key(now()).expect("added");
    let is_valid = |token: &str| {
        let keys = open().token_keys;
        let keys = keys.iter().map(|key| (key.id.as_str(), key.key.as_str()));
        let keys = TokenKeys::from_hex(None, keys).expect("keys");
        let (site, now) = (site().to_string(), now().as_second());
        verify_at(token, &keys, Some("web"), &site, now).is_ok()
    };
    assert!(is_valid(&token));
    let newer = open().mint(&site(), guest, &issued).expect("a token");
    assert_ne!(newer, token);
    assert_eq!(open().retire_token_keys().expect("retired").len(), 1);
    assert!(!is_valid(&token));
    assert!(is_valid(&newer));
}

#[test]
fn a_minted_token_is_for_its_guest_and_expires() {
    let state = tempfile::tempdir().expect("a directory");
    let keys = SiteKeys::open(state.path(), &site(), now()).expect("keys");
    let hour = Duration::from_secs(3600);
    let guest = ("web", "base", "a-guest");
    let issued = IssuedToken {
        id: "1".to_owned(),
        issued: now().as_second(),
        expires: (now() + hour).as_second(),
    };
    let token = keys.mint(&site(), guest, &issued).expect("a token");
    let key = &keys.token_keys[0];
    let known = TokenKeys::from_hex(None, [(key.id.as_str(), key.key.as_str())]);
    let known = known.expect("keys");
    let site = site().to_string();
    let verify = |at: Timestamp| verify_at(&token, &known, Some("web"), &site, at.as_second());
    let claims = verify(now()).expect("valid").guest.expect("a guest");
    assert_eq!((&*claims.uuid, &*claims.token_id), ("a-guest", "1"));
    verify(now() + hour).expect_err("expired");
}

#[test]
fn a_damaged_file_is_named_and_not_replaced() {
    let state = tempfile::tempdir().expect("a directory");
    SiteKeys::open(state.path(), &site(), now()).expect("keys");
    let path = state
        .path()
        .join(DIRECTORY)
        .join(site().to_string())
        .join(AUTHORITY);
    fs_err::write(&path, "{").expect("written");
    let error = SiteKeys::open(state.path(), &site(), now())
        .map(drop)
        .expect_err("damaged");
    assert!(error.to_string().contains(AUTHORITY), "{error}");
    assert_eq!(fs_err::read(&path).expect("read"), b"{");
}

#[test]
fn an_inspection_generates_and_stores_nothing() {
    let state = tempfile::tempdir().expect("a directory");
    let inspect = || SiteKeys::inspect(state.path(), &site(), now()).expect("keys");
    assert_eq!(inspect().missing, [SITE_KEY, AUTHORITY]);
    assert!(!state.path().join(DIRECTORY).exists());
    let generated = SiteKeys::open(state.path(), &site(), now()).expect("keys");
    assert_eq!(generated.missing, [SITE_KEY, AUTHORITY]);
    assert_eq!(inspect().public_keys(), generated.public_keys());
    assert!(inspect().missing.is_empty());
    let lost = generated.directory().join(AUTHORITY);
    fs_err::remove_file(&lost).expect("removed");
    assert_eq!(inspect().missing, [AUTHORITY]);
    assert!(!lost.exists());
}
