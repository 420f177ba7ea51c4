//! Nodes, tokens and reports.

use rusqlite::Connection;

use super::*;

fn entry(uuid: &str) -> NodeEntry {
    NodeEntry {
        uuid: uuid.to_owned(),
        name: "web".to_owned(),
        manifest: "lab".to_owned(),
        host: "local".to_owned(),
        certificate: None,
        public_key: None,
        replaced: None,
        replaced_until: None,
        renewed_late: false,
        enrolled: None,
        revoked: None,
        address: None,
        agent: None,
        last_contact: None,
    }
}

fn registry() -> (tempfile::TempDir, Registry) {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = Registry::open(&directory.path().join("server.db")).expect("a registry");
    (directory, registry)
}

#[test]
fn what_was_recorded_is_there_after_a_restart() {
    let (directory, registry) = registry();
    let mut web = entry("a");
    registry.put_node(&web).expect("written");
    web.certificate = Some(CertificateEntry {
        fingerprint: "AA".to_owned(),
        not_before: 1,
        not_after: 2,
    });
    web.public_key = Some("11".to_owned());
    web.replaced = Some("BB".to_owned());
    web.replaced_until = Some(9);
    web.revoked = Some((7, "stolen".to_owned()));
    registry.put_node(&web).expect("written again");
    drop(registry);
    let registry = Registry::open(&directory.path().join("server.db")).expect("opened");
    assert_eq!(registry.nodes().expect("read"), [web]);
}

#[test]
fn a_token_is_used_once_and_a_revoked_one_never() {
    let (_directory, registry) = registry();
    let token = TokenEntry {
        id: "t".to_owned(),
        uuid: "a".to_owned(),
        node: "web".to_owned(),
        issued: 1,
        expires: None,
        used: None,
        revoked: None,
    };
    registry.add_token(&token).expect("written");
    assert!(registry.use_token("t", 5).expect("written"));
    registry.add_token(&token).expect("stays as it is");
    assert!(!registry.use_token("t", 6).expect("read"));
    assert_eq!(
        registry.token("t").expect("read").and_then(|t| t.used),
        Some(5)
    );
    let other = TokenEntry {
        id: "u".to_owned(),
        ..token
    };
    registry.add_token(&other).expect("written");
    assert!(registry.revoke_token("u", 7).expect("written"));
    assert!(!registry.use_token("u", 8).expect("read"));
    assert!(!registry.revoke_token("missing", 8).expect("read"));
}

#[test]
fn a_node_is_recorded_together_with_the_use_of_its_token_or_not_at_all() {
    let (_directory, registry) = registry();
    let token = TokenEntry {
        id: "t".to_owned(),
        uuid: "a".to_owned(),
        node: "web".to_owned(),
        issued: 1,
        expires: None,
        used: None,
        revoked: None,
    };
    registry.add_token(&token).expect("written");
    assert!(registry.enrol(&entry("a"), Some("t"), 5).expect("written"));
    assert!(!registry.enrol(&entry("b"), Some("t"), 6).expect("read"));
    assert!(
        !registry
            .enrol(&entry("c"), Some("missing"), 6)
            .expect("read")
    );
    assert_eq!(registry.nodes().expect("read"), [entry("a")]);
    let used = registry.token("t").expect("read").and_then(|t| t.used);
    assert_eq!(used, Some(5));
    assert!(registry.enrol(&entry("d"), None, 7).expect("written"));
    assert_eq!(registry.nodes().expect("read").len(), 2);
}

#[test]
fn the_last_reports_of_each_node_are_kept_and_numbers_only_rise() {
    let (_directory, registry) = registry();
    for uuid in ["a", "b"] {
        registry.put_node(&entry(uuid)).expect("written");
    }
    let mut last = 0;
    for at in 0..10 {
        for uuid in ["a", "b"] {
            let id = registry.add_report(uuid, at, "{}", 3).expect("written");
            assert!(id > last);
            last = id;
        }
    }
    let kept = registry.reports("a", 0).expect("read");
    assert_eq!(
        kept.iter().map(|one| one.received).collect::<Vec<_>>(),
        [7, 8, 9]
    );
    assert_eq!(registry.reports("a", kept[1].id).expect("read").len(), 1);
}

