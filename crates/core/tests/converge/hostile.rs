//! What an unprivileged user of a node can do to its files, and what follows.

use homestak_core::converge::{
    Change, Danger, Decision, Facts, FileFact, Handling, Policy, Since, State, Step, SystemFact,
    UserFact, decide,
};
use serde_json::{Value, json};

use crate::{read, smallest};

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

/// A node with two users who have nothing yet.
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
    let mut spec = smallest();
    spec["access"]["users"] = json!([
        { "name": "alice", "sudo": sudo, "ssh_keys": [KEY] },
        { "name": "bob", "sudo": false, "ssh_keys": [KEY] },
    ]);
    spec["config"] = json!({ "converge": { "foreign_keys": "remove" } });
    spec
}

/// Returns the paths that are written or deleted.
fn touched(decision: &Decision) -> Vec<&str> {
    let steps = decision.steps.iter();
    steps
        .filter_map(|step| match step {
            Step::Write { path, .. } | Step::Delete { path } | Step::Directory { path, .. } => {
                Some(path.as_str())
            }
            _ => None,
        })
        .collect()
}

fn text<'a>(decision: &'a Decision, path: &str) -> Option<&'a str> {
    decision.steps.iter().find_map(|step| match step {
        Step::Write {
            path: at, content, ..
        } if at == path => Some(content.as_str()),
        _ => None,
    })
}

