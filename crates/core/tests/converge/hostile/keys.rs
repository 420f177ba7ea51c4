//! Key files of users: blocked, foreign, oversized or with options.

use homestak_core::converge::{ConvergeStep, Decision, Facts, FileFact, Handling, State, decide};
use serde_json::json;

use super::{KEY, facts, put, spec, text, touched};
use crate::read;

#[test]
fn key_files_that_a_user_blocks_are_refused_and_everything_else_is_applied() {
    let desired = read(&spec(false));
    let blocks: [fn(&mut Facts); 3] = [
        |facts| put(facts, "/home/alice/.ssh", "", "alice", 0o644),
        |facts| {
            let target = "/root/.ssh".to_owned();
            let link = FileFact::Link { target };
            facts.files.insert("/home/alice/.ssh".to_owned(), link);
            let why = "`/home/alice/.ssh` is a symbolic link".to_owned();
            facts
                .refused_paths
                .insert("/home/alice/.ssh/authorized_keys".to_owned(), why);
        },
        |facts| {
            let path = "/home/alice/.ssh/authorized_keys".to_owned();
            facts.files.insert(path, FileFact::Other);
        },
    ];
    for block in blocks {
        let mut facts = facts();
        block(&mut facts);
        let decision = decide(&desired, &facts, &State::default());
        assert_eq!(decision.refusals, [""; 0]);
        let refused: Vec<&String> = decision.refused.keys().collect();
        assert_eq!(refused, ["keys:alice//home/alice/.ssh"]);
        assert!(!decision.is_converged());
        let touched = touched(&decision);
        assert!(touched.contains(&"/home/bob/.ssh/authorized_keys"));
        assert!(!touched.iter().any(|path| path.starts_with("/home/alice")));
        let enforced = decision
            .changes
            .iter()
            .filter(|change| change.resource == "keys:alice");
        assert!(enforced.clone().count() == 1);
        assert!(
            enforced
                .clone()
                .all(|change| change.handling == Handling::Report)
        );
    }
}

#[test]
fn an_account_is_disabled_and_nothing_is_deleted_through_a_link() {
    let mut facts = facts();
    let path = "/home/alice/.ssh/authorized_keys".to_owned();
    facts
        .refused_paths
        .insert(path.clone(), "a link".to_owned());
    let mut last = State::default();
    last.managed.users.insert("alice".to_owned(), true);
    last.managed.files.insert(path);
    let mut spec = spec(false);
    spec["access"]["users"].as_array_mut().unwrap().remove(0);
    let decision = decide(&read(&spec), &facts, &last);
    let name = "alice".to_owned();
    assert!(
        decision
            .steps
            .contains(&ConvergeStep::DisableLogin { name })
    );
    assert!(
        !touched(&decision)
            .iter()
            .any(|path| path.starts_with("/home/alice"))
    );
    assert_eq!(decision.refused.len(), 0);
    assert_eq!(
        decision
            .next
            .managed
            .files
            .iter()
            .filter(|path| path.contains("alice"))
            .count(),
        0
    );
}

#[test]
fn lines_of_another_users_file_are_not_copied_to_a_key_file() {
    let mut spec = spec(false);
    spec["config"] = json!({});
    let mut facts = facts();
    let path = "/home/alice/.ssh/authorized_keys";
    put(&mut facts, path, "root:$y$secret\n", "root", 0o640);
    let decision = decide(&read(&spec), &facts, &State::default());
    assert_eq!(text(&decision, path), Some(format!("{KEY}\n").as_str()));
}

#[test]
fn foreign_keys_in_the_second_file_are_reported_or_removed() {
    let second = "/home/alice/.ssh/authorized_keys2";
    let mut facts = facts();
    let lines = format!("# note\n{KEY}\nssh-rsa FOREIGN eve\n");
    put(&mut facts, second, &lines, "alice", 0o600);
    let field = "keys:alice/ssh-rsa ...ssh-rsa FOREIGN";
    let mut spec = spec(false);
    let decision = decide(&read(&spec), &facts, &State::default());
    assert_eq!(
        text(&decision, second),
        Some(format!("# note\n{KEY}\n").as_str())
    );
    let seen = decision.changes.iter().find(|change| change.id == field);
    assert_eq!(seen.unwrap().handling, Handling::Enforce);
    spec["config"] = json!({});
    let decision = decide(&read(&spec), &facts, &State::default());
    let seen = decision.changes.iter().find(|change| change.id == field);
    assert_eq!(seen.unwrap().handling, Handling::Report);
    assert_eq!(text(&decision, second), None);
    // Removing a user removes the keys of the spec from both files.
    put(
        &mut facts,
        second,
        &format!("{KEY}\nssh-rsa FOREIGN eve\n"),
        "alice",
        0o600,
    );
    let mut last = State::default();
    last.managed.users.insert("alice".to_owned(), false);
    let body = "ssh-ed25519 AAAAone".to_owned();
    last.managed.keys.insert("alice".to_owned(), [body].into());
    spec["access"]["users"].as_array_mut().unwrap().remove(0);
    let decision = decide(&read(&spec), &facts, &last);
    assert_eq!(text(&decision, second), Some("ssh-rsa FOREIGN eve\n"));
}

