//! Tests of publishing: generations, tokens, new keys and certificates, revocations.

use homestak_api::publication::PublishedRevocation;

use super::*;
use crate::server::nodes::lowest_agent;

fn now(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

fn publisher(root: &std::path::Path) -> Publisher {
    let site = SiteId::from_random([7; 16]);
    Publisher {
        keys: SiteKeys::open(&root.join("state"), &site, now(0)).expect("keys"),
        directory: PublishDirectory::new(root.join("published")),
        settings: SiteSettings::default(),
        site,
    }
}

fn node(body: &str) -> NodeSpec {
    NodeSpec {
        manifest: "lab".to_owned(),
        host: "local".to_owned(),
        node: "web".to_owned(),
        uuid: GuestUuid::new("11111111-1111-4111-8111-111111111111").expect("a UUID"),
        spec: "base".to_owned(),
        body: body.to_owned(),
        first_contact: FirstContact::NodeToken,
        token_sha256: None,
        single_use: false,
        had_token: false,
        servers: vec!["https://10.77.0.1:44443".to_owned()],
        mode: None,
        trigger: None,
    }
}

#[test]
fn a_generation_rises_with_every_change_and_only_then() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    let publish = |body, at| {
        let (statement, _) = publisher
            .publish_spec(&node(body), (TokenIssue::Keep, Generation::Same), now(at))
            .expect("done");
        statement.generation
    };
    let first = publish("{}", 0);
    assert_eq!(publish("{}", 100), first);
    let second = publish("{\"a\":1}", 100);
    assert!(second > first);
    // A clock that was set back does not lower it.
    assert_eq!(publish("{}", -500), second + 1);
    let again = publisher
        .publish_spec(&node("{}"), (TokenIssue::Keep, Generation::Next), now(200))
        .expect("done");
    assert!(again.0.generation > second + 1);
}

#[test]
fn a_spec_that_is_signed_with_a_new_token_is_not_older_than_the_enrolment() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    let publish = |how, at| {
        let published = publisher.publish_spec(&node("{}"), how, now(at));
        published.expect("done")
    };
    let (first, _) = publish((TokenIssue::Keep, Generation::Same), 0);
    let (second, token) = publish((TokenIssue::New, Generation::Next), 100);
    let claims = homestak_core::token::inspect(&token.expect("a token")).expect("claims");
    assert_eq!(second.issued, claims.issued_at, "nodes accept it then");
    assert!(second.generation > first.generation);
}

#[test]
fn a_spec_is_signed_again_with_each_new_token_and_never_earlier_than_its_enrolment() {
    let root = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(root.path());
    let day = 24 * 3600;
    let publish = |body, token, at| {
        let published = publisher.publish_spec(&node(body), (token, Generation::Same), now(at));
        published.expect("done").0
    };
    let first = publish("{}", TokenIssue::Keep, 0);
    let second = publish("{}", TokenIssue::Valid, 100);
    assert_eq!(second.issued, now(100).as_second());
    assert!(second.generation > first.generation);
    assert_eq!(publish("{}", TokenIssue::Valid, 200), second);
    assert_eq!(publish("{}", TokenIssue::Keep, 200), second);
    // The clock was set back after a guest was created with this token and this spec.
    let third = publish("{\"a\":1}", TokenIssue::Keep, 50);
    assert_eq!(third.issued, second.issued);
    let expired = publish("{\"a\":1}", TokenIssue::Valid, 100 + day);
    assert_eq!(expired.issued, now(100 + day).as_second());
    let fourth = publish("{\"a\":1}", TokenIssue::New, 60);
    assert_eq!(fourth.issued, now(60).as_second());
    publisher.keys.announce_site_key().expect("generated");
    let signed = publisher.sign_again(&[], now(40)).expect("signed");
    assert_eq!(signed[0].issued, fourth.issued);
}

#[test]
fn a_damaged_spec_is_published_again() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    let how = (TokenIssue::Keep, Generation::Same);
    let publish = |at| publisher.publish_spec(&node("{}"), how, now(at));
    let (first, _) = publish(0).expect("published");
    let file = format!("published/specs/{}.json", node("{}").uuid);
    fs_err::write(root.path().join(file), "{").expect("written");
    let (second, _) = publish(100).expect("published");
    assert!(second.generation > first.generation, "nodes accept it");
    let found = publisher.directory.spec(&second.uuid).expect("readable");
    assert!(found.is_some());
}