#[test]
fn what_a_user_blocks_is_refused_and_everything_else_is_done() {
    let wanted = read(&spec(false));
    let blocks: [fn(&mut Facts); 3] = [
        |facts| put(facts, "/home/alice/.ssh", "", "alice", 0o644),
        |facts| {
            let target = "/root/.ssh".to_owned();
            let link = FileFact::Link { target };
            facts.files.insert("/home/alice/.ssh".to_owned(), link);
            let why = "`/home/alice/.ssh` is a symbolic link".to_owned();
            facts
                .refused
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
        let decision = decide(&wanted, &facts, &State::default());
        assert_eq!(decision.refusals, [""; 0]);
        let refused: Vec<&String> = decision.refused.keys().collect();
        assert_eq!(refused, ["keys:alice//home/alice/.ssh"]);
        assert!(!decision.is_settled());
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
fn an_account_is_closed_and_nothing_is_deleted_behind_a_link() {
    let mut facts = facts();
    let path = "/home/alice/.ssh/authorized_keys".to_owned();
    facts.refused.insert(path.clone(), "a link".to_owned());
    let mut last = State::default();
    last.managed.users.insert("alice".to_owned(), true);
    last.managed.files.insert(path);
    let mut spec = spec(false);
    spec["access"]["users"].as_array_mut().unwrap().remove(0);
    let decision = decide(&read(&spec), &facts, &last);
    let name = "alice".to_owned();
    assert!(decision.steps.contains(&Step::CloseUser { name }));
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
fn lines_of_a_file_of_someone_else_are_not_given_to_a_user() {
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
    // A user who goes takes the keys of the spec along, from both files.
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
fn keys_without_number_are_named_up_to_a_limit_and_removed_as_a_whole() {
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
    // What a user chooses makes no name long.
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
fn a_user_who_goes_keeps_no_key_file_that_cannot_be_read() {
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
            assert!(decision.steps.contains(&Step::Delete { path }));
        }
    }
    let mut facts = facts();
    let path = "/home/alice/.ssh/authorized_keys2";
    facts
        .refused
        .insert(path.to_owned(), "too large".to_owned());
    let decision = decide(&read(&spec), &facts, &last);
    assert_eq!(decision.refused[&format!("keys:alice/{path}")], "too large");
    assert!(decision.next.managed.keys.contains_key("alice"));
    assert!(decision.next.managed.users.contains_key("alice"));
}

#[test]
fn a_key_behind_options_is_seen_whatever_the_options_say() {
    let path = "/home/alice/.ssh/authorized_keys2";
    let mut facts = facts();
    let hidden = format!("environment=\"A= {KEY} x\" ssh-ed25519 EVIL eve\n");
    put(&mut facts, path, &hidden, "alice", 0o600);
    let decision = decide(&read(&spec(false)), &facts, &State::default());
    let path = path.to_owned();
    assert!(decision.steps.contains(&Step::Delete { path }));
}

#[test]
fn a_key_of_the_spec_with_options_is_not_the_key_of_the_spec() {
    let altered = format!("cert-authority,command=\"sh\" {KEY}\n");
    let (first, second) = (
        "/home/alice/.ssh/authorized_keys",
        "/home/alice/.ssh/authorized_keys2",
    );
    for foreign in ["remove", "report"] {
        let mut spec = spec(false);
        spec["config"] = json!({ "converge": { "foreign_keys": foreign } });
        let mut facts = facts();
        // However many there are, it is one difference.
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
        assert!(decision.steps.contains(&Step::Delete { path }), "{foreign}");
    }
}

fn found<'a>(decision: &'a Decision, id: &str) -> Option<&'a str> {
    let change = decision.changes.iter().find(|change| change.id == id)?;
    Some(change.found.as_str())
}

#[test]
fn no_file_hides_rules_of_sudo() {
    let rule = "eve ALL=(ALL) NOPASSWD: ALL\n";
    let loose = "reads further files, or asks for no password";
    let regular = |content: Option<&str>| FileFact::Regular {
        content: content.map(str::to_owned),
        mode: 0o440,
        owner: "root".to_owned(),
        group: "root".to_owned(),
    };
    let link = FileFact::Link {
        target: "/root/rules".to_owned(),
    };
    let included = format!("{rule}@include /root/rules\n");
    for (name, file, expected, left) in [
        ("zz", link, Some("a link"), None),
        (
            "zz",
            regular(None),
            Some("not a text that can be read"),
            None,
        ),
        ("zz", regular(Some(&included)), Some(loose), Some(rule)),
        (
            "a~b",
            regular(Some("#includedir /srv\n")),
            Some(loose),
            None,
        ),
        (
            "zz",
            regular(Some("Defaults:eve !authenticate\n")),
            Some(loose),
            None,
        ),
        (
            "zz",
            regular(Some("Defaults env_reset, \\\n !authenticate\n")),
            Some(loose),
            None,
        ),
        // Sudo does not read these.
        (
            "old~",
            regular(Some("Defaults !authenticate\n")),
            None,
            None,
        ),
        ("a.b", regular(None), None, None),
    ] {
        let path = format!("/etc/sudoers.d/{name}");
        let mut facts = facts();
        facts.files.insert(path.clone(), file);
        let decision = decide(&read(&spec(false)), &facts, &State::default());
        let id = format!("sudo-groups/{path} rules");
        assert_eq!(found(&decision, &id), expected, "{path}");
        assert_eq!(text(&decision, &path), left, "{path}");
        let deleted = Step::Delete { path };
        let is_deleted = expected.is_some() && left.is_none();
        assert_eq!(decision.steps.contains(&deleted), is_deleted);
    }
    // What cannot be taken away is said.
    let mut facts = facts();
    let usual = "Defaults env_reset\nDefaults secure_path=\"/bin\"\n%sudo ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n";
    put(&mut facts, "/etc/sudoers", usual, "root", 0o440);
    let unnamed = "/etc/sudoers.d/\u{fffd}".to_owned();
    facts
        .refused
        .insert(unnamed.clone(), "its name is not a text".to_owned());
    let bob = facts.users.get_mut("bob").unwrap();
    (bob.id, bob.group) = (Some(0), "sudo".to_owned());
    let decision = decide(&read(&spec(false)), &facts, &State::default());
    let refused: Vec<&str> = decision.refused.keys().map(String::as_str).collect();
    let unnamed = format!("sudo-groups/{unnamed}");
    assert_eq!(
        refused,
        [unnamed.as_str(), "sudo:bob/main group", "user:bob/number"]
    );
    assert!(!touched(&decision).contains(&"/etc/sudoers"));
}

#[test]
fn no_exception_of_the_ssh_server_lets_others_in() {
    let usual = "Include /etc/ssh/sshd_config.d/*.conf\nAuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys2\nMatch User git\n  X11Forwarding no\n";
    let path = "/etc/ssh/sshd_config.d/zz.conf";
    for line in [
        "AuthorizedKeysFile /tmp/k",
        "authorizedkeyscommand=/tmp/k",
        "TrustedUserCAKeys /tmp/ca",
        "Include /tmp/more",
        "Match User bob\n  \"PasswordAuthentication\" yes",
        "Match Address 10.0.0.0/8\n  PermitRootLogin yes",
    ] {
        let mut facts = facts();
        facts.sshd = Some([].into());
        put(&mut facts, "/etc/ssh/sshd_config", usual, "root", 0o644);
        put(&mut facts, path, &format!("{line}\n"), "root", 0o644);
        let decision = decide(&read(&spec(false)), &facts, &State::default());
        let last = line.lines().last().unwrap();
        assert_eq!(
            found(&decision, &format!("sshd/{path} exceptions")),
            Some(last.trim())
        );
        let right = text(&decision, path).unwrap();
        assert!(right.ends_with(&format!("#homestak: {last}\n")), "{right}");
        assert_eq!(
            found(&decision, "sshd//etc/ssh/sshd_config exceptions"),
            None
        );
    }
    let mut facts = facts();
    facts.sshd = Some([].into());
    let target = "/root/zz".to_owned();
    facts
        .files
        .insert(path.to_owned(), FileFact::Link { target });
    let decision = decide(&read(&spec(false)), &facts, &State::default());
    let path = path.to_owned();
    assert!(decision.steps.contains(&Step::Delete { path }));
}

#[test]
fn rules_of_sudo_by_number_alias_and_own_group_count_and_go() {
    for (rules, left) in [
        ("\"alice\" ALL=(ALL) NOPASSWD: ALL\n", None),
        ("al\\x69ce ALL=(ALL) NOPASSWD: ALL\n", None),
        ("al\\ice ALL=(ALL) NOPASSWD: ALL\n", None),
        ("#0001001 ALL=(ALL) NOPASSWD: ALL\n", None),
        ("%#0001001 ALL=(ALL) NOPASSWD: ALL\n", None),
        ("#1001 ALL=(ALL) NOPASSWD: ALL\n", None),
        ("%alice ALL=(ALL) NOPASSWD: ALL\n", None),
        ("%#1001 ALL=(ALL) NOPASSWD: ALL\n", None),
        (
            "User_Alias CREW = alice\nCREW ALL=(ALL) NOPASSWD: ALL\n",
            None,
        ),
        (
            "User_Alias CREW = carol, #1001 : MORE = dave\nUser_Alias ALL_OF = CREW\nALL_OF ALL=(ALL) NOPASSWD: ALL\n",
            Some(
                "User_Alias CREW = carol : MORE = dave\nUser_Alias ALL_OF = CREW\nALL_OF ALL=(ALL) NOPASSWD: ALL\n",
            ),
        ),
        (
            "#1001,#1003 ALL=(ALL) NOPASSWD: ALL\n",
            Some("#1003 ALL=(ALL) NOPASSWD: ALL\n"),
        ),
    ] {
        let path = "/etc/sudoers.d/zz";
        let mut facts = facts();
        put(&mut facts, path, rules, "root", 0o440);
        let decision = decide(&read(&spec(false)), &facts, &State::default());
        let rule = decision
            .changes
            .iter()
            .find(|change| change.id == "sudo:alice/rule");
        assert_eq!(
            rule.map(|rule| rule.found.as_str()),
            Some("no password"),
            "{rules}"
        );
        assert_eq!(text(&decision, path), left, "{rules}");
        let deleted = Step::Delete {
            path: path.to_owned(),
        };
        assert_eq!(decision.steps.contains(&deleted), left.is_none(), "{rules}");
    }
    // Somebody else's number is not.
    let mut facts = facts();
    put(
        &mut facts,
        "/etc/sudoers.d/zz",
        "#1003 ALL=(ALL) ALL\n#include x\n",
        "root",
        0o440,
    );
    let decision = decide(&read(&spec(false)), &facts, &State::default());
    assert!(
        !decision
            .changes
            .iter()
            .any(|change| change.resource == "sudo:alice")
    );
}

#[test]
fn what_two_specs_do_not_agree_about_is_left_as_it_is() {
    let (one, other) = (read(&spec(false)), read(&spec(true)));
    let policy = Policy::default().freezing(&one, &other);
    assert_eq!(policy.frozen.iter().collect::<Vec<_>>(), ["sudo:alice"]);
    let mut facts = facts();
    put(
        &mut facts,
        "/etc/sudoers.d/homestak-alice",
        "alice ALL=(ALL:ALL) ALL\n",
        "root",
        0o440,
    );
    let decision = decide(&policy.put_into(&one), &facts, &State::default());
    assert!(!touched(&decision).contains(&"/etc/sudoers.d/homestak-alice"));
    assert!(touched(&decision).contains(&"/home/alice/.ssh/authorized_keys"));
}

#[test]
fn content_that_nobody_wanted_gets_no_other_owner_and_no_other_mode() {
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
        Policy::default().holding([content.clone()]),
        only(Handling::Report),
        only(Handling::Ignore),
    ] {
        let wanted = policy.put_into(&spec);
        let decision = decide(&wanted, &node, &last);
        assert_eq!(text(&decision, path), None);
        for field in ["mode", "owner"] {
            let id = format!("file:{path}/{field}");
            let mut changes = decision.changes.iter();
            let change = changes.find(|change| change.id == id).unwrap();
            assert_eq!(change.handling, Handling::Report);
        }
        // With the right content, they are corrected.
        let mut node = facts();
        put(&mut node, path, "right\n", "alice", 0o700);
        let decision = decide(&wanted, &node, &last);
        assert_eq!(text(&decision, path), Some("right\n"));
    }
}

#[test]
fn a_file_of_root_that_a_list_opens_to_others_differs_and_is_written_anew() {
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
    node.listed.insert(path.to_owned());
    let decision = decide(&spec, &node, &last);
    assert_eq!(text(&decision, path), Some("secret\n"));
    let id = format!("file:{path}/mode");
    let change = decision.changes.iter().find(|change| change.id == id);
    assert_eq!(change.unwrap().found, "0640 with an access control list");
}

#[test]
fn what_becomes_of_other_users_cuts_nobody_off() {
    let change = |resource: &str, danger, handling| Change {
        id: format!("{resource}/x"),
        resource: resource.to_owned(),
        field: "x".to_owned(),
        expected: "".into(),
        found: "".into(),
        since: Since::Spec,
        danger: Some(danger),
        handling,
    };
    let cuts_off = |resource: &str, danger, user: &str| {
        let changes = vec![
            change(resource, danger, Handling::Enforce),
            change("keys:ops", Danger::Users, Handling::Report),
        ];
        let decision = Decision {
            changes,
            ..Decision::default()
        };
        decision.could_cut_off(user)
    };
    assert!(!cuts_off("user:alice", Danger::Users, "ops"));
    assert!(!cuts_off("keys:alice", Danger::Users, "ops"));
    assert!(cuts_off("user:ops", Danger::Users, "ops"));
    assert!(cuts_off("keys:ops", Danger::Users, "ops"));
    assert!(cuts_off(
        "file:/home/alice/.ssh/authorized_keys",
        Danger::Users,
        "ops"
    ));
    assert!(cuts_off("sudo:alice", Danger::Sudo, "ops"));
    assert!(cuts_off("sshd", Danger::Sshd, "ops"));
    assert!(cuts_off("user:alice", Danger::Users, ""), "nobody is named");
}