#[test]
fn a_registry_is_read_while_its_server_writes_and_never_created() {
    let (directory, registry) = registry();
    registry.put_node(&entry("a")).expect("written");
    let path = directory.path().join("server.db");
    let other = Registry::open_to_read(&path).expect("opened").expect("one");
    assert_eq!(other.nodes().expect("read").len(), 1);
    other.put_node(&entry("b")).expect_err("read only");
    registry.add_report("a", 1, "{}", 3).expect("written");
    assert_eq!(other.reports("a", 0).expect("read").len(), 1);
    drop((registry, other));
    let again = Registry::open_to_read(&path).expect("opened").expect("one");
    assert_eq!(again.reports("a", 0).expect("read").len(), 1);
    let missing = directory.path().join("missing.db");
    assert!(Registry::open_to_read(&missing).expect("none").is_none());
    assert!(!missing.exists());
}

#[test]
fn a_file_of_another_program_is_refused_and_not_changed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("other.db");
    let other = Connection::open(&path).expect("a file");
    other
        .execute_batch("CREATE TABLE theirs (x)")
        .expect("theirs");
    drop(other);
    let before = fs_err::read(&path).expect("read");
    let refused = Registry::open(&path).map(drop);
    assert!(matches!(refused, Err(RegistryError::Foreign { .. })));
    assert_eq!(fs_err::read(&path).expect("read"), before);
}

#[test]
fn a_registry_without_jobs_is_migrated_and_keeps_its_nodes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("server.db");
    let old = Connection::open(&path).expect("a file");
    let first = include_str!("../../migrations/registry/0001.sql");
    let marks = "PRAGMA application_id = 1752327527; PRAGMA user_version = 1;";
    let node = "INSERT INTO node (uuid, name, manifest, host) VALUES ('b', 'db', 'lab', 'local');";
    old.execute_batch(&format!("{first}\n{marks}\n{node}"))
        .expect("the format before");
    drop(old);
    // The driver reads one that its server has not migrated yet.
    let read = Registry::open_to_read(&path).expect("read").expect("one");
    assert_eq!(read.nodes().expect("read").len(), 1);
    drop(read);
    let registry = Registry::open(&path).expect("migrated");
    registry.put_node(&entry("a")).expect("written");
    assert_eq!(registry.jobs(None, 10).expect("read"), []);
    drop(registry);
    let again = Registry::open(&path).expect("opened");
    assert_eq!(again.nodes().expect("read").len(), 2);
}

#[test]
fn only_the_history_of_the_named_guests_and_of_other_webhooks_is_deleted() {
    let (_directory, registry) = registry();
    for uuid in ["a", "b"] {
        let enrolled = NodeEntry {
            enrolled: Some(1),
            ..entry(uuid)
        };
        registry.put_node(&enrolled).expect("written");
        registry.add_report(uuid, 1, "{}", 3).expect("written");
    }
    let jobs = TriggerJobs {
        guests: vec!["a".to_owned(), "b".to_owned()],
        origin: "webhook".to_owned(),
        at: 100,
        expires: 200,
    };
    registry.accept_hook("kept", "1", &jobs).expect("written");
    let none = TriggerJobs {
        guests: Vec::new(),
        ..jobs
    };
    registry
        .accept_hook("removed", "1", &none)
        .expect("written");
    let count = |uuid| {
        let reports = registry.reports(uuid, 0).expect("read").len();
        (reports, registry.jobs(Some(uuid), 9).expect("read").len())
    };
    // The id of a job must not be used again before it expires.
    registry.delete_history(&["a"], 199).expect("deleted");
    assert_eq!((count("a"), count("b")), ((0, 1), (1, 1)));
    registry.delete_history(&["a"], 200).expect("deleted");
    assert_eq!((count("a"), count("b")), ((0, 0), (1, 1)));
    assert_eq!(registry.nodes().expect("read").len(), 2);

    // Nor a request be accepted again if its webhook is added again.
    let day = 24 * 3600;
    let last = |hook| registry.last_hook(hook).expect("read");
    registry
        .delete_other_hooks(&["kept"], 100 + day)
        .expect("deleted");
    assert_eq!((last("kept"), last("removed")), (Some(100), Some(100)));
    registry
        .delete_other_hooks(&["kept"], 101 + day)
        .expect("deleted");
    assert_eq!((last("kept"), last("removed")), (Some(100), None));
}
