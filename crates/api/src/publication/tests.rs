//! Tests of published files: signatures, copies, access.

use jiff::Timestamp;

use super::*;
use crate::signature::SiteKey;

fn uuid() -> GuestUuid {
    GuestUuid::new("11111111-1111-4111-8111-111111111111").expect("a UUID")
}

fn signed(key: &SiteKey, site: &str, body: &str) -> PublishedSpec {
    let statement = SpecStatement {
        site: site.to_owned(),
        manifest: "lab".to_owned(),
        host: "local".to_owned(),
        node: "web".to_owned(),
        uuid: uuid(),
        generation: 1,
        issued: 1_800_000_000,
        sha256: sha256(body.as_bytes()),
        servers: Vec::new(),
        fingerprints: Vec::new(),
        keys: vec![key.public()],
    };
    PublishedSpec {
        statement: key.sign(Purpose::Spec, &statement).expect("signed"),
        spec: "base".to_owned(),
        body: body.to_owned(),
        first_contact: FirstContact::NodeToken,
        token_sha256: None,
        single_use: false,
        token: None,
        had_token: false,
        revoked: None,
        mode: None,
        trigger: None,
    }
}

fn directory(key: &SiteKey) -> (tempfile::TempDir, PublishDirectory) {
    let root = tempfile::tempdir().expect("a directory");
    let directory = PublishDirectory::new(root.path());
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let site = SiteInfo {
        site: "s".to_owned(),
        keys: vec![key.public()],
        operators: BTreeMap::new(),
        specs: BTreeSet::new(),
        trusted_networks: vec!["127.0.0.0/8".to_owned()],
        server_names: Vec::new(),
    };
    let secrets = ServerSecrets {
        signing_key: None,
        token_keys: BTreeMap::new(),
        intermediate: Credential::authority("s", now).expect("an authority"),
        repo_token_sha256: None,
        webhooks: Default::default(),
    };
    directory.put_site(&site, &secrets).expect("written");
    (root, directory)
}

#[test]
fn published_files_are_read_back_and_removed() {
    let key = SiteKey::generate().expect("a key");
    let (_root, directory) = directory(&key);
    let spec = signed(&key, "s", "{}");
    directory.put_spec(&uuid(), &spec).expect("written");
    let published = directory.read().expect("read");
    assert_eq!(published.specs[&uuid()].1, spec);
    assert!(published.unusable.is_empty());
    assert!(published.site.trusts([127, 0, 0, 9].into()));
    assert!(!published.site.trusts([10, 0, 0, 9].into()));
    directory.remove_spec(&uuid()).expect("removed");
    directory.remove_spec(&uuid()).expect("nothing to do");
    assert!(directory.read().expect("read").specs.is_empty());
}

#[test]
fn a_spec_that_the_site_did_not_sign_is_listed_and_not_served() {
    let key = SiteKey::generate().expect("a key");
    let (root, directory) = directory(&key);
    let mut changed = signed(&key, "s", "{}");
    changed.body = "{\"more\": 1}".to_owned();
    let foreign = signed(&SiteKey::generate().expect("a key"), "s", "{}");
    let other_site = signed(&key, "t", "{}");
    for spec in [changed, foreign, other_site] {
        directory.put_spec(&uuid(), &spec).expect("written");
        let published = directory.read().expect("read");
        assert!(published.specs.is_empty());
        assert_eq!(published.unusable.len(), 1);
    }
    let renamed = root
        .path()
        .join("specs/22222222-2222-4222-8222-222222222222.json");
    directory
        .put_spec(&uuid(), &signed(&key, "s", "{}"))
        .expect("written");
    fs_err::rename(root.path().join(spec_file(&uuid())), renamed).expect("renamed");
    fs_err::write(root.path().join("specs/x.json"), "{").expect("written");
    let published = directory.read().expect("read");
    assert!(published.specs.is_empty());
    assert_eq!(published.unusable.len(), 2);
}

#[test]
fn a_spec_is_withdrawn_until_it_is_published_again_also_in_a_copy() {
    let key = SiteKey::generate().expect("a key");
    let (_root, from) = directory(&key);
    let copy = tempfile::tempdir().expect("a directory");
    let to = PublishDirectory::new(copy.path());
    let withdrawn = || {
        to.copy_from(&from).expect("copied");
        let (here, there) = (from.read().expect("read"), to.read().expect("read"));
        assert_eq!(here.withdrawn, there.withdrawn);
        assert_eq!(here.specs.len(), there.specs.len());
        (there.specs.len(), there.withdrawn)
    };
    let spec = signed(&key, "s", "{}");
    from.put_spec(&uuid(), &spec).expect("written");
    let why = PublishedRevocation {
        at: 1_800_000_000,
        reason: DESTROYED.to_owned(),
    };
    from.withdraw_spec(&uuid(), &why).expect("withdrawn");
    let all = BTreeMap::from([(uuid(), why.clone())]);
    assert_eq!(withdrawn(), (0, all));
    from.put_spec(&uuid(), &spec).expect("written");
    assert_eq!(withdrawn(), (1, BTreeMap::new()));
    // Interrupted before the spec was removed.
    from.put(&withdrawn_file(&uuid()), &why).expect("written");
    assert_eq!(withdrawn(), (1, BTreeMap::new()));
}