#[test]
fn a_token_is_the_same_until_it_expires_or_is_spent() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    let publish = |token, at| {
        let published = publisher.publish_spec(&node("{}"), (token, Generation::Same), now(at));
        published.expect("published").1
    };
    let first = publish(TokenIssue::Valid, 0).expect("a token");
    assert_eq!(publish(TokenIssue::Keep, 5), None);
    assert_eq!(publish(TokenIssue::Valid, 3600).as_ref(), Some(&first));
    let second = publish(TokenIssue::New, 3600).expect("a token");
    assert_ne!(second, first);
    assert_eq!(publish(TokenIssue::Valid, 3601).as_ref(), Some(&second));
    let day = 24 * 3600;
    assert_ne!(
        publish(TokenIssue::Valid, 3600 + day).as_ref(),
        Some(&second)
    );
    // A token for another spec would be refused.
    let third = publish(TokenIssue::Valid, 2 * day);
    let other = NodeSpec {
        spec: "other".to_owned(),
        ..node("{}")
    };
    let published =
        publisher.publish_spec(&other, (TokenIssue::Valid, Generation::Same), now(2 * day));
    assert_ne!(published.expect("published").1, third);
}

#[test]
fn a_spec_records_that_its_node_had_a_token_also_when_the_token_is_no_longer_published() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    let publish = |token, had_token| {
        let node = NodeSpec {
            had_token,
            ..node("{}")
        };
        let published = publisher.publish_spec(&node, (token, Generation::Same), now(0));
        published.expect("published");
        let spec = publisher.directory.spec(&node.uuid).expect("read");
        spec.expect("a spec").had_token
    };
    assert!(!publish(TokenIssue::Keep, false));
    assert!(publish(TokenIssue::Keep, true), "its record shows it");
    let uuid = node("{}").uuid;
    publisher.directory.remove_spec(&uuid).expect("removed");
    assert!(publish(TokenIssue::Valid, false));
    let forget = |spec: &mut PublishedSpec| spec.token = None;
    publisher.change_spec(&uuid, forget).expect("written");
    assert!(publish(TokenIssue::Keep, false));
    assert!(publish(TokenIssue::New, false));
}

#[test]
fn the_generation_of_an_agent_rises_when_the_program_changes_also_to_an_earlier_one() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    assert_eq!(lowest_agent(&publisher), None, "none is published");
    let publish = |version: &str, program: &[u8]| {
        let published = publisher.publish_agent("x86_64", version, program);
        published.expect("published");
        let keys = publisher.keys.public_keys();
        let statement = publisher.directory.agent("x86_64", &keys);
        statement.expect("a statement").generation
    };
    let first = publish("0.2.0", b"two");
    assert!(first > 0);
    assert_eq!(publish("0.2.0", b"two"), first);
    let second = publish("0.1.0", b"one");
    assert!(second > first);
    let third = publish("0.2.0", b"two");
    assert!(third > second);
    // What the first boot of a node requires.
    assert_eq!(lowest_agent(&publisher), Some(third));
}

#[test]
fn what_is_published_is_read_by_a_server() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    publisher.publish_site(now(0)).expect("published");
    let (_, token) = publisher
        .publish_spec(&node("{}"), (TokenIssue::Valid, Generation::Same), now(0))
        .expect("published");
    assert!(token.is_some());
    publisher
        .publish_agent("x86_64", "0.1.0", b"program")
        .expect("published");
    let found = publisher.directory.read().expect("read");
    assert!(found.unusable.is_empty());
    assert_eq!((found.specs.len(), found.agents.len()), (1, 1));
    let issued =
        |found: homestak_api::publication::Published| found.secrets.intermediate.issued().clone();
    let first = issued(found);
    publisher.publish_site(now(3600)).expect("published again");
    assert_eq!(issued(publisher.directory.read().expect("read")), first);
    publisher
        .publish_site(now(25 * 24 * 3600))
        .expect("published late");
    assert_ne!(issued(publisher.directory.read().expect("read")), first);
}