#[test]
fn many_foreign_keys_are_listed_up_to_a_limit_and_all_removed() {
    let mut spec = spec(false);
    for (file, left) in [
        ("authorized_keys", Some(format!("{KEY}\n"))),
        ("authorized_keys2", None),
    ] {
        let path = format!("/home/alice/.ssh/{file}");
        let mut facts = facts();
        let lines = (0..1000).map(|n| format!("ssh-rsa {n:020} eve\n"));
        put(
            &mut facts,
            &path,
            &lines.collect::<String>(),
            "alice",
            0o600,
        );
        spec["config"] = json!({ "converge": { "foreign_keys": "remove" } });
        let decision = decide(&read(&spec), &facts, &State::default());
        assert_eq!(text(&decision, &path), left.as_deref());
        let id = format!("keys:alice/{path} further keys");
        let further = |decision: &Decision| {
            let mut changes = decision.changes.iter();
            let further = changes.find(|change| change.id == id).unwrap();
            (further.found.as_str().to_owned(), further.handling)
        };
        assert_eq!(further(&decision), ("936".to_owned(), Handling::Enforce));
        assert!(decision.changes.len() < 100);
        spec["config"] = json!({});
        let decision = decide(&read(&spec), &facts, &State::default());
        assert_eq!(further(&decision), ("936".to_owned(), Handling::Report));
        let written = text(&decision, &path).unwrap_or_default();
        assert!(written.is_empty() || written.lines().count() == 1001);
        assert!(decision.changes.len() < 100);
    }
    // Text that a user chose is shortened.
    let mut facts = facts();
    let long = "x".repeat(100_000);
    let line = format!("ssh-{long} AAAA {long}\n");
    put(
        &mut facts,
        "/home/alice/.ssh/authorized_keys2",
        &line,
        "alice",
        0o600,
    );
    let decision = decide(&read(&spec), &facts, &State::default());
    let is_short = |text: &str| text.len() < 200;
    assert!(
        decision
            .changes
            .iter()
            .all(|change| is_short(&change.id) && is_short(&change.found))
    );
}

#[test]
fn unreadable_key_files_of_a_removed_user_are_deleted() {
    let mut last = State::default();
    last.managed.users.insert("alice".to_owned(), false);
    let body = "ssh-ed25519 AAAAone".to_owned();
    last.managed.keys.insert("alice".to_owned(), [body].into());
    let mut spec = spec(false);
    spec["access"]["users"].as_array_mut().unwrap().remove(0);
    for name in ["authorized_keys", "authorized_keys2"] {
        let path = format!("/home/alice/.ssh/{name}");
        let target = "keys".to_owned();
        for file in [
            FileFact::Link { target },
            FileFact::Regular {
                content: None,
                mode: 0o600,
                owner: "alice".to_owned(),
                group: "alice".to_owned(),
            },
        ] {
            let mut facts = facts();
            facts.files.insert(path.clone(), file);
            let decision = decide(&read(&spec), &facts, &last);
            let path = path.clone();
            assert!(decision.steps.contains(&ConvergeStep::Delete { path }));
        }
    }
    let mut facts = facts();
    let path = "/home/alice/.ssh/authorized_keys2";
    facts
        .refused_paths
        .insert(path.to_owned(), "too large".to_owned());
    let decision = decide(&read(&spec), &facts, &last);
    assert_eq!(decision.refused[&format!("keys:alice/{path}")], "too large");
    assert!(decision.next.managed.keys.contains_key("alice"));
    assert!(decision.next.managed.users.contains_key("alice"));
}

#[test]
fn a_foreign_key_with_options_is_found_whatever_the_options_contain() {
    let path = "/home/alice/.ssh/authorized_keys2";
    let mut facts = facts();
    let hidden = format!("environment=\"A= {KEY} x\" ssh-ed25519 EVIL eve\n");
    put(&mut facts, path, &hidden, "alice", 0o600);
    let decision = decide(&read(&spec(false)), &facts, &State::default());
    let path = path.to_owned();
    assert!(decision.steps.contains(&ConvergeStep::Delete { path }));
}

#[test]
fn a_key_of_the_spec_with_options_is_a_difference() {
    let altered = format!("cert-authority,command=\"sh\" {KEY}\n");
    let (first, second) = (
        "/home/alice/.ssh/authorized_keys",
        "/home/alice/.ssh/authorized_keys2",
    );
    for foreign in ["remove", "report"] {
        let mut spec = spec(false);
        spec["config"] = json!({ "converge": { "foreign_keys": foreign } });
        let mut facts = facts();
        // Repeated lines are one difference.
        put(&mut facts, first, &altered.repeat(3), "alice", 0o600);
        put(&mut facts, second, &altered, "alice", 0o600);
        let decision = decide(&read(&spec), &facts, &State::default());
        let found = |end: &str| {
            let is_one = |id: &&str| id.starts_with("keys:alice/ssh-ed25519") && id.ends_with(end);
            let ids = decision.changes.iter().map(|change| change.id.as_str());
            ids.filter(is_one).count()
        };
        assert_eq!(
            (found("with options"), found("AAAAone")),
            (1, 1),
            "{foreign}"
        );
        assert_eq!(text(&decision, first), Some(format!("{KEY}\n").as_str()));
        let path = second.to_owned();
        assert!(
            decision.steps.contains(&ConvergeStep::Delete { path }),
            "{foreign}"
        );
    }
}