#[test]
fn a_copy_has_the_same_files_and_its_group_reads_them_if_the_directory_has_setgid() {
    use std::os::unix::fs::PermissionsExt as _;
    let key = SiteKey::generate().expect("a key");
    let (_root, from) = directory(&key);
    from.put_spec(&uuid(), &signed(&key, "s", "{}"))
        .expect("written");
    from.put_agent("x86_64", b"program", "statement")
        .expect("written");
    for (bits, file_mode, directory_mode) in [(0o700, 0o600, 0o700), (0o2750, 0o640, 0o2750)] {
        let root = tempfile::tempdir().expect("a directory");
        let permissions = std::fs::Permissions::from_mode(bits);
        fs_err::set_permissions(root.path(), permissions).expect("set");
        let to = PublishDirectory::new(root.path());
        assert!(to.copy_from(&from).expect("copied"));
        assert!(!to.copy_from(&from).expect("nothing to do"));
        assert_eq!(
            to.all_files().expect("read"),
            from.all_files().expect("read")
        );
        assert_eq!(to.all_files().expect("read").len(), 5);
        let mode = |name: &str| {
            let found = fs_err::metadata(root.path().join(name)).expect("there");
            found.permissions().mode() & 0o7777
        };
        assert_eq!(mode("secrets.json"), file_mode);
        assert_eq!(mode("specs"), directory_mode);
        let removed = root.path().join("specs/x.json");
        fs_err::write(&removed, "{}").expect("written");
        assert!(to.copy_from(&from).expect("copied"));
        assert!(!removed.exists());
    }
}

#[test]
fn the_node_of_a_spec_that_does_not_say_so_counts_as_one_that_had_a_token() {
    let key = SiteKey::generate().expect("a key");
    let spec = signed(&key, "s", "{}");
    let mut text = serde_json::to_value(&spec).expect("JSON");
    let read = |text: &serde_json::Value| {
        let spec: PublishedSpec = serde_json::from_value(text.clone()).expect("a spec");
        spec.had_token
    };
    assert!(!read(&text));
    text.as_object_mut().expect("fields").remove("had_token");
    assert!(read(&text));
}

/// Returns a directory with what is published, and one with a mode that it is copied to.
fn copies(mode: u32) -> ([tempfile::TempDir; 2], PublishDirectory, PublishDirectory) {
    let key = SiteKey::generate().expect("a key");
    let (root, from) = directory(&key);
    from.put_spec(&uuid(), &signed(&key, "s", "{}"))
        .expect("written");
    let copy = tempfile::tempdir().expect("a directory");
    let mode = std::fs::Permissions::from_mode(mode);
    fs_err::set_permissions(copy.path(), mode).expect("set");
    let to = PublishDirectory::new(copy.path());
    ([root, copy], from, to)
}

#[test]
fn nothing_is_published_to_a_directory_that_others_can_change() {
    for (mode, is_usable) in [
        (0o700, true),
        (0o2750, true),
        (0o755, true),
        (0o2770, false),
        (0o1777, false),
    ] {
        let ([_from, root], from, to) = copies(mode);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(root.path(), None, Some(65534)).expect("changed");
            let mode = std::fs::Permissions::from_mode(mode);
            fs_err::set_permissions(root.path(), mode).expect("set");
        } else if mode == 0o2770 {
            continue;
        }
        assert_eq!(to.copy_from(&from).is_ok(), is_usable, "{mode:o}");
    }
    if rustix::process::geteuid().is_root() {
        let ([_from, root], from, to) = copies(0o700);
        std::os::unix::fs::chown(root.path(), Some(65534), None).expect("changed");
        let refused = to
            .copy_from(&from)
            .expect_err("of another user")
            .to_string();
        assert!(refused.contains("user 65534"), "{refused}");
        assert!(!root.path().join("secrets.json").exists());
    }
}

#[test]
fn nothing_is_published_or_deleted_through_links() {
    for name in ["specs", "agents", "withdrawn", "repos"] {
        let ([_from, root], from, to) = copies(0o700);
        let other = tempfile::tempdir().expect("a directory");
        let kept = other
            .path()
            .join("11111111-1111-4111-8111-111111111112.json");
        fs_err::write(&kept, "{}").expect("written");
        std::os::unix::fs::symlink(other.path(), root.path().join(name)).expect("linked");
        to.copy_from(&from).expect_err("a link");
        assert!(kept.exists(), "{name}");
        assert_eq!(fs_err::read_dir(other.path()).expect("read").count(), 1);
    }
}

#[test]
fn only_files_that_can_be_published_are_deleted() {
    let ([_from, root], from, to) = copies(0o700);
    to.copy_from(&from).expect("copied");
    for (name, is_deleted) in [
        ("specs/22222222-2222-4222-8222-222222222222.json", true),
        ("specs/notes", false),
        ("specs/lost+found", false),
    ] {
        let path = root.path().join(name);
        fs_err::write(&path, "{}").expect("written");
        assert_eq!(to.copy_from(&from).expect("copied"), is_deleted, "{name}");
        assert_eq!(path.exists(), !is_deleted, "{name}");
    }
}