#[test]
fn a_new_site_key_is_announced_by_the_old_one_and_signs_after_it() {
    let root = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(root.path());
    publisher.publish_site(now(0)).expect("published");
    publisher
        .publish_spec(&node("{}"), (TokenIssue::Keep, Generation::Same), now(0))
        .expect("published");
    publisher
        .publish_agent("x86_64", "0.1.0", b"program")
        .expect("published");
    let uuid = node("{}").uuid;
    let statement = |publisher: &Publisher, keys: &[SitePublicKey]| {
        let spec = publisher.directory.spec(&uuid).expect("read");
        spec.expect("a spec").verify(keys)
    };
    let old = publisher.keys.site_key.public();
    let first = statement(&publisher, &[old]).expect("signed by the first");
    assert!(publisher.sign_again(&[], now(5)).expect("done").is_empty());

    // A node that knows the old key only accepts the statement that names the new one.
    publisher.keys.announce_site_key().expect("generated");
    assert_eq!(publisher.sign_again(&[], now(10)).expect("signed").len(), 1);
    let announced = statement(&publisher, &[old]).expect("still signed by the old one");
    let new = announced.keys[1];
    assert_eq!(announced.keys, [old, new]);
    assert!(announced.generation > first.generation);
    assert_eq!(announced.sha256, first.sha256);

    // Once it is retired, the old key is worth nothing to a node that knows the new one.
    assert!(publisher.keys.retire_site_key());
    assert_eq!(
        publisher.sign_again(&[old], now(20)).expect("signed").len(),
        1
    );
    let retired = statement(&publisher, &[new]).expect("signed by the new one");
    assert_eq!(retired.keys, [new]);
    assert!(retired.generation > announced.generation);
    statement(&publisher, &[old]).expect_err("not by the old one");
    publisher.keys.store_site_key().expect("stored");
    publisher.publish_site(now(30)).expect("published");
    let found = publisher.directory.read().expect("read");
    assert!(found.unusable.is_empty(), "{:?}", found.unusable);
    assert_eq!((found.specs.len(), found.agents.len()), (1, 1));
}

#[test]
fn an_own_certificate_is_announced_by_new_statements() {
    let root = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(root.path());
    publisher
        .publish_spec(&node("{}"), (TokenIssue::Keep, Generation::Same), now(0))
        .expect("published");
    let own = homestak_api::certificate::Credential::authority("own", now(0)).expect("one");
    let pem = own.issued().chain.clone();
    publisher
        .keys
        .set_servers(vec![pem.clone()])
        .expect("stored");
    let signed = publisher.sign_again(&[], now(1)).expect("signed");
    let authority = publisher.keys.authority.issued();
    let expected = [
        authority.fingerprint.clone(),
        own.issued().fingerprint.clone(),
    ];
    assert_eq!(signed[0].fingerprints, expected);
    assert_eq!(publisher.authorities(), [authority.chain.clone(), pem]);
}

#[test]
fn a_revocation_stays_published_until_the_node_gets_a_new_token() {
    let root = tempfile::tempdir().expect("a directory");
    let publisher = publisher(root.path());
    let publish = |token| {
        let published = publisher.publish_spec(&node("{}"), (token, Generation::Same), now(0));
        published.expect("published");
        let spec = publisher.directory.spec(&node("{}").uuid).expect("read");
        spec.expect("a spec").revoked
    };
    publish(TokenIssue::Valid);
    let revoked = PublishedRevocation {
        at: 5,
        reason: "stolen".to_owned(),
    };
    let change = |spec: &mut PublishedSpec| spec.revoked = Some(revoked.clone());
    publisher
        .change_spec(&node("{}").uuid, change)
        .expect("written");
    assert_eq!(publish(TokenIssue::Keep), Some(revoked));
    assert_eq!(publish(TokenIssue::New), None);
}

#[test]
fn what_is_published_of_secrets_stays_while_they_cannot_be_opened() {
    let root = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(root.path());
    let key = |text: &str| Some(Zeroizing::new(text.to_owned()));
    publisher.settings.secrets = Some(SiteSecrets {
        signing_key: key("00"),
        webhooks: [("deploy".to_owned(), Zeroizing::new("secret".to_owned()))].into(),
    });
    let with_token = NodeSpec {
        token_sha256: Some(sha256(b"token")),
        ..node("{}")
    };
    let how = (TokenIssue::Keep, Generation::Same);
    let published = |publisher: &Publisher| {
        let found = publisher.directory.read().expect("published");
        let (_, spec) = found.specs.into_values().next().expect("one");
        let secrets = found.secrets;
        (secrets.signing_key, secrets.webhooks, spec.token_sha256)
    };
    publisher.publish_site(now(0)).expect("published");
    publisher
        .publish_spec(&with_token, how, now(0))
        .expect("published");
    let known = published(&publisher);
    assert_eq!((&known.0, known.1.len()), (&key("00"), 1));
    assert_eq!(known.2, with_token.token_sha256);

    publisher.settings.secrets = None;
    publisher.publish_site(now(1)).expect("published");
    publisher
        .publish_spec(&node("{}"), how, now(1))
        .expect("published");
    assert_eq!(published(&publisher), known);

    publisher.settings.secrets = Some(SiteSecrets::default());
    publisher.publish_site(now(2)).expect("published");
    publisher
        .publish_spec(&node("{}"), how, now(2))
        .expect("published");
    assert_eq!(published(&publisher), (None, BTreeMap::new(), None));
}
