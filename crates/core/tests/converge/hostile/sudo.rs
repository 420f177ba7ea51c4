//! Sudo rules and sshd settings that are hidden or written in unusual ways.

use homestak_core::converge::{ConvergeStep, FileFact, State, decide};

use super::{facts, found, put, spec, text, touched};
use crate::read;

#[test]
fn sudoers_files_that_hide_rules_are_removed() {
    let rule = "eve ALL=(ALL) NOPASSWD: ALL\n";
    let unsafe_lines = "includes other files or disables authentication";
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
        ("zz", link, Some("a symbolic link"), None),
        ("zz", regular(None), Some("not a readable text file"), None),
        (
            "zz",
            regular(Some(&included)),
            Some(unsafe_lines),
            Some(rule),
        ),
        (
            "a~b",
            regular(Some("#includedir /srv\n")),
            Some(unsafe_lines),
            None,
        ),
        (
            "zz",
            regular(Some("Defaults:eve !authenticate\n")),
            Some(unsafe_lines),
            None,
        ),
        (
            "zz",
            regular(Some("Defaults env_reset, \\\n !authenticate\n")),
            Some(unsafe_lines),
            None,
        ),
        // sudo does not read these.
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
        let deleted = ConvergeStep::Delete { path };
        let is_deleted = expected.is_some() && left.is_none();
        assert_eq!(decision.steps.contains(&deleted), is_deleted);
    }
    // What cannot be removed is refused.
    let mut facts = facts();
    let usual = "Defaults env_reset\nDefaults secure_path=\"/bin\"\n%sudo ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n";
    put(&mut facts, "/etc/sudoers", usual, "root", 0o440);
    let no_utf8 = "/etc/sudoers.d/\u{fffd}".to_owned();
    facts
        .refused_paths
        .insert(no_utf8.clone(), "its name is not UTF-8".to_owned());
    let bob = facts.users.get_mut("bob").unwrap();
    (bob.id, bob.group) = (Some(0), "sudo".to_owned());
    let decision = decide(&read(&spec(false)), &facts, &State::default());
    let refused: Vec<&str> = decision.refused.keys().map(String::as_str).collect();
    let no_utf8 = format!("sudo-groups/{no_utf8}");
    assert_eq!(
        refused,
        [no_utf8.as_str(), "sudo:bob/main group", "user:bob/number"]
    );
    assert!(!touched(&decision).contains(&"/etc/sudoers"));
}

#[test]
fn sshd_exceptions_that_grant_access_are_commented_out() {
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
    assert!(decision.steps.contains(&ConvergeStep::Delete { path }));
}

#[test]
fn sudo_rules_by_id_alias_or_own_group_are_found_and_removed() {
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
        let deleted = ConvergeStep::Delete {
            path: path.to_owned(),
        };
        assert_eq!(decision.steps.contains(&deleted), left.is_none(), "{rules}");
    }
    // The id of another user does not match.
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
