//! Files that an unprivileged user of a node, or an attacker with root, has prepared.

mod keys;
mod sudo;

use homestak_core::converge::{
    Change, ChangeCause, ConvergeStep, Danger, Decision, Facts, FileFact, Handling, Policy, State,
    SystemFact, UserFact, decide,
};
use serde_json::{Value, json};

use crate::{minimal_spec, read};

const KEY: &str = "ssh-ed25519 AAAAone one@desk";

fn user(name: &str, id: u32) -> UserFact {
    UserFact {
        home: format!("/home/{name}"),
        group: name.to_owned(),
        shell: "/bin/bash".to_owned(),
        id: Some(id),
        group_id: Some(id),
        ..UserFact::default()
    }
}

/// A node with two users who have no keys and no sudo rules.
fn facts() -> Facts {
    let users = [("alice", 1001), ("bob", 1002)];
    Facts {
        system: SystemFact {
            id: "debian".to_owned(),
            version: "12".to_owned(),
            systemd: true,
        },
        users: users
            .map(|(name, id)| (name.to_owned(), user(name, id)))
            .into(),
        ..Facts::default()
    }
}

fn put(facts: &mut Facts, path: &str, text: &str, owner: &str, mode: u32) {
    let file = FileFact::Regular {
        content: Some(text.to_owned()),
        mode,
        owner: owner.to_owned(),
        group: owner.to_owned(),
    };
    facts.files.insert(path.to_owned(), file);
}

fn spec(sudo: bool) -> Value {
    let mut spec = minimal_spec();
    spec["access"]["users"] = json!([
        { "name": "alice", "sudo": sudo, "ssh_keys": [KEY] },
        { "name": "bob", "sudo": false, "ssh_keys": [KEY] },
    ]);
    spec["config"] = json!({ "converge": { "foreign_keys": "remove" } });
    spec
}

/// Returns the paths that are written, created or deleted.
fn touched(decision: &Decision) -> Vec<&str> {
    let steps = decision.steps.iter();
    steps
        .filter_map(|step| match step {
            ConvergeStep::Write { path, .. }
            | ConvergeStep::Delete { path }
            | ConvergeStep::Directory { path, .. } => Some(path.as_str()),
            _ => None,
        })
        .collect()
}

fn text<'a>(decision: &'a Decision, path: &str) -> Option<&'a str> {
    decision.steps.iter().find_map(|step| match step {
        ConvergeStep::Write {
            path: at, content, ..
        } if at == path => Some(content.as_str()),
        _ => None,
    })
}

fn found<'a>(decision: &'a Decision, id: &str) -> Option<&'a str> {
    let change = decision.changes.iter().find(|change| change.id == id)?;
    Some(change.found.as_str())
}

#[test]
fn resources_that_differ_between_two_specs_are_frozen() {
    let (one, other) = (read(&spec(false)), read(&spec(true)));
    let policy = Policy::default().with_frozen(&one, &other);
    assert_eq!(policy.frozen.iter().collect::<Vec<_>>(), ["sudo:alice"]);
    let mut facts = facts();
    put(
        &mut facts,
        "/etc/sudoers.d/homestak-alice",
        "alice ALL=(ALL:ALL) ALL\n",
        "root",
        0o440,
    );
    let decision = decide(&policy.attach_to(&one), &facts, &State::default());
    assert!(!touched(&decision).contains(&"/etc/sudoers.d/homestak-alice"));
    assert!(touched(&decision).contains(&"/home/alice/.ssh/authorized_keys"));
}

#[test]
fn owner_and_mode_of_foreign_content_are_not_changed() {
    let path = "/home/alice/tool";
    let content = format!("file:{path}/content");
    let mut spec = spec(false);
    spec["config"] = json!({
        "files": [{ "path": path, "content": "right\n", "mode": "4755", "owner": "root" }],
    });
    let spec = read(&spec);
    let mut node = facts();
    put(&mut node, path, "right\n", "root", 0o4755);
    let last = decide(&spec, &node, &State::default()).next;
    put(&mut node, path, "of alice\n", "alice", 0o700);
    let only = |handling: Handling| Policy {
        fields: [(content.clone(), handling)].into(),
        ..Policy::default()
    };
    for policy in [
        Policy::default().with_held([content.clone()]),
        only(Handling::Report),
        only(Handling::Ignore),
    ] {
        let desired = policy.attach_to(&spec);
        let decision = decide(&desired, &node, &last);
        assert_eq!(text(&decision, path), None);
        for field in ["mode", "owner"] {
            let id = format!("file:{path}/{field}");
            let mut changes = decision.changes.iter();
            let change = changes.find(|change| change.id == id).unwrap();
            assert_eq!(change.handling, Handling::Report);
        }
        // With the desired content, they are corrected.
        let mut node = facts();
        put(&mut node, path, "right\n", "alice", 0o700);
        let decision = decide(&desired, &node, &last);
        assert_eq!(text(&decision, path), Some("right\n"));
    }
}

#[test]
fn a_file_with_an_access_control_list_differs_and_is_rewritten() {
    let path = "/home/alice/app.secret";
    let mut spec = spec(false);
    spec["config"] = json!({
        "files": [{ "path": path, "content": "secret\n", "mode": "0640", "owner": "root" }],
    });
    let spec = read(&spec);
    let mut node = facts();
    put(&mut node, path, "secret\n", "root", 0o640);
    let last = decide(&spec, &node, &State::default()).next;
    assert_eq!(text(&decide(&spec, &node, &last), path), None);
    node.acl_paths.insert(path.to_owned());
    let decision = decide(&spec, &node, &last);
    assert_eq!(text(&decision, path), Some("secret\n"));
    let id = format!("file:{path}/mode");
    let change = decision.changes.iter().find(|change| change.id == id);
    assert_eq!(change.unwrap().found, "0640 with an access control list");
}

#[test]
fn changes_to_other_users_cannot_lock_out_the_driver() {
    let change = |resource: &str, danger, handling| Change {
        id: format!("{resource}/x"),
        resource: resource.to_owned(),
        field: "x".to_owned(),
        expected: "".into(),
        found: "".into(),
        cause: ChangeCause::Spec,
        danger: Some(danger),
        handling,
    };
    let locks_out = |resource: &str, danger, user: &str| {
        let changes = vec![
            change(resource, danger, Handling::Enforce),
            change("keys:ops", Danger::Users, Handling::Report),
        ];
        let decision = Decision {
            changes,
            ..Decision::default()
        };
        decision.could_lock_out(user)
    };
    assert!(!locks_out("user:alice", Danger::Users, "ops"));
    assert!(!locks_out("keys:alice", Danger::Users, "ops"));
    assert!(locks_out("user:ops", Danger::Users, "ops"));
    assert!(locks_out("keys:ops", Danger::Users, "ops"));
    assert!(locks_out(
        "file:/home/alice/.ssh/authorized_keys",
        Danger::Users,
        "ops"
    ));
    assert!(locks_out("sudo:alice", Danger::Sudo, "ops"));
    assert!(locks_out("sshd", Danger::Sshd, "ops"));
    assert!(
        locks_out("user:alice", Danger::Users, ""),
        "nobody is named"
    );
}
